"""Run every kernel of a set with each array against a guard page; prints the name of the set if it lived."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernelcases import NAMES, Guarded, activations, kernel_rows, packed, weights
from pellucid import _core
from pellucid.formats import FORMATS


def main(isa: str) -> None:
    for name in NAMES:
        block = FORMATS[name].block
        for rows, cols in ((1, 2 * block), (17, 7 * block), (32, 2 * block), (49, block)):
            data = weights(name, rows, cols)
            matrix = packed(name, data, cols)
            for tokens in (1, 3, 8, 11, 33):
                x = activations(tokens, cols)
                want = matrix.linear(x, x[0, :1].repeat(rows), np.ones((tokens, rows), np.float32), isa)
                for front in (False, True):
                    if block > 1:
                        _core.quantize(Guarded.copy(x, front), isa)
                    out = Guarded.copy(np.zeros((tokens, rows), np.float32), front)
                    _core.linear(
                        name,
                        Guarded.copy(matrix.packed, front),
                        rows,
                        cols,
                        Guarded.copy(kernel_rows(FORMATS[name], x, isa), front),
                        out,
                        Guarded.copy(x[0, :1].repeat(rows), front),
                        Guarded.copy(np.ones((tokens, rows), np.float32), front),
                        isa,
                    )
                    np.testing.assert_array_equal(out, want)
                    again = _core.Matrix(name, rows, cols)
                    again.pack(Guarded.copy(data, front))
                    np.testing.assert_array_equal(again.packed, matrix.packed)
    print(isa)


if __name__ == "__main__":
    main(sys.argv[1])
