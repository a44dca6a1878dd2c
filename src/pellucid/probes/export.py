"""Exports: a trace as files that others open.

Law: each file is in a format of its own field and says what it holds; what is long is written line by line, so that
what was cut off can still be read. A trace is a folder, or a .zip of it:

    manifest.json            what was run, and how
    events.jsonl             what the engine did, a line an event
    tokens.jsonl             a line a token; tokens.parquet too, where pyarrow is there
    activations.safetensors  norms, metrics of heads, and the values that were asked for; keys are their names
    trace.json               for https://ui.perfetto.dev
    receipt.json             to have the answer again, where there is one
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pellucid import __version__
from pellucid.errors import ModelFileError, RequestError
from pellucid.probes.attention import HeadMetrics
from pellucid.probes.lens import Norms, TokenScores
from pellucid.probes.receipt import params_as_dict, params_of
from pellucid.probes.trace import Trace

if TYPE_CHECKING:
    from pellucid.probes.recorder import Event

SCHEMA = 1
F32 = NDArray[np.float32]
MOST_BYTES = 4 << 30
"""Of one member that is read."""


def save(
    trace: Trace, path: str | Path, *, names: Sequence[str] = (), receipt: Mapping[str, Any] | None = None
) -> Path:
    """Write a trace to a folder, made if need be, or to a .zip.

    Args:
        names: values that are computed and written as well (* stands for anything).
        receipt: as probes.receipt.receipt_of gives it.

    Raises RequestError: the place is taken or cannot be written, or a name is none.
    """
    where = Path(path)
    if where.exists() and (where.is_file() or any(where.iterdir())):
        raise RequestError(f"{where} is there already; choose another place")
    files = members(trace, names=names, receipt=receipt)
    try:
        if where.suffix == ".zip":
            with zipfile.ZipFile(where, "x", zipfile.ZIP_DEFLATED) as archive:
                for name, data in files.items():
                    archive.writestr(name, data)
        else:
            where.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                (where / name).write_bytes(data)
    except OSError as error:
        raise RequestError(f"{where} cannot be written: {error.strerror}") from None
    return where


def members(trace: Trace, *, names: Sequence[str] = (), receipt: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """The files of a trace, by name."""
    tensors = tensors_of(trace)
    if names:
        tensors |= trace.activations(list(names))
    rows = token_rows(trace)
    manifest = {
        "pellucid_trace": SCHEMA,
        "version": __version__,
        "model": trace.model,
        "prompt_len": trace.prompt_len,
        "seed": trace.seed,
        "choice": trace.choice,
        "params": params_as_dict(trace.params),
        "end_ids": list(trace.end_ids),
        "delta": trace.delta,
        "dropped": trace.dropped,
        "tensors": {name: list(value.shape) for name, value in tensors.items()},
    }
    files = {
        "manifest.json": json.dumps(manifest, indent=1).encode(),
        "events.jsonl": _lines(trace.events),
        "tokens.jsonl": _lines(rows),
        "activations.safetensors": safetensors(tensors),
        "trace.json": json.dumps(perfetto(trace)).encode(),
    }
    table = parquet(rows)
    if table is not None:
        files["tokens.parquet"] = table
    if receipt is not None:
        files["receipt.json"] = json.dumps(receipt, indent=1).encode()
    return files


def token_rows(trace: Trace) -> list[dict[str, Any]]:
    """A row for each token."""
    rows: list[dict[str, Any]] = []
    for i, (id, piece) in enumerate(zip(trace.ids, trace.pieces, strict=True)):
        answer = i - trace.prompt_len
        rows.append(
            {
                "pos": i,
                "id": id,
                "text": piece.decode("utf-8", "replace"),
                "bytes": piece.hex(),
                "part": "prompt" if answer < 0 else "answer",
                "logprob": float(trace.scores.logprobs[i - 1]) if i else None,
                "rank": int(trace.scores.ranks[i - 1]) if i else None,
                "entropy": float(trace.scores.entropies[i - 1]) if i else None,
                "live_logprob": trace.live[answer] if answer >= 0 else None,
                "top_ids": [t for t, _ in trace.scores.top[i - 1]] if i else [],
                "top_logprobs": [p for _, p in trace.scores.top[i - 1]] if i else [],
            }
        )
    return rows


def tensors_of(trace: Trace) -> dict[str, F32]:
    """Norms and metrics of heads, as far as they were computed."""
    out: dict[str, F32] = {}
    if trace.norms is not None:
        out |= {f"norms.{k}": np.asarray(getattr(trace.norms, k), np.float32) for k in ("attn", "mlp", "resid")}
    if trace.heads is not None:
        out |= {f"heads.{k}": v.astype(np.float32) for k, v in trace.heads.values.items()}
    return out


def safetensors(tensors: Mapping[str, F32]) -> bytes:
    """Bytes of a safetensors file: the length of a header, the header (JSON), the data."""
    header: dict[str, Any] = {"__metadata__": {"pellucid": __version__}}
    at = 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + 4 * value.size]}
        at += 4 * value.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out = io.BytesIO()
    out.write(len(text).to_bytes(8, "little"))
    out.write(text)
    for value in tensors.values():
        out.write(np.ascontiguousarray(value, np.float32).tobytes())
    return out.getvalue()


def parquet(rows: list[dict[str, Any]]) -> bytes | None:
    """Bytes of a Parquet file of the rows; None where pyarrow is not installed (pip install 'pellucid[export]')."""
    try:
        pa: Any = import_module("pyarrow")
        pq: Any = import_module("pyarrow.parquet")
    except ImportError:
        return None
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue())


def perfetto(trace: Trace) -> dict[str, Any]:
    """Trace events (the JSON that Perfetto and Chrome read): the engine's steps on one track, the request on another,
    joined by arrows, with counters. Times are in microseconds, of whole nanoseconds, which is what Perfetto keeps: a
    step so never overlaps the next."""
    engine, request = {"pid": 1, "tid": 1}, {"pid": 1, "tid": 2}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"pellucid {trace.model}"}},
        {"ph": "M", "name": "thread_name", **engine, "args": {"name": "engine steps"}},
        {"ph": "M", "name": "thread_name", **request, "args": {"name": "request"}},
    ]
    times = [round(event["at"] * 1e9) for event in trace.events]
    for i, event in enumerate(trace.events):
        at, args = times[i] / 1e3, {k: v for k, v in event.items() if k not in ("at", "point")}
        if event["point"] != "schedule":
            events.append({"ph": "i", "s": "t", "name": event["point"], "ts": at, **request, "args": args})
            continue
        length = max(1, times[i + 1] - times[i]) / 1e3 if i + 1 < len(times) else 1.0
        step = event.get("step", i)
        first = int(event["position"])
        kind = (
            "prefill" if first + int(event["rows"]) <= trace.prompt_len and first < trace.prompt_len - 1 else "decode"
        )
        events.append({"ph": "X", "name": f"step {step}", "ts": at, "dur": length, **engine, "args": args})
        events.append({"ph": "X", "name": kind, "ts": at, "dur": length, **request, "args": args})
        events.append({"ph": "s", "id": i, "name": "rows", "cat": "rows", "ts": at, **request})
        events.append({"ph": "f", "bp": "e", "id": i, "name": "rows", "cat": "rows", "ts": at, **engine})
        counters = {"rows": "batch_rows", "pages": "pages_used", "running": "running", "waiting": "waiting"}
        for name, key in counters.items():
            if key in event:
                events.append({"ph": "C", "name": name, "ts": at, "pid": 1, "args": {name: event[key]}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def load(path: str | Path) -> Trace:
    """Read a trace that `save` wrote. Raises ModelFileError: it is none, or broken."""
    where = Path(path)
    try:
        manifest = json.loads(_read(where, "manifest.json"))
        if manifest.get("pellucid_trace") != SCHEMA:
            raise ModelFileError(f"{where} is no trace of schema {SCHEMA}")
        rows = [json.loads(line) for line in _read(where, "tokens.jsonl").splitlines()]
        events: list[Event] = [json.loads(line) for line in _read(where, "events.jsonl").splitlines()]
        tensors = _tensors(_read(where, "activations.safetensors"))
        later = rows[1:]
        scores = TokenScores(
            np.array([r["logprob"] for r in later], np.float64),
            np.array([r["rank"] for r in later], np.int64),
            np.array([r["entropy"] for r in later], np.float64),
            [list(zip(r["top_ids"], r["top_logprobs"], strict=True)) for r in later],
        )
        norms = heads = None
        if "norms.attn" in tensors:
            norms = Norms(*(tensors[f"norms.{k}"].astype(np.float64) for k in ("attn", "mlp", "resid")))
        metrics = {k.removeprefix("heads."): v.astype(np.float64) for k, v in tensors.items() if k.startswith("heads.")}
        if metrics:
            heads = HeadMetrics(metrics, {}, 1)
        return Trace(
            manifest["model"],
            [r["id"] for r in rows],
            manifest["prompt_len"],
            [bytes.fromhex(r["bytes"]) for r in rows],
            params_of(manifest["params"]),
            manifest["seed"],
            manifest["choice"],
            tuple(manifest["end_ids"]),
            scores,
            [r["live_logprob"] for r in rows[manifest["prompt_len"] :]],
            norms,
            heads,
            events=events,
            dropped=manifest["dropped"],
        )
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelFileError(f"{where} is no trace, or a broken one: {error!r}") from None


def _read(where: Path, name: str) -> bytes:
    try:
        if where.is_dir():
            return (where / name).read_bytes()
        with zipfile.ZipFile(where) as archive:
            if archive.getinfo(name).file_size > MOST_BYTES:
                raise ModelFileError(f"{name} in {where} is larger than {MOST_BYTES >> 30} GiB")
            return archive.read(name)
    except (OSError, KeyError, zipfile.BadZipFile, RuntimeError) as error:
        raise ModelFileError(f"{where} has no {name} that can be read: {error}") from None


def _tensors(data: bytes) -> dict[str, F32]:
    size = int.from_bytes(data[:8], "little")
    if not 0 < size <= len(data) - 8:
        raise ValueError("the header of activations.safetensors is longer than the file")
    header = json.loads(data[8 : 8 + size])
    out: dict[str, F32] = {}
    for name, entry in header.items():
        if name != "__metadata__" and name.startswith(("norms.", "heads.")):
            a, b = entry["data_offsets"]
            out[name] = np.frombuffer(data[8 + size + a : 8 + size + b], np.float32).reshape(entry["shape"])
    return out


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
