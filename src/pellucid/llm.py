"""LLM: a model, its tokenizer and an engine in one object, for Python.

Law: text and ids go in, results come out; everything between is the engine's. A call submits its sequences to the one
thread that owns the engine, turns events into results, and in whatever way it ends (done, an error, Ctrl-C, a stream
that is thrown away) takes back what it submitted: pages return as soon as the step that runs has ended. Most modules
are imported where they are first needed, for while weights are packed in the background there is time to import them.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pellucid.config import EngineConfig
from pellucid.errors import CapacityError, ConfigError, EngineError, RequestError
from pellucid.results import Chunk, RequestOutput, ScoreResult
from pellucid.sampling.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pellucid.answers import Answer
    from pellucid.checkpoint.open import Checkpoint
    from pellucid.devices.base import Device
    from pellucid.engine.engine import Engine
    from pellucid.engine.events import Event
    from pellucid.engine.pooling import PoolingKind
    from pellucid.engine.worker import Worker
    from pellucid.models.spec import ModelSpec
    from pellucid.probes.trace import Trace
    from pellucid.sampling.grammar import Grammar, Grammars, Matcher
    from pellucid.sampling.words import Words
    from pellucid.text.chat import ChatTemplate
    from pellucid.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""Text, or token ids that are taken as they are."""
