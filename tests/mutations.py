"""Opens mutated model files in a process of its own and reports what became of them (tests/attacks/test_mutations.py).

    python tests/mutations.py gguf SEED COUNT      mutations of a sound GGUF file
    python tests/mutations.py hf SEED COUNT        of the files of a sound Hugging Face folder
    python tests/mutations.py heavy NAME           a file made to cost memory (HEAVY)

Prints one JSON object ("memory": peak growth as a share of 2 x file + 64 MiB). Each mutation must open, or be refused
by an error of one clear line; anything else is listed under "bad".
"""

from __future__ import annotations

import json
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import rawgguf
import tinyfiles
from pellucid.checkpoint import open_checkpoint
from pellucid.errors import PellucidError

ABSURD = [
    0,
    1,
    31,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 60,
    (1 << 61) + 1,
    1 << 63,
    (1 << 64) - 1,
]
SHARD, INDEX = "model-00001-of-00002.safetensors", "model.safetensors.index.json"
TESTS = Path(__file__).parent
SPACE = 512 << 20
"""Address space a mutation may add, in bytes; more is a MemoryError, which is reported as bad."""


def mutate(rng: random.Random, data: bytes, header: int) -> tuple[str, bytes]:
    """One mutation, three times in four within the first `header` bytes."""
    out = bytearray(data)
    at = rng.randrange(min(header, len(data)) if rng.random() < 0.75 else len(data))
    kind = rng.choice(["cut", "flip", "flips", "integer", "integer", "digits", "drop", "repeat", "noise", "swap"])
    if kind == "cut":
        del out[at:]
    elif kind == "flip":
        out[at] ^= 1 << rng.randrange(8)
    elif kind == "flips":
        for _ in range(rng.randrange(2, 12)):
            out[rng.randrange(min(header, len(out)))] ^= 1 << rng.randrange(8)
    elif kind == "integer":
        raw = struct.pack("<Q", rng.choice(ABSURD))[: rng.choice([4, 8])]
        out[at : at + len(raw)] = raw
    elif kind == "digits":  # of JSON: another number where one stands
        places = [i for i in range(min(header, len(out))) if chr(out[i]).isdigit()]
        if places:
            i = rng.choice(places)
            out[i : i + 1] = str(rng.choice([*ABSURD, -1, 1e308, "1" * 5000, "null", '"x"', "[[]]"])).encode()
    elif kind == "drop":
        del out[at : at + rng.randrange(1, 64)]
    elif kind == "repeat":
        out[at:at] = out[at : at + rng.randrange(1, 256)]
    elif kind == "noise":
        out[at : at + 16] = rng.randbytes(rng.randrange(1, 32))
    else:
        other = rng.randrange(len(out))
        n = rng.randrange(1, 32)
        out[at : at + n] = data[other : other + n]
    return kind, bytes(out)


def attempt(path: Path) -> str:
    """Open and read every weight; the outcome."""
    try:
        with open_checkpoint(path) as c:
            for w in c.weights():
                w.to_float32()
                c.release(w)
        return "opened"
    except PellucidError as e:
        message = str(e)
        if not message.isprintable() or not 10 < len(message) < 700:
            return f"bad: the message {message!r}"
        return type(e).__name__
    except BaseException as e:
        return f"bad: {type(e).__name__}: {e}"


