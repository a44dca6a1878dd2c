"""What clients of /v1/embeddings read: OpenAI's list of vectors.

Law: pure; no engine, no I/O. Both encodings hold the very same float32s.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from pellucid.engine.pooling import F32, Pooling
from pellucid.server.choices import Piece, Usage


class Embedding(TypedDict):
    """One vector of length 1."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """Numbers, or the base64 of little-endian float32s."""


class EmbeddingUsage(TypedDict):
    """Tokens of one request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """Answer of POST /v1/embeddings, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    warnings: NotRequired[list[str]]


class EmbeddingShape:
    """Writes the answer to one request."""

    def __init__(
        self,
        model: str,
        poolings: Sequence[Pooling],
        *,
        encoding: Literal["float", "base64"],
        dimensions: int | None,
        warnings: list[str],
    ) -> None:
        """Write what `poolings`, one for each input, have become when all is computed."""
        self._model = model
        self._poolings = poolings
        self._encoding = encoding
        self._dimensions = dimensions
        self._warnings = warnings

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> EmbeddingList:
        """As in WholeShape; there is no text to write."""
        answer: EmbeddingList = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": self._encoded(pooling.vector(self._dimensions))}
                for i, pooling in enumerate(self._poolings)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": usage["prompt_tokens"], "total_tokens": usage["total_tokens"]},
        }
        if self._warnings:
            answer["warnings"] = self._warnings
        return answer

    def _encoded(self, vector: F32) -> list[float] | str:
        return vector.tolist() if self._encoding == "float" else b64encode(vector.astype("<f4").tobytes()).decode()
