"""Clients that die: each asks something, and is reset at a point of its own, from the connection to the answer's end.

Law: a client is made of its number alone, so one that does harm can be made again: killedclients.begin(port, number).
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WAIT = 60.0
"""Seconds after which a connection hangs."""
POINTS = {
    "before the headers": 1,
    "in the headers": 1,
    "in the body": 1,
    "before the answer": 2,
    "in the stream": 5,
    "in a second request's stream": 1,
}
"""Where a client dies → how often, in parts."""
TEXT = "The river ran past the mill and under the old stone bridge, where two boys were fishing for trout in the rain. "


def request(rng: random.Random, *, stream: bool) -> tuple[bytes, bytes]:
    """Headers and body of a request to one of the routes that generate."""
    prompt = TEXT * rng.randint(0, 3) + f"{rng.choice(['Then', 'But', 'And so'])} {rng.randrange(1000)}"
    user = [{"role": "user", "content": prompt}]
    path = rng.choice(["completions", "completions", "chat/completions", "responses", "messages"])
    fields: dict[str, Any] = {"stream": stream, "temperature": rng.choice([0, 1])}
    if path == "responses":
        fields |= {"input": prompt, "max_output_tokens": rng.randint(16, 200)}
    else:
        fields |= {"prompt": prompt} if path == "completions" else {"messages": user}
        fields |= {"max_tokens": rng.randint(8, 200)}
    if path.endswith("completions"):
        fields |= {"n": rng.choice([1, 1, 1, 3]), "seed": rng.randrange(9), "ignore_eos": rng.random() < 0.8}
        if path == "completions" and rng.random() < 0.2:
            fields |= {"logprobs": 2, "echo": rng.random() < 0.5}
    body = json.dumps(fields).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode(), body


def begin(port: int, number: int) -> tuple[str, socket.socket]:
    """Bring client `number` to the point where it is to die. Returns that point, and its connection.

    Raises AssertionError if the server does not answer in time, or with another status than 200.
    """
    rng = random.Random(number)
    point = rng.choices(list(POINTS), list(POINTS.values()))[0]
    s = socket.create_connection(("127.0.0.1", port), timeout=WAIT)
    head, body = request(rng, stream="stream" in point or rng.random() < 0.5)
    if point == "in the headers":
        s.sendall(head[: rng.randrange(1, len(head))])
    elif point == "in the body":
        s.sendall(head + body[: rng.randrange(len(body))])
    elif point != "before the headers":
        if point == "in a second request's stream":
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            read(s, number, b'{"status":"ok"}', 1)
        s.sendall(head + body)
        if "stream" in point:
            read(s, number, b"\ndata: ", rng.randint(1, 30))
    if "stream" not in point:
        time.sleep(rng.random() * 0.05)
    return point, s


def read(s: socket.socket, number: int, mark: bytes, times: int) -> None:
    """Read until `mark` has come so many times, or the answer is at its end."""
    found = b""
    try:
        while found.count(mark) < times and not found.endswith(b"\r\n0\r\n\r\n"):
            part = s.recv(1 << 16)
            assert part, f"client {number}: the connection was closed after {found[-200:]!r}"
            found += part
    except TimeoutError:
        raise AssertionError(f"client {number}: no answer in {WAIT:g} s after {found[-200:]!r}") from None
    assert found.startswith(b"HTTP/1.1 200 "), (number, found[:500])


def kill(s: socket.socket) -> None:
    """Reset a connection, as the system does for a process that was killed with an answer unread."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def killed_together(port: int, numbers: Iterable[int]) -> list[str]:
    """Bring some clients each to its point at once, then kill all in one moment. Returns the points."""
    numbers = list(numbers)
    with ThreadPoolExecutor(len(numbers)) as pool:
        clients = list(pool.map(lambda number: begin(port, number), numbers))
    for _, s in clients:
        kill(s)
    return [point for point, _ in clients]