def too_long(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("more than 10 s")


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def strings(size: int) -> bytes:
    """As many short strings of wide characters as a file of `size` bytes may hold."""
    text = "\U0001f600abcdefgh"
    count = min((1 << 18) + size // 64, ((8 << 20) + size // 8) // len(text.encode())) - 100
    f = rawgguf.valid()
    f.more_keys.append(("x", struct.pack("<IIQ", rawgguf.ARRAY, rawgguf.STRING, count) + rawgguf.string(text) * count))
    return f.bytes() + bytes(max(0, size - 20 * count))


def long_string(size: int) -> bytes:
    f = rawgguf.valid()
    f.more_keys.append(("x", rawgguf.scalar(rawgguf.STRING, "\U0001f600" + "a" * (min(size, 8 << 20) - 10000))))
    return f.bytes()


def keys() -> bytes:
    f = rawgguf.valid()
    f.more_keys += [(f"k{i}", rawgguf.scalar(rawgguf.U8, i % 256)) for i in range(16000)]
    return f.bytes()


def tensors() -> bytes:
    f = rawgguf.valid()
    f.more_tensors += [(f"t{i}", rawgguf.RawTensor((1,), 0, bytes(4))) for i in range(16000)]
    return f.bytes()


def shard(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


HEAVY: dict[str, tuple[str, Callable[[], bytes]]] = {
    "strings-1MiB": ("m.gguf", lambda: strings(1 << 20)),
    "strings-8MiB": ("m.gguf", lambda: strings(8 << 20)),
    "strings-32MiB": ("m.gguf", lambda: strings(32 << 20)),
    "long-string": ("m.gguf", lambda: long_string(16 << 20)),
    "keys": ("m.gguf", keys),
    "tensors": ("m.gguf", tensors),
    "json-tables": (SHARD, lambda: shard(b'{"a":[' + b'{"a":0},' * 40_000 + b"{}]}")),
    "json-lists": (SHARD, lambda: shard(b'{"a":[' + b"[]," * 65_000 + b"[]]}")),
    "json-keys": (SHARD, lambda: shard(("{" + ",".join(f'"{i}":0.5' for i in range(130_000)) + "}").encode())),
    "json-wide-string": (SHARD, lambda: shard(('{"\U0001f600' + "a" * ((4 << 20) - 100) + '":1}').encode()[: 4 << 20])),
    "json-unclosed": (SHARD, lambda: shard(b'{"' + b'\\"' * ((2 << 20) - 100))),
    "index-keys": (INDEX, lambda: ("{" + ",".join(f'"{i}":0.5' for i in range(130_000)) + "}").encode()),
    "tokenizer": ("tokenizer.json", lambda: b'{"added_tokens":[' + b"{}," * 40_000 + b"{}]}"),
}
"""Files near the limits of what a header may hold: where each stands, and what makes it."""


def main(kind: str, what: str, count: int) -> None:
    outcomes: Counter[str] = Counter()
    bad: list[str] = []
    slowest = 0.0
    largest = 0
    rng = random.Random(what)
    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as tmp:
        folder = tinyfiles.write_hf(Path(tmp) / "m", rawgguf.SPEC, tinyfiles.weights(rawgguf.SPEC), shards=2)
        sound = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
        model = Path(tmp) / "m.gguf"
        whole = rawgguf.valid().bytes()
        model.write_bytes(whole)
        for path in (model, folder):
            if (outcome := attempt(path)) != "opened":
                bad.append(f"the sound {path.name}: {outcome}")
        if kind == "heavy":
            code = "import sys, mutations; sys.stdout.buffer.write(mutations.HEAVY[sys.argv[1]][1]())"
            made = subprocess.run(
                [sys.executable, "-c", code, what], check=True, stdout=subprocess.PIPE, cwd=TESTS
            ).stdout
            (Path(tmp) / "heavy").write_bytes(made)
            del made
        if sys.platform == "linux":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, used + SPACE))
        before = peak()
        for i in range(count):
            label, data = what, b""
            name = HEAVY[what][0] if kind == "heavy" else "m.gguf" if kind == "gguf" else rng.choice(list(sound))
            if kind != "heavy":
                label, data = mutate(rng, sound.get(name, whole), 1700)
            target = model if name == "m.gguf" else folder / name
            target.unlink()
            if kind == "heavy":
                (Path(tmp) / "heavy").rename(target)
            else:
                target.write_bytes(data)
            largest = max(largest, target.stat().st_size)
            signal.alarm(10)
            start = time.process_time()
            outcome = attempt(model if kind == "gguf" or target is model else folder)
            slowest = max(slowest, time.process_time() - start)
            signal.alarm(0)
            if outcome.startswith("bad"):
                bad.append(f"mutation {i} of {what} ({label} of {name}): {outcome}")
            outcomes[outcome.split(":")[0]] += 1
            if name in sound:
                target.write_bytes(sound[name])
        memory = (peak() - before) / (2 * largest + (64 << 20))
    print(json.dumps({"outcomes": outcomes, "bad": bad[:20], "slowest": slowest, "memory": memory}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)
