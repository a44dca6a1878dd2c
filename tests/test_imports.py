"""Who may import whom, as DESIGN.md says. What must not be in the source at all: tests/attacks/test_code.py.

Law: imports point down. An import under TYPE_CHECKING counts too: it ties the design as much as one that runs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pellucid

ROOT = Path(pellucid.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

BASE = {"errors", "config", "secret", "_core"}
PROBES = {"probes.points", "probes.hub", "probes.frames"}
MODEL = {*BASE, "formats", "graph", "models", "checkpoint"}
SERVING = {*MODEL, "kv", "devices", "text", "sampling", "engine", "probes"}
API = {*SERVING, "llm", "answers", "results"}
TOP = {*API, "quantize", "bench", "server", "audit", "pii", "cli"}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "secret": set(),
    "formats": BASE,
    "graph": {*BASE, "formats"},
    "models": {*BASE, "formats", "graph"},
    "checkpoint": {*BASE, "formats", "graph", "models"},
    "kv": {*BASE, "formats"},
    "devices": {*BASE, "formats", "graph", "models", "checkpoint", "kv"},
    "text": {*BASE, "models.tokens"},
    "pii": BASE,
    "sampling": BASE,
    **dict.fromkeys(PROBES, BASE | PROBES),
    "engine": {*BASE, "formats", "graph", "models", "checkpoint", "kv", "devices", "text", "sampling", *PROBES},
    "probes": API,
    "quantize": API,
    "bench": API,
    "results": set(),
    "answers": SERVING | {"results"},
    "llm": API,
    "server": API | {"pii"},
    "audit": {*MODEL, "server"},
    "cli": TOP,
    "": API,
}
"""What each part may import of Pellucid besides itself. The longest name that fits a module counts."""


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def covers(part: str, module: str) -> bool:
    return module == part or module.startswith(part + ".")


def part_of(module: str) -> str:
    fits = [part for part in ALLOWED if part and covers(part, module)]
    return max(fits, key=len, default=module)


def imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of everything a module imports, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                pytest.fail(f"{module}:{node.lineno} imports relatively; write the whole name")
            for name in node.names:
                full = f"{node.module}.{name.name}"
                is_module = full.startswith("pellucid.") and exists(full.removeprefix("pellucid."))
                yield node.lineno, full if is_module else str(node.module)


def exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").exists() or module == "_core"


def test_imports_point_down() -> None:
    wrong: list[str] = []
    for file in FILES:
        module = module_of(file)
        part = part_of(module)
        if part not in ALLOWED:
            wrong.append(f"{module} belongs to no part of DESIGN.md")
            continue
        for line, name in imports(ast.parse(file.read_text()), module):
            target = name.removeprefix("pellucid").removeprefix(".")
            if covers("pellucid", name) and target and not covers(part, target) and target != "__version__":
                if part == "cli" and not part_of(target):
                    continue
                if not any(covers(allowed, target) for allowed in ALLOWED[part]):
                    wrong.append(f"{module}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_torch_stays_on_the_gpu_side() -> None:
    wrong = [
        f"{module_of(file)}:{line} imports {name}"
        for file in FILES
        for line, name in imports(ast.parse(file.read_text()), module_of(file))
        if name.split(".")[0] in ("torch", "triton", "transformers")
        and not module_of(file).startswith(("devices.gpu", "devices.kernels"))
    ]
    assert not wrong, "\n".join(wrong)


def loaded(code: str) -> set[str]:
    """Top-level modules that are loaded after `code` has run in a fresh interpreter."""
    probe = f"import sys\n{code}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


HEAVY = {"numpy", "tokenizers", "jinja2", "huggingface_hub", "fastapi", "pydantic", "uvicorn", "rich", "prompt_toolkit"}


def test_import_pellucid_is_light() -> None:
    assert not loaded("import pellucid") & (HEAVY | {"typer", "asyncio"})


def test_help_is_light() -> None:
    code = "from pellucid.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert not loaded(code) & HEAVY


def test_llm_needs_no_server_and_no_terminal() -> None:
    unwanted = {"fastapi", "pydantic", "uvicorn", "rich", "typer", "prompt_toolkit", "huggingface_hub", "torch"}
    assert not loaded("from pellucid import LLM, SamplingParams, RequestOutput") & unwanted
