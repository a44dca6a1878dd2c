"""Private streams: what an observer sees of two answers is the same, and clients read them as ever."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from pellucid.sampling.params import SamplingParams
from pellucid.server.choices import Piece
from pellucid.server.private import BLOCK, SCORED, TICK
from pellucid.server.records import Records
from pellucid.server.shapes import CompletionShape
from pellucid.server.stream import Answer
from pellucid.server.waste import Wasted
from serving import Live, running
from toymodel import toy_llm

SHORT_TOKENS = [(0.003, "a")] * 300
LONG_TOKENS = [(0.09, "internationalization ")] * 10
UNEVEN = [(0.25, "no"), (0.01, "nsense" * 20), (0.3, "."), (0.34, "")]


class Hurried(asyncio.SelectorEventLoop):
    """A loop whose time passes only while it would sleep, and then exactly as long as it would."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(selectors.DefaultSelector())
        select = self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None = None) -> Any:
            found = select(0)
            if not found and timeout:
                self.now += timeout
            return found

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


def seen(tokens: list[tuple[float, str]], *, private: bool, logprobs: int | None = None) -> list[tuple[float, int]]:
    """When each packet of an answer left, and its size; and that it holds the whole answer."""
    loop = Hurried()
    packets: list[tuple[float, int]] = []
    body = b""

    async def steps() -> AsyncIterator[list[Piece]]:
        for i, (seconds, text) in enumerate(tokens):
            await asyncio.sleep(seconds)
            yield [Piece(0, text, finish_reason="stop" if i + 1 == len(tokens) else None)]

    async def send(message: Any) -> None:
        nonlocal body
        if message["type"] == "http.response.body" and message["body"]:
            packets.append((loop.time(), len(message["body"])))
            body += message["body"]

    async def receive() -> Any:
        await asyncio.sleep(3600)

    service = SimpleNamespace(
        private_stream=False, start=lambda g: None, close=lambda g: None, records=Records(), wasted=Wasted()
    )
    params = SamplingParams(logprobs=logprobs)
    usage = {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    seq = SimpleNamespace(id=1, priority=0, salt="", pooling=None, first_token_at=None, finished_at=None)
    choice = SimpleNamespace(seq=seq, generated=0, finish_reason="stop", stop_reason=None)
    generation: Any = SimpleNamespace(
        id="x",
        steps=steps,
        usage=lambda: usage,
        params=params,
        choices=[choice],
        prompts=[],
        reads=None,
        shown=False,
        began=0.0,
    )
    shape: Any = CompletionShape("x", 0, "toy", [], tokenizer=None, top=None)  # type: ignore[arg-type]
    answer = Answer(service, generation, shape, stream=True, private=private)  # type: ignore[arg-type]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(answer({"type": "http", "path": "/", "request_id": "x"}, receive, send))
    events = [e for e in body.decode().split("\n\n") if e.startswith("data: {")]
    text = "".join(httpx.Response(200, text=event[6:]).json()["choices"][0]["text"] for event in events)
    assert text == "".join(text for _, text in tokens) and body.decode().count("data: [DONE]\n\n") == 1
    return packets


def test_two_answers_cannot_be_told_apart() -> None:
    one, two, three = (seen(tokens, private=True) for tokens in (SHORT_TOKENS, LONG_TOKENS, UNEVEN))
    for packets in (one, two, three):
        assert {size for _, size in packets} == {BLOCK}
        ticks = [when / TICK for when, _ in packets]
        assert ticks == pytest.approx([round(tick) for tick in ticks], abs=1e-6)
        assert [round(b - a) for a, b in pairwise(ticks)] == [1] * (len(ticks) - 1)
    assert one[: len(two)] == two[: len(one)] and abs(len(one) - len(two)) <= 1
    assert seen(SHORT_TOKENS, private=False) != seen(LONG_TOKENS, private=False)  # else this test shows nothing


def test_what_does_not_fit_a_block_waits_for_the_next() -> None:
    packets = seen([(0.01, "x" * 5000), (0.01, "y")], private=True)
    assert {size for _, size in packets} == {BLOCK} and len(packets) >= 6
    assert {size for _, size in seen(UNEVEN, private=True, logprobs=1)} == {SCORED}


@pytest.fixture(scope="module")
def private() -> Iterator[Live]:
    with toy_llm() as llm, running(llm, private_stream=True) as live:
        yield live


def chunks(live: Live, path: str, body: dict[str, Any]) -> list[int]:
    """Sizes of the chunks of a stream as they stand on the wire."""
    content = httpx.Request("POST", live.url, json=body | {"stream": True}).read()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer = live.raw(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    _, _, rest = answer.partition(b"\r\n\r\n")
    sizes: list[int] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        sizes.append(int(size, 16))
        rest = rest[sizes[-1] + 2 :]
    assert sizes.pop() == 0
    return sizes


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
def test_every_stream_of_the_server_is_private(private: Live, live: Live, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "prompt": "a>"}
    if path == "responses":
        body = {"input": "a"}
    elif path != "completions":
        body = {"max_tokens": 20, "messages": [{"role": "user", "content": "a"}]}
    assert set(chunks(private, f"/v1/{path}", body)) == {BLOCK}
    asked = body | {"stream_options": {"include_obfuscation": True}}
    assert set(chunks(live, f"/v1/{path}", asked)) == {BLOCK}
    assert len(set(chunks(live, f"/v1/{path}", body))) > 1


def test_a_size_for_all_choices(private: Live) -> None:
    body = {"prompt": ["a>", "b>"], "n": 2, "max_tokens": 20, "logprobs": 3, "temperature": 0}
    assert set(chunks(private, "/v1/completions", body)) == {4 * SCORED}


def test_clients_read_it(private: Live) -> None:
    user: Any = [{"role": "user", "content": "a"}]
    client = openai.OpenAI(base_url=private.url + "/v1", api_key="any")
    stream = client.chat.completions.create(model="toy", messages=user, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "apples and pears"
    with client.responses.stream(model="toy", input="a", temperature=0) as events:
        assert [event.type for event in events][-1] == "response.completed"
        assert events.get_final_response().output_text == "apples and pears"
    claude = anthropic.Anthropic(base_url=private.url, api_key="any")
    with claude.messages.stream(model="toy", messages=user, max_tokens=50, extra_body={"temperature": 0}) as message:
        assert "".join(message.text_stream) == "apples and pears"
    private.settles()


def test_errors_keep_their_status_and_leaving_ends_the_work(private: Live) -> None:
    assert private.post("/v1/completions", {"prompt": "a" * 600, "stream": True}).status_code == 400
    with private.http.stream("POST", "/v1/completions", json={"prompt": "l>", "stream": True, "max_tokens": 400}) as s:
        next(s.iter_raw())
    private.settles()