Message = Mapping[str, Any]
"""A chat message: role and content, and what the model's template knows beyond these."""
Params = SamplingParams | Sequence[SamplingParams]

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Who may say a message; a developer is the system to templates."""
DEFAULT_MAX_TOKENS = 512
DEFAULT_PARAMS = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=DEFAULT_MAX_TOKENS)
"""What a call samples with that says nothing: lively but sound; 512 tokens, or what the context leaves."""


class LLM:
    """A loaded model that generates, chats, streams and scores.

    Calls from several threads are safe, and run together in one batch. A request's answer depends on its own tokens,
    parameters and seed alone.

    Args:
        model: a name of the registry ("smollm2"), a Hugging Face repository ("org/repo", "org/repo:Q4_K_M"), a .gguf
            file or a folder. Pulled on first use.
        tokenizer: whose vocabulary counts instead of the model's own: a tokenizer.json, tekken.json, folder, .gguf file
            or Hugging Face repository. None: the model's own.
        threads: threads of the CPU pool; None: every core this process may run on.
        pin: keep each thread on a core of its own while a step runs; for a machine that does nothing else.
        ctx: longest sequence in tokens, prompt and answer; None: the model's own, at most 4096.
        kv: format of the KV cache, "f16" or "q8_0".
        kv_pages: pages of 16 tokens in the KV cache; None: four sequences of `ctx` tokens, as far as memory allows.
        max_seqs: sequences that run together.
        max_queue: sequences that may wait; more are refused.
        token_budget: rows of one step, over all sequences.
        max_itl_ms: milliseconds between two tokens of an answer; steps have only the rows that fit. None: no bound.
        prefix_cache: keep keys and values of finished prompts for those that begin alike.
        seed: seed of requests that bring none; None: drawn for each, and recorded on its result.
        logprobs_mode: what logprobs describe, unless a request says: raw_logprobs (the model) or processed_logprobs
            (what was drawn from, after every sampling stage).
        isa: "scalar", "avx2", "avx2_vnni", "avx512" or "amx"; None: the best this processor has.
        progress: say on stderr what is pulled and loaded; None: when stderr is a terminal.

    Raises:
        ModelNotFoundError, DownloadError, ModelFileError, UnsupportedModelError, MemoryPlanError, ConfigError.
    """

    name: str
    """The model as it was asked for."""
    checkpoint: Checkpoint | None
    """The open model file; None if the parts were made elsewhere."""
    tokenizer: Tokenizer
    template: ChatTemplate
    device: Device
    engine: Engine
    config: EngineConfig
    """With every value resolved."""

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2",
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        pin: bool = False,
        ctx: int | None = None,
        kv: str = "f16",
        kv_pages: int | None = None,
        max_seqs: int = 64,
        max_queue: int = 256,
        token_budget: int = 512,
        max_itl_ms: int | None = None,
        prefix_cache: bool = True,
        seed: int | None = None,
        logprobs_mode: str = "raw_logprobs",
        isa: str | None = None,
        progress: bool | None = None,
    ) -> None:
        from pellucid.checkpoint.open import open_checkpoint
        from pellucid.devices.loading import Loading
        from pellucid.models.pull import resolve, resolve_tokenizer

        if not isinstance(model, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"model={model!r} is not a name or a path", param="model")
        config = EngineConfig(
            model=os.fspath(model),
            threads=threads,
            pin=pin,
            ctx=ctx,
            kv=kv,
            kv_pages=kv_pages,
            max_seqs=max_seqs,
            max_queue=max_queue,
            token_budget=token_budget,
            max_itl_ms=max_itl_ms,
            prefix_cache=prefix_cache,
            seed=seed,
            logprobs_mode=logprobs_mode,
            isa=isa,
        )
        path = resolve(config.model, progress=_shown(progress))
        other = None if tokenizer is None else resolve_tokenizer(os.fspath(tokenizer), progress=_shown(progress))
        checkpoint = open_checkpoint(path, other)
        try:
            _require_room(checkpoint, config)
            with (
                _loading(checkpoint.nbytes, _shown(progress)) as tick,
                Loading(checkpoint, config, tick) as loading,
            ):
                from pellucid.devices.cpu import CpuDevice
                from pellucid.models.decoder import decoder_graph
                from pellucid.text.chat import ChatTemplate
                from pellucid.text.tokenizer import Tokenizer

                source = checkpoint.tokenizer
                vocabulary = Tokenizer.from_source(source)
                _check_size(vocabulary, checkpoint.spec.vocab, other)
                template = ChatTemplate.from_source(source, vocabulary)
                graph = decoder_graph(checkpoint.spec)
                device = CpuDevice.of(loading, graph)
        except BaseException:
            checkpoint.close()
            raise
        self._build(config.model, vocabulary, template, device, device.config, checkpoint)

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, template: ChatTemplate, device: Device, config: EngineConfig, name: str = "model"
    ) -> Self:
        """An LLM of parts that were made elsewhere; `config` must be resolved."""
        llm = cls.__new__(cls)
        llm._build(name, tokenizer, template, device, config, None)
        return llm

    def _build(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        device: Device,
        config: EngineConfig,
        checkpoint: Checkpoint | None,
    ) -> None:
        from pellucid.engine.engine import Engine

        self.name, self.tokenizer, self.template = name, tokenizer, template
        self.device, self.config, self.checkpoint = device, config, checkpoint
        self.engine = Engine(device, config=config)
        self._worker: Worker | None = None
        self._starting = threading.Lock()
        self._closed = False

    @property
    def spec(self) -> ModelSpec:
        """The model's architecture."""
        if self.checkpoint is None:
            raise RequestError("this LLM was made of parts and has no checkpoint, so no spec")
        return self.checkpoint.spec

    @property
    def worker(self) -> Worker:
        """The one thread that owns the engine, started when it is first asked for. The server submits to it, too."""
        from pellucid.engine.worker import Worker

        with self._starting:
            if self._closed:
                raise RequestError("this LLM is closed; make a new one")
            if self._worker is None:
                self._worker = Worker(self.engine)
                self._worker.start()
                self._end = weakref.finalize(self, Worker.stop, self._worker)
            return self._worker

    @cached_property
    def _grammars(self) -> Grammars:
        from pellucid.sampling.grammar import Grammars

        tokenizer = self.tokenizer
        return Grammars(
            self._pieces,
            lambda text: tokenizer.encode(text, add_special=False),
            special_ids=[id for id in tokenizer.added if tokenizer.is_special(id)],
            eos_id=tokenizer.eos_id,
            stop_ids=tokenizer.stop_ids,
            vocab_size=self.device.vocab_size,
        )

    @cached_property
    def _words(self) -> Words:
        from pellucid.sampling.words import Words

        return Words(self._pieces, self.tokenizer.encode_after_control)

    def _pieces(self) -> list[bytes]:
        return [self.tokenizer.token_bytes(id) for id in range(self.tokenizer.vocab_size)]

    def spell(self, params: SamplingParams) -> SamplingParams:
        """Return parameters whose strings are known in the model's tokens as far as the stages that are on need them.

        The first time it reads the whole vocabulary.
        """
        while params.unspelled is not None:
            if params.unspelled == "bad_words":
                params = replace(params, bad_ids=self._words.sequences(params.bad_words))
            else:
                params = replace(params, breakers=self._words.breakers(params.dry_sequence_breakers))
        return params

    def matcher(self, params: SamplingParams) -> Matcher | None:
        """Return what holds an answer to params.grammar; None: nothing does. Raises RequestError as it is compiled."""
        return None if params.grammar is None else self._grammars.matcher(params.grammar)

    def grammar_fault(self, grammar: Grammar) -> str:
        """Return why a grammar cannot be compiled; "": it can."""
        return self._grammars.fault(grammar)

    # -- what a model is asked to do -------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params | None = None,
        *,
        progress: bool | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        output_scores: bool = False,
        output_logits: bool = False,
    ) -> list[RequestOutput]:
        """Continue one prompt or many; the results come in the order of the prompts.

        Args:
            prompts: text, token ids, or a list of these.
            params: one for all, or one for each prompt; None: DEFAULT_PARAMS.
            progress: show a bar on stderr; None: for two or more prompts when stderr is a terminal.
            output_attentions, output_hidden_states, output_scores, output_logits: put these on each answer, in Hugging
                Face's shapes, by a replay of its tokens within 512 MiB (CompletionOutput says what they are).

        Raises:
            RequestError: a prompt or a parameter that cannot be served; nothing is generated then.
            ContextLengthError: a prompt and its answer do not fit the context.
        """
        many = _prompts(prompts)
        results = self._complete([self._of_prompt(prompt) for prompt in many], params, progress)
        if output_attentions or output_hidden_states or output_scores or output_logits:
            from pellucid.probes.inspect import fill_outputs

            for result, one in zip(results, _params(params, len(many)), strict=True):
                fill_outputs(
                    self,
                    result,
                    one or DEFAULT_PARAMS,
                    attentions=output_attentions,
                    hidden_states=output_hidden_states,
                    scores=output_scores,
                    logits=output_logits,
                )
        return results

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template.

        Args:
            messages: a list of {"role": ..., "content": ...}, or a list of such lists.
            params: one for all, or one for each conversation; None: DEFAULT_PARAMS.
            tools: JSON schemas of functions, for templates that know tools.
            progress: as in `generate`.

        Raises:
            RequestError: the model has no template, or its template refuses the messages; and as in `generate`.
        """
        return self._complete([self._of_chat(one, tools) for one in _conversations(messages)], params, progress)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Generator[Chunk, None, RequestOutput]:
        """Continue a prompt, or answer a conversation, chunk by chunk; the generator returns the whole result.

        Closing the generator ends the request and gives its memory back.
        """
        if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], Mapping):
            text, ids = self._of_chat(cast("Sequence[Message]", prompt), tools)
        else:
            text, ids = self._of_prompt(cast("Prompt", prompt))
        return self._stream(self._answer(text, ids, params))

    def score(self, prompt: Prompt) -> ScoreResult:
        """How likely each token of a text is, given those before it. A text gets the tokenizer's BOS, ids none."""
        text, ids = self._of_prompt(prompt)
        params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=1, seed=0)
        answer = self._answer(text, ids, params)
        with self._running([answer]) as step:
            while not answer.output.finished:
                step()
        if answer.output.error is not None:
            raise EngineError(f"the text could not be scored: {answer.output.error}")
        logprobs: list[float | None] = []
        ranks: list[int | None] = []
        for token, entry in zip(ids, answer.output.prompt_logprobs or [], strict=True):
            logprobs.append(None if entry is None else entry[token].logprob)
            ranks.append(None if entry is None else entry[token].rank)
        return ScoreResult(ids, [self.tokenizer.decode([i], skip_special=False) for i in ids], logprobs, ranks)

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: PoolingKind = "mean",
        dimensions: int | None = None,
        progress: bool | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings (texts, dimensions) of texts or token ids, each of length 1: a dot product is a cosine.

        Args:
            texts: text, token ids, or a list of these.
            pooling: "mean" of the model's last hidden states, or that of the "last" token.
            dimensions: numbers that are kept of each; None: all, the model's width.
            progress: as in `generate`.

        Raises:
            RequestError: a text, `pooling` or `dimensions` that cannot be served; nothing is computed then.
            ContextLengthError: a text does not fit the context.
        """
        import numpy as np

        from pellucid.answers import Answer
        from pellucid.engine.pooling import KINDS

        if pooling not in KINDS:
            raise RequestError(f"pooling={pooling!r} is none; choose mean or last", param="pooling")
        size = self.engine.embedding_size
        if dimensions is not None and (type(dimensions) is not int or not 0 < dimensions <= size):
            raise RequestError(f"dimensions={dimensions!r} is not from 1 to {size}, the model's", param="dimensions")
        params = SamplingParams(max_tokens=0)
        prompts = [self._of_prompt(prompt) for prompt in _prompts(texts)]
        answers = [Answer(self.tokenizer, text, ids, params, 0, pooling=pooling) for text, ids in prompts]
        self._run(answers, progress)
        vectors = [self._vector(answer, dimensions) for answer in answers]
        return np.stack(vectors) if vectors else np.empty((0, dimensions or size), np.float32)

    # -- to look inside --------------------------------------------------------------------------------------------

    def inspect(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        level: Literal["tokens", "summary", "heads"] = "summary",
        budget: int | str = "512MB",
    ) -> Trace:
        """Answer a prompt, or a conversation, and look into what happened, by a replay of the very tokens.

        Args:
            params: None takes the likeliest token, once; max_tokens=0 looks at the prompt alone.
            level: what is computed at once; everything else when it is asked for.
            budget: bytes that looking may take besides the model ("512MB").

        Raises:
            RequestError, ContextLengthError: as `generate`.
            MemoryPlanError: so many tokens cannot be looked into within the budget.
        """
        from pellucid.probes.inspect import inspect

        return inspect(self, prompt, params, level=level, budget=budget)

    def receipt(self, result: RequestOutput, params: SamplingParams, index: int = 0) -> dict[str, Any]:
        """All that an answer depends on, ready for JSON: `pellucid replay` runs it anew and compares every bit.

        Args:
            result: of a call with logprobs=0 or more.
            params: those that it was asked with.
            index: which of its answers.
        """
        from pellucid.probes.receipt import receipt_of

        return receipt_of(self, result, params, index)

    def run_with_cache(
        self,
        prompt: Prompt | Sequence[Message],
        names_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        *,
        positions: Sequence[int] | None = None,
        budget: int | str = "512MB",
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """Logits (tokens, vocab) of one forward, and the named values, each (tokens, *shape).

        Args:
            names_filter: names as TransformerLens has them (`*` stands for anything), or a function that chooses; None:
                all. Attention scores and patterns are (heads, tokens, keys).
            positions: rows that are kept; None: all.
            budget: bytes; more is an error, never a swap.
        """
        from pellucid.probes.inspect import run_with_cache

        return run_with_cache(self, prompt, names_filter, positions=positions, budget=budget)

    def run_with_hooks(
        self,
        prompt: Prompt | Sequence[Message],
        fwd_hooks: Sequence[tuple[str, Callable[[NDArray[np.float32], str], NDArray[np.float32] | None]]],
        *,
        budget: int | str = "512MB",
    ) -> NDArray[np.float32]:
        """Logits (tokens, vocab) of a fork in which hooks may change values.

        Args:
            fwd_hooks: (name, function); the function gets (rows, *shape) and the name, chunk by chunk, and may write to
                the array or return another. The served requests are not touched.
        """
        from pellucid.probes.inspect import run_with_hooks

        return run_with_hooks(self, prompt, fwd_hooks, budget=budget)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text. Spellings of control tokens are text unless `parse_special`."""
        _require_text(text)
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def check_text(self, text: str) -> None:
        """Raise ContextLengthError for a text that cannot fit the context, whatever its tokens are."""
        self.tokenizer.check_fits(text, self.device.context)

    def tokenize_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Token ids of a conversation as the model's template writes it, the beginning of an answer included."""
        return self._of_chat(messages, tools)[1]

    def room(self, prompt_tokens: int, most: int = DEFAULT_MAX_TOKENS) -> int:
        """Tokens that an answer to such a prompt may have: what the context leaves, at most `most`, at least 1."""
        return max(1, min(most, self.device.context - prompt_tokens))

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        _require_ids(ids)
        self._check_ids(ids)
        return self.tokenizer.decode(ids, skip_special=skip_special)

    # -- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the model go. Calls that still run in other threads end early, with finish_reason "abort"."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
        if self._worker is not None:
            self._end()
        if self.checkpoint is not None:
            self.checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.name!r}, threads={self.config.threads}, ctx={self.config.ctx}, kv={self.config.kv!r})"

    # -- from prompts to answers -----------------------------------------------------------------------------------

    def _of_prompt(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            self.check_text(prompt)
            text, ids = prompt, self.tokenizer.encode(prompt)
        else:
            _require_ids(prompt)
            text, ids = None, list(prompt)
            self._check_ids(ids)
        if not ids:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        return text, ids

    def _of_chat(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> tuple[str, list[int]]:
        from pellucid.text.chat import encode_rendered

        if self.template.source is None:
            raise RequestError(
                f"{self.name} has no chat template, so it cannot chat; use generate() or stream() with text",
                param="messages",
            )
        rendered = self.template.render(
            [_message(place, message) for place, message in enumerate(_conversation(messages))],
            tools=None if tools is None else _tools(tools),
        )
        self.check_text(rendered.text)
        return rendered.text, encode_rendered(self.tokenizer, rendered)

    def _check_ids(self, ids: Sequence[object]) -> None:
        size = self.tokenizer.vocab_size
        for place, token in enumerate(ids):
            if type(token) is not int or not 0 <= token < size:
                raise RequestError(
                    f"token {place} of the prompt is {token!r}; token ids are whole numbers from 0 to {size - 1}",
                    param="prompt",
                )

    def _answer(self, text: str | None, ids: list[int], params: SamplingParams | None) -> Answer:
        from pellucid.answers import Answer

        if params is not None and not isinstance(params, SamplingParams):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"params={params!r} is not a SamplingParams", param="params")
        if params is None:
            params = replace(DEFAULT_PARAMS, max_tokens=self.room(len(ids)))
        seed = next((s for s in (params.seed, self.config.seed) if s is not None), None)
        if seed is None:
            seed = secrets.randbits(53)
        return Answer(self.tokenizer, text, ids, self.spell(params), seed, self.matcher(params))

    def _complete(
        self, prompts: list[tuple[str | None, list[int]]], params: Params | None, progress: bool | None
    ) -> list[RequestOutput]:
        each = _params(params, len(prompts))
        answers = [self._answer(text, ids, one) for (text, ids), one in zip(prompts, each, strict=True)]
        self._run(answers, progress)
        return [answer.output for answer in answers]

    def _run(self, answers: Sequence[Answer], progress: bool | None) -> None:
        """Have all answers end."""
        show = _shown(progress) if progress is not None or len(answers) > 1 else False
        with self._running(answers) as step, _bar(len(answers), show) as tick:
            done = 0
            while done < len(answers):
                done += sum(answer.output.finished for answer in step())
                if show:
                    tick(done, sum(answer.generated for answer in answers))

    def _vector(self, answer: Answer, dimensions: int | None) -> NDArray[np.float32]:
        [seq] = answer.sequences
        if answer.output.error is not None or seq.pooling is None:
            raise EngineError(f"the text could not be embedded: {answer.output.error}")
        return seq.pooling.vector(dimensions)

    def _stream(self, answer: Answer) -> Generator[Chunk, None, RequestOutput]:
        with self._running([answer]) as step:
            while not answer.output.finished:
                step()
                yield from answer.chunks()
        return answer.output

    @contextmanager
    def _running(self, answers: Sequence[Answer]) -> Generator[Callable[[], Iterable[Answer]]]:
        """Have the answers' sequences computed, as many at a time as the engine takes.

        The value waits for the next events, takes them in and returns the answers they were for.
        """
        worker = self.worker
        todo = deque((answer, seq) for answer in answers for seq in answer.sequences)
        for _, seq in todo:
            self.engine.check(seq)
        inbox: SimpleQueue[list[Event]] = SimpleQueue()
        live: dict[str, Answer] = {}
        most = self.config.max_seqs + min(self.config.max_queue, self.config.max_seqs)

        def step() -> Iterable[Answer]:
            while todo and len(live) < most:
                answer, seq = todo[0]
                live[seq.id] = answer
                try:
                    worker.submit(seq, inbox.put)
                except CapacityError:
                    del live[seq.id]
                    if not live:
                        raise
                    break
                todo.popleft()
            touched: dict[int, Answer] = {}
            for event in _next(inbox, worker):
                answer = live.get(event.seq.id)
                if answer is not None:
                    touched[id(answer)] = answer
                    if answer.take(event):
                        del live[event.seq.id]
                        worker.abort(event.seq.id)  # has ended already, unless a stop string was met
            return touched.values()

        try:
            yield step
        finally:
            for seq_id in live:
                worker.abort(seq_id)


def _next(inbox: SimpleQueue[list[Event]], worker: Worker) -> list[Event]:
    """All events that are there; wait for some if there are none."""
    while True:
        try:
            events = inbox.get(timeout=1.0)
            break
        except Empty:
            if not worker.alive:
                raise EngineError("the engine has stopped, so this call cannot end; make a new LLM") from None
    while not inbox.empty():
        events = events + inbox.get()
    return events


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, list | tuple) and prompts and isinstance(prompts[0], int):
        return [cast("Sequence[int]", prompts)]
    if not isinstance(prompts, list | tuple):
        raise RequestError(
            f"prompts is {_kind(prompts)}; give text, a list of token ids, or a list of these", param="prompt"
        )
    return list(cast("Sequence[Prompt]", prompts))


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _require_text(text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"the text is {_kind(text)}; give a str", param="prompt")


