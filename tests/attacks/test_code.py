"""Code in model files, and ways to code in our own: nothing that is loaded is run, and nothing in the source could."""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pellucid
import tinyfiles
from pellucid.checkpoint import open_checkpoint
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.models.pull import resolve
from rawgguf import SPEC

TESTS = Path(__file__).parents[1]
SOURCE = Path(pellucid.__file__).parent


class Payload:
    """A pickle that makes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return Path.touch, (self.mark,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tinyfiles.write_hf(tmp_path / "model", SPEC, tinyfiles.weights(SPEC))


@pytest.mark.parametrize(
    "name", ["model.gguf", "model.safetensors", "pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"]
)
def test_a_pickle_is_never_read(name: str, tmp_path: Path, folder: Path) -> None:
    mark = tmp_path / "mark"
    bomb = pickle.dumps(Payload(mark))
    pickle.loads(bomb)
    assert mark.exists()  # the payload works
    mark.unlink()
    alone = tmp_path / name
    alone.write_bytes(bomb)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(bomb)
    for path in (alone, folder):
        with pytest.raises((ModelFileError, UnsupportedModelError)):
            open_checkpoint(resolve(str(path), progress=False))
    assert not mark.exists()


def test_code_beside_a_model_is_never_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"import pathlib; pathlib.Path({str(mark)!r}).touch()\nclass Model: pass\nclass Tokenizer: pass\n"
    for name in ("modeling_evil", "tokenization_evil", "configuration_evil", "setup", "conftest", "__init__", "json"):
        (folder / f"{name}.py").write_text(code)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        fields = json.loads((folder / name).read_text())
        fields["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Model", "AutoTokenizer": "tokenization_evil.T"}
        fields |= {"trust_remote_code": True, "custom_pipelines": {"x": {"impl": "modeling_evil.Model"}}}
        (folder / name).write_text(json.dumps(fields))
    known = set(sys.modules)
    open_checkpoint(folder).close()
    assert not mark.exists()
    assert not [name for name in set(sys.modules) - known if "evil" in name]


RUNS_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "code", "codeop"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
ATTRIBUTES = {("os", "system"), ("os", "popen"), ("yaml", "load"), ("torch", "load"), ("pty", "spawn")}


def faults(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (f"{where} imports {name}" for name in names if name.partition(".")[0] in RUNS_CODE)
        elif isinstance(node, ast.Assert):
            yield f"{where} asserts, which python -O leaves out"
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in CALLS:
                yield f"{where} calls {function.id}"
            if isinstance(function, ast.Attribute) and (ast.unparse(function.value), function.attr) in ATTRIBUTES:
                yield f"{where} calls {ast.unparse(function)}"
            for keyword in node.keywords:
                on = isinstance(keyword.value, ast.Constant) and keyword.value.value
                if on and keyword.arg in ("shell", "allow_pickle", "trust_remote_code"):
                    yield f"{where} sets {keyword.arg}"


def test_the_source_cannot_run_what_it_reads() -> None:
    files = list(SOURCE.rglob("*.py"))
    assert len(files) > 100
    assert [fault for path in files for fault in faults(path)] == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import pickle", 1),
        ("from dill import loads", 1),
        ("assert x", 1),
        ("eval(x)", 1),
        ("os.system(x)", 1),
        ("np.load(x, allow_pickle=True)", 1),
        ("run(x, shell=True)", 1),
        ("re.compile(x)", 0),
        ("np.load(x, allow_pickle=False)", 0),
    ],
)
def test_the_search_finds_what_it_looks_for(line: str, found: int, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(line)
    assert len(list(faults(tmp_path / "x.py"))) == found


def test_nothing_of_it_depends_on_asserts() -> None:
    """Hostile files, pages and keys under python -O, which leaves the product's asserts out (pytest's own stay)."""
    hard = ["attacks/test_gguf_files.py", "attacks/test_safetensors_files.py", "server/test_gate.py"]
    hard += ["kv/test_pages.py"]
    command = [
        sys.executable,
        "-O",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::pytest.PytestConfigWarning",
    ]
    env = os.environ | {"PYTHONPATH": f"{SOURCE.parent}{os.pathsep}{TESTS}"}
    done = subprocess.run([*command, *(str(TESTS / name) for name in hard)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
