"""A model of bytes that says what it is told to, so that tests of the API and the commands need no real one.

Law: token b is byte b; what follows the last `>` of a prompt is the script chosen by the prompt's first character; the
hidden state of a row is made of its token and its position. The device keeps tokens in pages as a real one keeps K and
V, so what comes out is right only if pages and positions are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pellucid.config import EngineConfig
from pellucid.devices.base import Batch, Tap
from pellucid.errors import RequestError
from pellucid.graph.hidden import HIDDEN
from pellucid.llm import LLM
from pellucid.models.tokens import CONTROL, NORMAL, TokenizerSource
from pellucid.text.chat import ChatTemplate
from pellucid.text.tokenizer import Tokenizer

BOS, EOS, USER, BOT = 256, 257, 258, 259
SPECIALS = ("<s>", "</s>", "<user>", "<bot>")
VOCAB = 260
D_MODEL = 24
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}<user>{% elif m.role == 'assistant' %}<bot>{% endif %}"
    "{{ m.content }}{% endfor %}<bot>"
)
SCRIPTS = {"a": "apples and pears", "b": "one. two. three.", "é": "né", "u": "über 🌧️ rain", "l": "x" * 2000}


def byte_pieces() -> list[str]:
    """The piece of each byte in the byte-to-unicode alphabet of byte-level BPE."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def source(template: str | None = TEMPLATE, controls: Sequence[str] = ()) -> TokenizerSource:
    pieces = [*byte_pieces(), *SPECIALS, *controls]
    return TokenizerSource(
        kind="bpe",
        pieces=pieces,
        types=np.array([NORMAL] * 256 + [CONTROL] * (len(pieces) - 256), np.int32),
        merges=[],
        pre="gpt-2",
        bos_id=BOS,
        eos_id=EOS,
        eot_ids=(EOS,),
        chat_template=template,
    )


class ScriptDevice:
    """Says the scripts. `fail_at` makes the step at that position raise; a script begins behind one of `behind`."""

    d_model = D_MODEL
    pool = None

    def __init__(
        self,
        config: EngineConfig,
        scripts: Mapping[str, str] = SCRIPTS,
        fail_at: int | None = None,
        controls: Sequence[str] = (),
        behind: Sequence[int] = (ord(">"), BOT),
    ) -> None:
        self.config = config
        self.vocab_size = VOCAB + len(controls)
        self.behind = behind
        self.context = config.ctx or 4096
        self.page_size = config.page_size
        self.page_count = config.kv_pages or 64
        self.max_rows = config.token_budget
        ids = {spelling: VOCAB + i for i, spelling in enumerate(controls)}
        self.scripts = {key.encode()[0]: script_ids(text, ids) for key, text in scripts.items()}
        self.fail_at = fail_at
        self.steps = 0
        self._store = np.full((self.page_count, self.page_size), -1, np.int32)

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "kv": self._store.nbytes, "scratch": 0}

    def run(self, batch: Batch) -> NDArray[np.float32]:
        self.steps += 1
        wanted = set(batch.logit_rows.tolist())
        out: list[NDArray[np.float32]] = []
        for s in range(len(batch.seq_starts) - 1):
            pages = batch.page_tables[s]
            for row in range(batch.seq_starts[s], batch.seq_starts[s + 1]):
                at = int(batch.positions[row])
                if at == self.fail_at:
                    raise RuntimeError("the toy device was told to fail here")
                self._store[pages[at // self.page_size], at % self.page_size] = batch.tokens[row]
                if row in wanted:
                    out.append(
                        self._logits(self._store[pages[: at // self.page_size + 1]].reshape(-1)[: at + 1].tolist())
                    )
        return np.stack(out) if out else np.empty((0, self.vocab_size), np.float32)

    def plan(self, taps: Sequence[Tap]) -> ScriptPlan:
        return ScriptPlan(self, taps)

    def _logits(self, tokens: list[int]) -> NDArray[np.float32]:
        mark = max((i for i, t in enumerate(tokens) if t in self.behind), default=-1)
        first = next((t for t in tokens if t < 256), ord("a"))
        script = self.scripts.get(first, [ord("?")])
        said = len(tokens) - 1 - mark
        following = script[said] if said < len(script) else EOS
        logits = -np.arange(self.vocab_size, dtype=np.float32) / 100
        logits[following] = 12.0
        return logits


def script_ids(text: str, controls: Mapping[str, int]) -> list[int]:
    """Ids of a script; control tokens are spelled in it."""
    ids: list[int] = []
    while text:
        spelling = next((spelling for spelling in controls if text.startswith(spelling)), "")
        ids += [controls[spelling]] if spelling else text[0].encode()
        text = text[len(spelling) or 1 :]
    return ids


class ScriptPlan:
    """Shows hidden states, and nothing else."""

    width = D_MODEL

    def __init__(self, device: ScriptDevice, taps: Sequence[Tap]) -> None:
        if any(tap != Tap(HIDDEN) for tap in taps):
            raise RequestError("the toy device shows hidden states only")
        self._device = device

    def run(self, batch: Batch, rows: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits = self._device.run(batch)
        return logits, hidden_states(batch.tokens[rows], batch.positions[rows])

    def of(self, seen: NDArray[np.float32], tap: Tap) -> NDArray[np.float32]:
        return seen


def hidden_states(tokens: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.float32]:
    """(rows, D_MODEL)."""
    return np.cos(np.outer(tokens + 1, np.arange(1, D_MODEL + 1)) + positions[:, None]).astype(np.float32)


def toy_llm(
    *,
    template: str | None = TEMPLATE,
    fail_at: int | None = None,
    name: str = "toy",
    scripts: Mapping[str, str] = SCRIPTS,
    controls: Sequence[str] = (),
    behind: Sequence[int] = (ord(">"), BOT),
    **options: object,
) -> LLM:
    """An LLM that says the scripts, with more control tokens; options are EngineConfig's."""
    config = replace(EngineConfig(threads=1, ctx=512, kv_pages=64), **options)  # type: ignore[arg-type]
    tokens = source(template, controls)
    tokenizer = Tokenizer.from_source(tokens)
    device = ScriptDevice(config, scripts, fail_at, controls, behind)
    return LLM.of(tokenizer, ChatTemplate.from_source(tokens, tokenizer), device, config, name)