def _require_ids(ids: object) -> None:
    if isinstance(ids, str | bytes | bytearray | memoryview) or not isinstance(ids, Sequence):
        raise RequestError(
            f"the prompt is {_kind(cast(object, ids))}; give text (str) or a list of token ids", param="prompt"
        )


def _conversation(messages: object) -> Sequence[object]:
    if not isinstance(messages, list | tuple):
        raise RequestError(
            f'messages is {_kind(messages)}; give a list of {{"role": ..., "content": ...}}', param="messages"
        )
    return cast("Sequence[object]", messages)


def _message(place: int, message: object) -> dict[str, Any]:
    """A message as templates know it."""
    if not isinstance(message, Mapping):
        raise RequestError(f"message {place} is {_kind(message)}; give a dict with role and content", param="messages")
    out = dict(cast("Mapping[str, Any]", message))
    if out.get("role") not in ROLES:
        raise RequestError(
            f"message {place} has role {out.get('role')!r}; give one of {', '.join(ROLES)}", param="messages"
        )
    if out["role"] == "developer":
        out["role"] = "system"
    content = out.get("content")
    if not isinstance(content, str | list) and not (content is None and out.get("tool_calls")):
        raise RequestError(f"message {place} has content that is {_kind(content)}; give text", param="messages")
    return out


