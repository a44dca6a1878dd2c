"""Types of the native core (native/bind*.cpp); a test holds the names equal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# bind_matrix.cpp

class Matrix:
    """A weight in the kernels' own layout: panels of 16 rows. `format` is a name in pellucid.formats."""

    def __init__(self, format: str, rows: int, cols: int, huge_pages: bool = True, count: int = 1) -> None:
        """`count`: so many matrices of that size, for each expert one, packed one behind the other."""
    def pack(self, data: NDArray[np.uint8], threads: int = 1) -> None:
        """Repack all rows; `data` (rows, bytes of a row in the file) may be read-only."""
    @property
    def format(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def packed(self) -> NDArray[np.uint8]:
        """A read-only view of the packed bytes."""
    def row(self, index: int) -> NDArray[np.float32]:
        """Row `index`, decoded, shape (cols,)."""
    def linear(
        self,
        x: NDArray[np.float32],
        bias: NDArray[np.float32] | None = None,
        residual: NDArray[np.float32] | None = None,
        isa: str | None = None,
    ) -> NDArray[np.float32]:
        """residual + (bias + x @ W.T), shape (len(x), rows); x is quantised first where the format asks for it."""

class Packing:
    """Matrices packed in the background by `threads` of its own, which need no GIL; let go of, it ends early."""

    def __init__(self, threads: int) -> None: ...
    def add(self, matrix: Matrix, data: NDArray[np.uint8], mapped: bool = False) -> None:
        """Have all rows packed after what was added before. mapped: `data` is a view of a mapped file, and its pages
        are dropped from memory as they are packed; never say so of other memory, whose bytes would be lost."""
    def wait(self, seconds: float) -> bool:
        """Wait until all is packed, at most so long; whether it is."""
    @property
    def bytes_done(self) -> int:
        """Bytes of `data` that are packed."""
    @property
    def unmapped_bytes_left(self) -> int:
        """Bytes of `data`, where it is not mapped, that are not packed yet and so are held."""

def linear(
    format: str,
    packed: NDArray[np.uint8],
    rows: int,
    cols: int,
    x: NDArray[np.uint8],
    out: NDArray[np.float32],
    bias: NDArray[np.float32] | None = None,
    residual: NDArray[np.float32] | None = None,
    isa: str | None = None,
    panel0: int = 0,
    panel1: int = -1,
) -> None:
    """The kernel on the caller's arrays: x are the bytes of quantised rows, or of float rows for float formats."""

def quantize(x: NDArray[np.float32], isa: str | None = None) -> NDArray[np.uint8]:
    """Rows of activations to int8 rows (the layout is told in native/kernels.h); cols a multiple of 32."""

def spin(rounds: int, isa: str | None = None) -> int:
    """Multiply int8 as fast as one core can; returns the multiply-adds done."""

def spin_tiles(rounds: int, isa: str | None = None) -> int:
    """The same by matrix instructions; 0 where the set has none."""

def read(data: NDArray[np.uint8], isa: str | None = None) -> None:
    """Read the bytes of `data` (n,) in order, as fast as one core can."""

def isas() -> list[str]:
    """The instruction sets that this machine can run, best first."""

def isa() -> str:
    """The one in use. Raises ConfigError when PELLUCID_ISA names another than `isas`."""

def cpu_features() -> dict[str, bool]: ...

# bind_sample.cpp

class SampleState:
    """What one sequence asks of sampling, and its tokens so far if a stage needs to know them."""

    logprobs: int
    @staticmethod
    def make(
        *,
        temperature: float,
        top_k: int,
        top_p: int,
        min_x: float,
        edits: Sequence[int],
        cuts: Sequence[int],
        plain: bool,
        processed: bool,
        top_n_sigma: float,
        typical_p: int,
        xtc_probability: int,
        xtc_threshold: int,
        dynatemp_low: float,
        dynatemp_high: float,
        dynatemp_exponent: float,
        repetition: float,
        presence: float,
        frequency: float,
        dry_multiplier: float,
        dry_base: float,
        dry_allowed: int,
        dry_most: int,
        dry_window: int,
        dry_breakers: Sequence[tuple[Sequence[int], Sequence[int]]],
        seed: int,
        choice: int,
        logprobs: int,
        held_until: int,
        held_ids: Sequence[int],
        bias_ids: Sequence[int],
        bias_values: Sequence[float],
        only_ids: Sequence[int],
        bad_ids: Sequence[Sequence[int]],
        penalized: bool,
        window: int,
        prompt: Sequence[int],
    ) -> SampleState: ...
    def push(self, token: int) -> None:
        """Take in a token of the answer."""

    def allow(self, bits: NDArray[np.uint32]) -> None:
        """Let only these tokens be drawn: a bit a token, the lowest first."""

def sample_rows(
    states: Sequence[SampleState],
    logits: NDArray[np.float32],
    rows: NDArray[np.int32],
    positions: NDArray[np.int64],
    tokens: NDArray[np.int32],
    status: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    top_ids: NDArray[np.int32] | None,
    top_logprobs: NDArray[np.float32] | None,
    pool: Pool | None,
) -> None: ...
def score_rows(
    logits: NDArray[np.float32],
    tokens: NDArray[np.int32],
    wanted: int,
    status: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    top_ids: NDArray[np.int32],
    top_logprobs: NDArray[np.float32],
) -> None: ...
def philox_bits53(seed: int, choice: int, position: int, stage: int) -> int: ...

# bind_plan.cpp

RESULT: int
"""Slot of the logits, the caller's own buffer."""
NONE: int
"""No slot."""
STEP_KINDS: list[str]
"""What a row step can be, in the order of its numbers."""
_Step = tuple[
    int, int, int, int, int, int, int, float, str, int
]  # kind out x y groups n weight number activation quant
_Part = tuple[int, Matrix, int]  # out matrix bias
_Turn = tuple[int, int, int, int, float, int, int, int, int]  # out x normed weight eps heads half cos sin

class Pool:
    """Threads that walk a plan together; `cpus`: the processor that each keeps to while it does, none: anywhere."""

    def __init__(self, threads: int, cpus: Sequence[int] = ...) -> None: ...
    @property
    def threads(self) -> int: ...

class KvStore:
    """Memory of the paged KV cache."""

    def __init__(self, format: str, layers: int, pages: int, page_size: int, kv_heads: int, d_head: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...
    def layer(self, layer: int) -> NDArray[np.uint8]:
        """All pages of a layer, (pages, bytes); a view."""
    def page(self, layer: int, page: int) -> NDArray[np.uint8]: ...

class Plan:
    """The ops of a model over a pool, a KV store and an arena. Slots and constants are numbers that it gives out."""

    def __init__(
        self,
        pool: Pool,
        kv: KvStore,
        isa: str,
        heads: int,
        vocab: int,
        context: int,
        max_rows: int,
        arena_row_bytes: int,
    ) -> None: ...
    @property
    def scratch_bytes(self) -> int: ...
    def slot(self, offset: int, row_bytes: int, /) -> int: ...
    def constant(self, values: NDArray[np.float32], /) -> int: ...
    def embed(self, out: int, table: Matrix, scale: float, positions: bool, /) -> None: ...
    def rows(self, steps: Sequence[_Step], selected: bool, /) -> None: ...
    def linear(
        self,
        steps: Sequence[_Step],
        x: int,
        quant: int,
        parts: Sequence[_Part],
        residual: int,
        activation: str,
        out_quant: int,
        selected: bool,
        /,
    ) -> None: ...
    def rope(self, out: int, x: int, heads: int, d_head: int, half: int, cos: int, sin: int, /) -> None: ...
    def store_kv(self, k: int, v: int, layer: int, /) -> None: ...
    def rope_store_kv(self, turns: Sequence[_Turn], v: int, layer: int, /) -> None: ...
    def expert_linear(
        self,
        steps: Sequence[_Step],
        x: int,
        quant: int,
        chosen: int,
        part: _Part,
        top: int,
        shared_x: bool,
        /,
    ) -> None: ...
    def experts(
        self,
        steps: Sequence[_Step],
        x: int,
        quant: int,
        chosen: int,
        weights: int,
        parts: Sequence[_Part],
        activation: str,
        top: int,
        x_sorted: int,
        quant_sorted: int,
        post_quant: int,
        out: int,
        /,
    ) -> None: ...
    def attention(
        self, out: int, q: int, layer: int, heads: int, scale: float, cap: float, window: int, sinks: int, /
    ) -> None: ...
    def run(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        seq_starts: NDArray[np.int32],
        page_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
    ) -> None: ...
    def tap(self, x: int, n: int, kind: str, count: int, selected: bool, /) -> int:
        """Where the tap's numbers begin in a row of what is tapped. Kinds: native/tap.cpp."""
    def patch(self, out: int, x: int, n: int, selected: bool, /) -> None: ...
    @property
    def tap_width(self) -> int:
        """Numbers that the taps give of a watched row."""
    @property
    def ops(self) -> int: ...
    def value(self, slot: int, rows: int, n: int, /) -> NDArray[np.float32]:
        """The first rows of a slot, (rows, n), as the last run left them; a view that may be written."""
    def run_part(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        seq_starts: NDArray[np.int32],
        page_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        watched: NDArray[np.int32],
        tapped: NDArray[np.float32],
        first: int,
        end: int,
    ) -> None:
        """As run, of the ops [first, end) only; the taps' numbers of each watched row go to tapped (watched, width)."""
    def profile(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        seq_starts: NDArray[np.int32],
        page_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        times: NDArray[np.int64],
    ) -> None:
        """As run; fills times (threads, ops, 2) with the nanoseconds of each op and of its waits for others."""

LOOK_SUMS: int

def look(
    q: NDArray[np.float32],
    positions: NDArray[np.int32],
    keys: NDArray[np.float32],
    scale: float,
    cap: float,
    window: int,
    sink: float | None,
    previous: NDArray[np.float32],
    spans: NDArray[np.int32],
    sums: NDArray[np.float64] | None,
    weights: NDArray[np.float32] | None,
    isa: str,
) -> None:
    """What rows (rows, d_head) of one query head look at: their metrics (native/look.h) are added to sums (LOOK_SUMS +
    spans), and their weights written to weights (rows, keys), of which unseen keys are left as they are. keys:
    (groups, d_head, 16) from position 0; previous: the token before each of them, and one more."""

# bind_vocab.cpp

def spm_merges(
    pieces: Sequence[str], scores: NDArray[np.float32], mergeable: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Merges of a SentencePiece vocabulary as (left ids, right ids), best first; see native/vocab.h."""
