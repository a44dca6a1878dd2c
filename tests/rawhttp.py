"""Raw streams of bytes at a server: requests mutated, cut, slow, piled up, left. Each must end, and none with a 5xx.

Law: an attack is made of its number alone, so one that fails can be made again: python -c "import rawhttp; ...".
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time

BODY = json.dumps({"prompt": "a>", "max_tokens": 3}).encode()
STREAM = json.dumps({"prompt": "l>", "max_tokens": 60, "stream": True}).encode()
WAIT = 8.0
"""Seconds after which a connection is wedged; the server's own limits must be well below."""


def request(body: bytes, *headers: bytes, path: bytes = b"/v1/completions", close: bool = True) -> bytes:
    """A sound request."""
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers]
    lines += [b"Connection: close"] * close
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def chunked(rng: random.Random, body: bytes) -> bytes:
    """A request in chunks, some of whose sizes lie."""
    head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts: list[bytes] = []
    while body:
        size = rng.randint(1, 20)
        part, body = body[:size], body[size:]
        claim = len(part) if rng.random() < 0.9 else rng.choice([0, 1, 1 << 20, -1])
        parts.append(b"%x\r\n%s\r\n" % (claim, part) if claim >= 0 else b"zz\r\n" + part)
    return head + b"".join(parts) + b"0\r\n\r\n"


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A few bytes of it changed, gone, doubled or moved."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            out[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        elif kind == 1:
            out[at:at] = out[at : at + rng.randint(1, 64)]
        elif kind == 2:
            del out[at : at + rng.randint(1, 64)]
        else:
            out[at:at] = rng.choice([b"\r\n", b"\n", b"\0", b"\r\n\r\n", b"\xff\xfe", b": ", b"A" * 20000])
    return bytes(out)


def made(rng: random.Random) -> tuple[bytes, str]:
    """What an attack sends, and how it ends: read, leave, reset or half-close."""
    kind = rng.randrange(8)
    if kind <= 2:
        data = mutated(rng, request(rng.choice([BODY, STREAM])))
    elif kind == 3:
        data = chunked(rng, rng.choice([BODY, STREAM]))
    elif kind == 4:
        data = request(BODY, close=False) * rng.randint(1, 5) + request(BODY)
    elif kind == 5:
        whole = request(rng.choice([BODY, STREAM]))
        data = whole[: rng.randrange(len(whole))]
    elif kind == 6:
        data = rng.randbytes(rng.randint(0, 400))
    else:
        data = request(BODY, *[b"X-%d: %s" % (i, b"a" * rng.randint(0, 900)) for i in range(rng.randint(0, 40))])
    return data, rng.choice(["read", "read", "read", "leave", "reset", "half"])


def attack(port: int, number: int) -> str:
    """Make attack `number`; return what came of it. Raises AssertionError for a 5xx or a connection that hangs."""
    rng = random.Random(number)
    data, end = made(rng)
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as s:
        try:
            if rng.random() < 0.1:
                middle = rng.randrange(len(data) + 1)
                s.sendall(data[:middle])
                time.sleep(0.01)
                s.sendall(data[middle:])
            else:
                s.sendall(data)
            if end == "leave":
                return end
            if end == "reset":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return end
            if end == "half":
                s.shutdown(socket.SHUT_WR)
            while part := s.recv(65536):
                answer += part
        except TimeoutError:
            raise AssertionError(f"attack {number}: the connection hangs after {answer[:200]!r}") from None
        except OSError:  # closed, or reset, before all was sent
            pass
    if not answer:
        return "closed"
    assert answer.startswith(b"HTTP/1.1 "), (number, answer[:200])
    status = answer.split(b" ", 2)[1].decode()
    assert status[0] in "24", (number, answer[:500])
    return status
