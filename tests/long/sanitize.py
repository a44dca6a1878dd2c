"""Build the core under sanitizers and run the tests that reach every kernel, the plan and the pool.

    python tests/long/sanitize.py address                  AddressSanitizer with UndefinedBehaviorSanitizer
    python tests/long/sanitize.py thread                   ThreadSanitizer
    python tests/long/sanitize.py address -k guards -x     options after the name go to pytest

Law: each has a build folder of its own, build/sanitize-NAME, and a package there that is src/pellucid but for the core.
Reports go to files, since pytest hides what a passing test writes; one report is a failure. Linux with GCC.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
TESTS = ("tests/native", "tests/devices", "tests/engine/test_bits.py")


def build(name: str) -> Path:
    """The folder of a package whose core is sanitized."""
    folder = ROOT / "build" / f"sanitize-{name}"
    options = (
        f"-DPELLUCID_SANITIZE={SANITIZERS[name]}",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_CXX_FLAGS=-O1 -g",
    )
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    package = folder / "package" / "pellucid"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for entry in (ROOT / "src" / "pellucid").iterdir():
        if entry.name != "__pycache__" and not entry.match("_core*.so"):
            (package / entry.name).symlink_to(entry)
    (core,) = folder.glob("_core*.so")
    (package / core.name).symlink_to(core)
    return folder


def library(name: str) -> str:
    """The compiler's own copy of a runtime library."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


def environment(name: str, folder: Path, reports: Path) -> dict[str, str]:
    """Python is not sanitized: the runtime comes before all else, and Python's own leaks are its own."""
    common = f"log_path={reports}/report:print_stacktrace=1"
    # A guard page that is hit is to end the process as it does without a sanitizer: a test expects it.
    options = {
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:handle_segv=0",
        "UBSAN_OPTIONS": common,
        "TSAN_OPTIONS": f"{common}:handle_segv=0",
    }
    runtimes = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}[name]
    preload = " ".join(map(library, (*runtimes, "libstdc++.so")))
    # Threads of NumPy's BLAS wait by spinning, which a sanitizer makes endless, and their races are not ours.
    options |= {"LD_PRELOAD": preload, "PYTHONPATH": str(folder / "package"), "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | options


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SANITIZERS)
    args, chosen = parser.parse_known_args()
    folder = build(args.name)
    reports = folder / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    tests = [] if any((ROOT / word.partition("::")[0]).exists() for word in chosen) else list(TESTS)
    # Without a fixed layout of memory, ThreadSanitizer cannot find room for its shadow on newer kernels.
    command = ["setarch", platform.machine(), "-R", sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    env = environment(args.name, folder, reports)
    done = subprocess.run([*command, *tests, *chosen], cwd=ROOT, env=env, check=False)
    found = [report.read_text(encoding="utf-8", errors="replace") for report in sorted(reports.iterdir())]
    for text in found:
        print(text)
    print(f"{args.name}: {len(found)} reports; pytest's exit code is {done.returncode}")
    return 1 if found or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
