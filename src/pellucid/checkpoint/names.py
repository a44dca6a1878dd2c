"""Vendors' tensor names, by canonical name, and the binding of a file's tensors to them.

Law: one table, read in one direction: the spec says which weights there must be, the table what a vendor calls each.
What is then left over in the file is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from pellucid.checkpoint.families import Family
from pellucid.checkpoint.mapped import Stored, shown
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.models.spec import ModelSpec

Namer = Callable[[str], str]
"""Canonical name → vendor's name."""

_WHOLE = {
    "embed.W_E": ("token_embd.weight", "embed_tokens.weight"),
    "pos_embed.W_pos": ("position_embd.weight", "wpe.weight"),
    "ln_final.w": ("output_norm.weight", "norm.weight"),
    "ln_final.b": ("output_norm.bias", "norm.bias"),
    "unembed.W_U": ("output.weight", "lm_head.weight"),
}
_LAYER = {
    "ln1.w": ("attn_norm.weight", "input_layernorm.weight"),
    "ln1.b": ("attn_norm.bias", "input_layernorm.bias"),
    "attn.W_Q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "attn.W_K": ("attn_k.weight", "self_attn.k_proj.weight"),
    "attn.W_V": ("attn_v.weight", "self_attn.v_proj.weight"),
    "attn.W_O": ("attn_output.weight", "self_attn.o_proj.weight"),
    "attn.b_Q": ("attn_q.bias", "self_attn.q_proj.bias"),
    "attn.b_K": ("attn_k.bias", "self_attn.k_proj.bias"),
    "attn.b_V": ("attn_v.bias", "self_attn.v_proj.bias"),
    "attn.b_O": ("attn_output.bias", "self_attn.o_proj.bias"),
    "attn.q_norm.w": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "attn.k_norm.w": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "ln1_post.w": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    "ln2.w": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "ln2.b": ("ffn_norm.bias", "post_attention_layernorm.bias"),
    "ln2_post.w": ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
    "mlp.W_gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "mlp.b_gate": ("ffn_gate.bias", "mlp.gate_proj.bias"),
    "mlp.W_in": ("ffn_up.weight", "mlp.up_proj.weight"),
    "mlp.b_in": ("ffn_up.bias", "mlp.up_proj.bias"),
    "mlp.W_out": ("ffn_down.weight", "mlp.down_proj.weight"),
    "mlp.b_out": ("ffn_down.bias", "mlp.down_proj.bias"),
}


def _vendor(family: Family, canonical: str) -> tuple[str | None, tuple[str, str]]:
    """The layer's number, if the weight is a layer's, and the vendors' names behind it."""
    if canonical in _WHOLE:
        return None, family.names.get(canonical, _WHOLE[canonical])
    _, layer, part = canonical.split(".", 2)
    return layer, family.names.get(part) or _LAYER[part]


def gguf_namer(family: Family) -> Namer:
    """GGUF's names."""

    def name(canonical: str) -> str:
        layer, (vendor, _) = _vendor(family, canonical)
        return vendor if layer is None else f"blk.{layer}.{vendor}"

    return name


def hf_namer(family: Family, body: str, head: str) -> Namer:
    """Hugging Face's names: `body` comes before the decoder's tensors ("model."), `head` before lm_head ("")."""

    def name(canonical: str) -> str:
        layer, (_, vendor) = _vendor(family, canonical)
        if layer is None:
            return (head if canonical == "unembed.W_U" else body) + vendor
        return f"{body}{family.hf_layers}.{layer}.{vendor}"

    return name


def hf_body(family: Family, tensors: Mapping[str, Stored]) -> str:
    """What comes before the decoder's tensor names in this file."""
    _, (_, embed) = _vendor(family, "embed.W_E")
    return next((body for body in family.hf_bodies if body + embed in tensors), family.hf_bodies[0])


@dataclass(frozen=True)
class Bound:
    """Where a canonical weight lies: all of `stored`, or columns of it, which are the weight's rows."""

    stored: Stored
    shape: tuple[int, ...]
    first_column: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as stored."""
        return self.stored.nbytes if self.first_column is None else prod(self.shape) * self.stored.format.nbytes

    @property
    def place(self) -> tuple[int, int]:
        """Where it lies in its file, to sort by."""
        return self.stored.offset, self.first_column or 0

    def data(self) -> NDArray[np.uint8]:
        """(rows, row_bytes): a view of the file, or of transposed values a copy."""
        raw = self.stored.data()
        if self.first_column is None:
            return raw
        unit = self.stored.format.nbytes
        first, end = self.first_column, self.first_column + self.shape[0]
        columns = raw.reshape(len(raw), -1, unit)[:, first:end]
        return np.ascontiguousarray(columns.swapaxes(0, 1)).reshape(end - first, -1)


def bind(
    where: str,
    spec: ModelSpec,
    namer: Namer,
    tensors: Mapping[str, Stored],
    ignored: Iterable[str] = (),
    *,
    transposed: bool = False,
) -> dict[str, Bound]:
    """Canonical name → where it lies, in the spec's order; `transposed`: matrices of layers are stored (in, out).

    Raises ModelFileError for a tensor that is missing or of another shape, UnsupportedModelError for one left over.
    """
    shapes = spec.weight_shapes()
    rows: dict[str, int] = {}  # vendor's name → rows of all weights in that tensor
    for canonical, shape in shapes.items():
        rows[namer(canonical)] = rows.get(namer(canonical), 0) + shape[0]
    begun: dict[str, int] = dict.fromkeys(rows, 0)
    bound: dict[str, Bound] = {}
    for canonical, shape in shapes.items():
        vendor = namer(canonical)
        tensor = tensors.get(vendor)
        if tensor is None:
            raise ModelFileError(
                f"{where}: the tensor {shown(vendor)} is missing ({canonical} of a {spec.family} model)"
            )
        turned = transposed and len(shape) == 2 and canonical.startswith("blocks.")
        due = (rows[vendor], *shape[1:])
        due = due[::-1] if turned else due
        # A norm with weights for each head may lie as (heads, d_head).
        by_head = spec.qk_norm == "each" and canonical.endswith("_norm.w")
        if tensor.shape != due and not (by_head and tensor.shape == (shape[0] // spec.d_head, spec.d_head)):
            raise ModelFileError(
                f"{tensor.file.name}: the tensor {shown(vendor)} has shape {list(tensor.shape)}, "
                f"but the model's sizes call for {list(due)}"
            )
        first = begun[vendor]
        begun[vendor] += shape[0]
        if turned:
            bound[canonical] = Bound(tensor, shape, first)
            continue
        if rows[vendor] == shape[0]:
            bound[canonical] = Bound(replace(tensor, shape=shape), shape)
            continue
        if len(shape) == 1 and tensor.format.block > 1:
            raise ModelFileError(f"{tensor.file.name}: the tensor {shown(vendor)} is quantised; biases must not be")
        row = tensor.nbytes // rows[vendor]
        part = replace(tensor, shape=shape, offset=tensor.offset + first * row, nbytes=shape[0] * row)
        bound[canonical] = Bound(part, shape)
    used = {namer(n) for n in bound} | set(ignored)
    extra = [name for name in tensors if name not in used]
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise UnsupportedModelError(
            f"{where}: the tensor {shown(extra[0])}{more} is not part of a {spec.family} model as Pellucid knows it; "
            f"supported are {', '.join(sorted({namer(n).split('.', 3)[-1] for n in shapes}))}"
        )
    return bound
