"""Vendors' tensor names, by canonical name.

Law: one table, read in one direction: the spec says which weights there must be, the table what a vendor calls each.
What is then left over in the file is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pellucid.checkpoint.families import Family
from pellucid.checkpoint.mapped import Stored, shown
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.models.spec import ModelSpec

Namer = Callable[[str], str]
"""Canonical name → vendor's name."""

_WHOLE = {
    "embed.W_E": ("token_embd.weight", "embed_tokens.weight"),
    "ln_final.w": ("output_norm.weight", "norm.weight"),
    "unembed.W_U": ("output.weight", "lm_head.weight"),
}
_LAYER = {
    "ln1.w": ("attn_norm.weight", "input_layernorm.weight"),
    "attn.W_Q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "attn.W_K": ("attn_k.weight", "self_attn.k_proj.weight"),
    "attn.W_V": ("attn_v.weight", "self_attn.v_proj.weight"),
    "attn.W_O": ("attn_output.weight", "self_attn.o_proj.weight"),
    "attn.b_Q": ("attn_q.bias", "self_attn.q_proj.bias"),
    "attn.b_K": ("attn_k.bias", "self_attn.k_proj.bias"),
    "attn.b_V": ("attn_v.bias", "self_attn.v_proj.bias"),
    "attn.q_norm.w": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "attn.k_norm.w": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "ln1_post.w": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    "ln2.w": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "ln2_post.w": ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
    "mlp.W_gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "mlp.W_in": ("ffn_up.weight", "mlp.up_proj.weight"),
    "mlp.W_out": ("ffn_down.weight", "mlp.down_proj.weight"),
}
_HF_LN2_WITH_POST_NORMS = "pre_feedforward_layernorm.weight"


def gguf_name(canonical: str) -> str:
    """GGUF's name of a weight."""
    if canonical in _WHOLE:
        return _WHOLE[canonical][0]
    _, layer, part = canonical.split(".", 2)
    return f"blk.{layer}.{_LAYER[part][0]}"


def hf_namer(family: Family, body: str, head: str) -> Namer:
    """Hugging Face's names: `body` comes before the decoder's tensors ("model."), `head` before lm_head ("")."""

    def name(canonical: str) -> str:
        if canonical in _WHOLE:
            return (head if canonical == "unembed.W_U" else body) + _WHOLE[canonical][1]
        _, layer, part = canonical.split(".", 2)
        vendor = _HF_LN2_WITH_POST_NORMS if part == "ln2.w" and family.post_norms else _LAYER[part][1]
        return f"{body}layers.{layer}.{vendor}"

    return name


def bind(
    where: str, spec: ModelSpec, namer: Namer, tensors: Mapping[str, Stored], ignored: Iterable[str] = ()
) -> dict[str, Stored]:
    """Canonical name → tensor, in the spec's order.

    Raises ModelFileError for a tensor that is missing or of another shape, UnsupportedModelError for one left over.
    """
    bound: dict[str, Stored] = {}
    for canonical, shape in spec.weight_shapes().items():
        vendor = namer(canonical)
        tensor = tensors.get(vendor)
        if tensor is None:
            raise ModelFileError(
                f"{where}: the tensor {shown(vendor)} is missing ({canonical} of a {spec.family} model)"
            )
        if tensor.shape != shape:
            raise ModelFileError(
                f"{tensor.file.name}: the tensor {shown(vendor)} has shape {list(tensor.shape)}, "
                f"but the model's sizes call for {list(shape)}"
            )
        bound[canonical] = tensor
    used = {t.name for t in bound.values()} | set(ignored)
    extra = [name for name in tensors if name not in used]
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise UnsupportedModelError(
            f"{where}: the tensor {shown(extra[0])}{more} is not part of a {spec.family} model as Pellucid knows it; "
            f"supported are {', '.join(sorted({namer(n).split('.', 3)[-1] for n in spec.weight_shapes()}))}"
        )
    return bound