def _tools(tools: object) -> list[dict[str, Any]]:
    rows = cast("list[Any] | tuple[Any, ...]", tools) if isinstance(tools, list | tuple) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        raise RequestError("tools must be a list of JSON schemas (dicts)", param="tools")
    return [dict(row) for row in rows]


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if not _conversation(messages):
        raise RequestError("messages is empty; give at least one", param="messages")
    if isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return list(cast("Sequence[Sequence[Message]]", messages))


def _params(params: Params | None, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, list | tuple):
        raise RequestError(f"params={params!r} is not a SamplingParams, or a list of them", param="params")
    if len(params) != count:
        raise RequestError(
            f"{len(params)} sampling parameters for {count} prompts; give one, or one for each", param="params"
        )
    return list(params)


def _require_room(checkpoint: Checkpoint, config: EngineConfig) -> None:
    """Refuse, before anything is loaded, what the machine has no memory for."""
    from pellucid.devices.ledger import require_room
    from pellucid.models.decoder import decoder_graph

    require_room(checkpoint, decoder_graph(checkpoint.spec), config, file_bytes=checkpoint.nbytes)


def _check_size(tokenizer: Tokenizer, vocab: int, given: os.PathLike[str] | None) -> None:
    """Refuse a vocabulary of another model. A few added tokens may have no row: no text becomes one of them unasked."""
    plain = tokenizer.vocab_size - len(tokenizer.added)
    if given is not None and plain > vocab:
        raise ConfigError(
            f"{os.fspath(given)} has {plain} tokens, but the model has rows for {vocab}; it belongs to another model",
            param="tokenizer",
        )


def _shown(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


@contextmanager
def _loading(total: int, show: bool) -> Generator[Callable[[int], None] | None]:
    """A bar on stderr while so many bytes of weights are loaded; small models are there before it would be."""
    if not show or total < 256 << 20 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    with Progress(
        TextColumn("loading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda nbytes: bar.advance(task, nbytes)


@contextmanager
def _bar(total: int, show: bool) -> Generator[Callable[[int, int], None]]:
    """A bar on stderr; the value sets prompts done and tokens generated."""
    if not show:
        yield lambda done, tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=total, rate="")

        def tick(done: int, tokens: int) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(task, completed=done, rate=f"{tokens / elapsed:.0f} tok/s" if elapsed > 0 else "")

        yield tick
