"""MappedFile: a model file in memory, read-only; Stored: where in it a tensor lies.

Law: only regular files are mapped, and no byte is touched that was not checked to lie inside the file. What a file says
of itself is shown shortened and escaped (`shown`), since it may be hostile.
"""

from __future__ import annotations

import mmap
import stat
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import ModelFileError, ModelNotFoundError
from pellucid.formats import Format


def shown(text: object, limit: int = 80) -> str:
    """`text` quoted, escaped and shortened, fit for one line of an error."""
    s = ascii(text if len(str(text)) <= limit else str(text)[:limit] + "…")
    return s.replace("\\u2026", "...")


class MappedFile:
    """A regular file, mapped read-only. Raises ModelNotFoundError, or ModelFileError when it is empty or unreadable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        try:
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise ModelFileError(f"{path}: not a regular file; give a model file or a folder")
            with path.open("rb") as f:
                self.size = f.seek(0, 2)
                if not self.size:
                    raise ModelFileError(f"{self.name}: the file is empty; download it again")
                self.map = mmap.mmap(f.fileno(), self.size, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelNotFoundError(f"{path}: no such file") from None
        except (OSError, ValueError) as e:
            raise ModelFileError(f"{path}: cannot be read ({e})") from None

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes at `offset`, as a read-only view, shape (nbytes,)."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ModelFileError(f"{self.name}: bytes {offset} to {offset + nbytes} lie outside the file")
        return np.frombuffer(self.map, np.uint8, nbytes, offset)

    def holds(self, array: NDArray[np.uint8]) -> bool:
        """Whether the array is a view of these bytes."""
        whole = self.view(0, self.size).__array_interface__["data"][0]
        return whole <= array.__array_interface__["data"][0] < whole + self.size

    def release(self, offset: int, nbytes: int) -> None:
        """Drop the pages of these bytes from memory; they are read from the file again when touched."""
        if hasattr(mmap, "MADV_DONTNEED"):
            page = mmap.PAGESIZE
            start = offset // page * page
            self.map.madvise(mmap.MADV_DONTNEED, start, min(self.size, offset + nbytes) - start)

    def close(self) -> None:
        """Unmap the file, or, while views of it are alive, leave that to the last of them."""
        with suppress(BufferError):
            self.map.close()


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file; `shape` outermost first, its extent checked."""

    name: str
    shape: tuple[int, ...]
    format: Format
    file: MappedFile
    offset: int
    """From the beginning of the file, in bytes."""
    nbytes: int

    def data(self) -> NDArray[np.uint8]:
        """(rows, row_bytes), a view of the file."""
        rows = prod(self.shape[:-1])
        return self.file.view(self.offset, self.nbytes).reshape(rows, self.nbytes // rows)
