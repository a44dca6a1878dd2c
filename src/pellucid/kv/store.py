"""Geometry of the paged KV cache: how many bytes a page takes, and what its bytes mean.

Law: sizes come from the row format's table. `unpack_page` is the meaning of a page's bytes, and what tests and viewers
read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import ConfigError
from pellucid.formats import KV_FORMATS

KEY_GROUP = 16
"""Tokens whose keys lie transposed together."""


@dataclass(frozen=True)
class KVGeometry:
    """Shape of the cache: `layers` × pages of `page_size` tokens × `kv_heads` × `d_head` values, for K and for V."""

    format: str
    layers: int
    page_size: int
    kv_heads: int
    d_head: int

    def __post_init__(self) -> None:
        if self.d_head % KV_FORMATS[self.format].block:
            raise ConfigError(
                f"kv={self.format} needs heads of a multiple of {KV_FORMATS[self.format].block} values; "
                f"this model's have {self.d_head}; use kv=f16",
                param="kv",
            )

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all layers."""
        f = KV_FORMATS[self.format]
        values = -(-self.d_head // 16) * 16 if self.format == "f16" else self.d_head
        return self.layers * self.kv_heads * self.page_size * (f.row_bytes(self.d_head) + f.row_bytes(values))

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one token takes over all layers."""
        return self.bytes_per_page / self.page_size


def unpack_page(page: NDArray[np.uint8], g: KVGeometry) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """K and V of one page of one layer, each (kv_heads, page_size, d_head) float32. Layout: native/kv.h."""
    k, v = unpack_heads(page.reshape(g.kv_heads, -1), g)
    return k, v


def unpack_tokens(
    pages: NDArray[np.uint8], g: KVGeometry, head: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """K and V of one KV head in pages (pages, bytes) of one layer, in order: each (pages · page_size, d_head)."""
    heads = pages.reshape(len(pages), g.kv_heads, -1)[:, head]
    k, v = unpack_heads(heads, g)
    return k.reshape(-1, g.d_head), v.reshape(-1, g.d_head)


def unpack_key_groups(pages: NDArray[np.uint8], g: KVGeometry, head: int) -> NDArray[np.float32]:
    """K of one KV head in pages (pages, bytes) of one layer as it lies there: (groups, d_head, KEY_GROUP)."""
    heads = pages.reshape(len(pages), g.kv_heads, -1)[:, head]
    d, groups = g.d_head, g.page_size // KEY_GROUP
    if g.format == "f16":
        halves = heads[:, : g.page_size * d * 2].copy().view(np.float16)
        return halves.astype(np.float32).reshape(-1, d, KEY_GROUP)
    k, _ = unpack_heads(heads, g)
    return np.ascontiguousarray(k.reshape(len(pages) * groups, KEY_GROUP, d).transpose(0, 2, 1))


def unpack_heads(heads: NDArray[np.uint8], g: KVGeometry) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """K and V of heads of pages (n, bytes of a head), each (n, page_size, d_head)."""
    d, groups, n = g.d_head, g.page_size // KEY_GROUP, len(heads)
    if g.format == "f16":
        k_bytes = g.page_size * d * 2
        k = heads[:, :k_bytes].copy().view(np.float16).reshape(n, groups, d, KEY_GROUP)
        v = heads[:, k_bytes:].copy().view(np.float16).reshape(n, g.page_size, -1)[..., :d]
        return k.transpose(0, 1, 3, 2).reshape(n, g.page_size, d).astype(np.float32), v.astype(np.float32)

    blocks = d // 32
    group_bytes = KEY_GROUP * (d + 2 * blocks)
    k_raw = heads[:, : groups * group_bytes].reshape(n, groups, group_bytes)
    k_codes = k_raw[..., : KEY_GROUP * d].copy().view(np.int8).reshape(n, groups, blocks, 32, KEY_GROUP)
    k_scales = k_raw[..., KEY_GROUP * d :].copy().view(np.float16).reshape(n, groups, blocks, 1, KEY_GROUP)
    k = (k_codes.astype(np.float32) * k_scales.astype(np.float32)).transpose(0, 1, 4, 2, 3)
    v_raw = heads[:, groups * group_bytes :]
    v_codes = v_raw[:, : g.page_size * d].copy().view(np.int8).reshape(n, g.page_size, blocks, 32)
    v_scales = v_raw[:, g.page_size * d :].copy().view(np.float16).reshape(n, g.page_size, blocks, 1)
    v = v_codes.astype(np.float32) * v_scales.astype(np.float32)
    return k.reshape(n, g.page_size, d), v.reshape(n, g.page_size, d)
