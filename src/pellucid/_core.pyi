"""Types of the native core (native/bind*.cpp); a test holds the names equal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# bind_sample.cpp

class SampleState:
    """What one sequence asks of sampling, and the tokens it has seen if it has penalties."""

    logprobs: int
    @staticmethod
    def make(
        *,
        temperature: float,
        top_k: int,
        top_p: int,
        min_x: float,
        repetition: float,
        presence: float,
        frequency: float,
        seed: int,
        choice: int,
        logprobs: int,
        held_until: int,
        held_ids: Sequence[int],
        bias_ids: Sequence[int],
        bias_values: Sequence[float],
        penalized: bool,
        prompt: Sequence[int],
    ) -> SampleState: ...
    def push(self, token: int) -> None: ...

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
