"""The peers' environments: each a virtual environment of its own, made at first use.

Law: an environment is known by what it was made of; if that changes it is made anew. A variant of llama.cpp is its
package with the CPU library built again, from the package's own source, for other instruction sets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

HOME = Path(os.environ.get("PELLUCID_PEERS") or Path.home() / ".cache" / "pellucid-peers")
CPU_LIBRARY = "libggml-cpu.so"


@dataclass(frozen=True)
class Environment:
    """A package, and the CMake options of its CPU library where that is built again."""

    package: str
    options: tuple[str, ...] = ()

    @property
    def made_of(self) -> str:
        """What tells whether an environment is this one."""
        return " ".join((self.package, *self.options))


_LLAMA = "llama-cpp-python==0.3.36"
_AVX2 = ("GGML_NATIVE=OFF", "GGML_LLAMAFILE=ON")  # SSE 4.2, AVX, AVX2, BMI2, FMA and F16C are on without NATIVE
_AVX512 = ("GGML_AVX512=ON", "GGML_AVX512_VBMI=ON", "GGML_AVX512_VNNI=ON", "GGML_AVX512_BF16=ON")
ENVIRONMENTS = {
    "llama.cpp": Environment(_LLAMA),
    "llama.cpp-avx512": Environment(_LLAMA, _AVX2 + _AVX512),
    "llama.cpp-avx2": Environment(_LLAMA, _AVX2),
    "ik_llama.cpp": Environment("ik-llama-cpp-python==0.1.5"),
    "openvino": Environment("openvino-genai==2026.4.1.0"),
}


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is made if it is not there."""
    folder, environment = HOME / name, ENVIRONMENTS[name]
    python = folder / "bin" / "python"
    made = folder / "made"
    if not made.exists() or made.read_text() != environment.made_of:
        say(f"{name}: installing {environment.package} into {folder}")
        venv.create(folder, with_pip=True, clear=True)
        _pip(python, "install", "numpy", environment.package)
        if environment.options:
            _build_again(name, python, environment)
        made.write_text(environment.made_of)
    return python


def _build_again(name: str, python: Path, environment: Environment) -> None:
    """Build the CPU library for the options, and put it in the place of the package's."""
    _pip(python, "install", "cmake", "ninja")
    source, build = _source(python, environment.package), HOME / f"{name}.build"
    shutil.rmtree(build, ignore_errors=True)
    cmake, env = python.with_name("cmake"), os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    options = [f"-D{option}" for option in ("CMAKE_BUILD_TYPE=Release", "LLAVA_BUILD=OFF", *environment.options)]
    log = build.with_suffix(".log")
    say(f"{name}: building its CPU library; see {log}")
    with log.open("w") as out:
        for command in (
            [cmake, "-S", source, "-B", build, "-G", "Ninja", *options],
            [cmake, "--build", build, "--target", "ggml-cpu", "--parallel", str(len(os.sched_getaffinity(0)))],
        ):
            subprocess.run(command, env=env, stdout=out, stderr=subprocess.STDOUT, check=True)
    (library,) = (p for p in (build / "bin").glob(f"{CPU_LIBRARY}*") if not p.is_symlink())
    (folder,) = folder_of(python).glob("llama_cpp/lib")
    for old in folder.glob(f"{CPU_LIBRARY}*"):
        old.unlink()
        shutil.copy(library, old)
    shutil.rmtree(build)


def _source(python: Path, package: str) -> Path:
    """The package's source, unpacked."""
    folder = HOME / "source"
    named = package.replace("-", "_").replace("==", "-")
    if not (folder / named / "pyproject.toml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        name = package.partition("==")[0]
        _pip(python, "download", "--no-deps", "--no-binary", name, "-d", str(folder), package)
        with tarfile.open(folder / f"{named}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / named


def folder_of(python: Path) -> Path:
    """Where an environment's packages lie."""
    (folder,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return folder


def _pip(python: Path, command: str, *args: str) -> None:
    subprocess.run([python, "-m", "pip", command, "-q", *args], check=True)


def say(text: str) -> None:
    """Tell on stderr what is being done, and when."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)
