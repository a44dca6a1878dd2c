"""Vendors' tensor names, by canonical name, and the binding of a file's tensors to them.

Law: one table, read in one direction: the spec says which weights there must be, the table what a vendor calls each.
What is then left over in the file is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from pellucid.checkpoint.bound import Blocks, Bound, Sliced
from pellucid.checkpoint.families import Family
from pellucid.checkpoint.mapped import Stored, shown
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats import FORMATS
from pellucid.models.spec import ModelSpec, is_matrix

Namer = Callable[[str], str]
"""Canonical name → vendor's name; with {} for the expert's number, where each expert has a tensor of its own."""
PLAIN = Family("plain")
"""For files whose tensors lie as the canonical weights do."""

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
    "attn.sinks": ("attn_sinks.weight", "self_attn.sinks"),
    "mlp.W_router": ("ffn_gate_inp.weight", "mlp.gate.weight"),
    "mlp.b_router": ("ffn_gate_inp.bias", "mlp.router.bias"),
    "mlp.experts.W_gate": ("ffn_gate_exps.weight", "mlp.experts.{}.gate_proj.weight"),
    "mlp.experts.b_gate": ("ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias"),
    "mlp.experts.W_in": ("ffn_up_exps.weight", "mlp.experts.{}.up_proj.weight"),
    "mlp.experts.b_in": ("ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias"),
    "mlp.experts.W_out": ("ffn_down_exps.weight", "mlp.experts.{}.down_proj.weight"),
    "mlp.experts.b_out": ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
    "mlp.shared.W_gate": ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
    "mlp.shared.W_in": ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
    "mlp.shared.W_out": ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
    "mlp.shared.W_weight": ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
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


def bind(
    where: str,
    spec: ModelSpec,
    family: Family,
    namer: Namer,
    tensors: Mapping[str, Stored],
    ignored: Iterable[str] = (),
) -> dict[str, Bound]:
    """Canonical name → where it lies, in the spec's order; of files that need no turning (GGUF's) `family` is `PLAIN`.

    Raises ModelFileError for a tensor that is missing or of another shape, UnsupportedModelError for one left over.
    """
    binding = _Binding(where, spec, family, namer, tensors)
    bound = {canonical: binding.bind(canonical, shape) for canonical, shape in binding.shapes.items()}
    used = binding.used | set(ignored)
    extra = [name for name in tensors if name not in used]
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        known = {namer(n).replace("{}", "0").split(".", 3)[-1] for n in binding.shapes}
        raise UnsupportedModelError(
            f"{where}: the tensor {shown(extra[0])}{more} is not part of a {spec.family} model as Pellucid knows it; "
            f"supported are {', '.join(sorted(known))}"
        )
    return bound


class _Binding:
    """Tensors on their way to names: which were used, and, of those that several weights share, how much of them."""

    def __init__(
        self, where: str, spec: ModelSpec, family: Family, namer: Namer, tensors: Mapping[str, Stored]
    ) -> None:
        self.where, self.spec, self.family, self.namer, self.tensors = where, spec, family, namer, tensors
        self.shapes = spec.weight_shapes()
        self.used: set[str] = set()
        self.total: dict[str, int] = {}
        """Vendor's name → rows (of vectors: values) of all weights in that tensor; of experts', in each expert's."""
        for canonical, shape in self.shapes.items():
            self.total[namer(canonical)] = self.total.get(namer(canonical), 0) + shape[_axis(canonical)]
        self.begun = dict.fromkeys(self.total, 0)

    def bind(self, canonical: str, shape: tuple[int, ...]) -> Bound:
        vendor, axis, matrix = self.namer(canonical), _axis(canonical), is_matrix(canonical)
        if "{}" in vendor:
            parts = [self._tensor(canonical, vendor.format(i), shape[1:]) for i in range(shape[0])]
            if len({part.format.name for part in parts}) > 1:
                raise UnsupportedModelError(
                    f"{self.where}: the tensors {shown(vendor)} are of several formats; experts must share one"
                )
            return Bound(tuple(parts), shape)
        of_experts = ".experts." in canonical
        rows, total = shape[axis], self.total[vendor]
        shared = total != rows
        first = self.begun[vendor]
        alternating = of_experts and shared and self.family.hf_experts_alternating
        self.begun[vendor] += 1 if alternating else rows
        step = total // rows if alternating else 1
        due = (*shape[:axis], total, *shape[len(shape) + axis + 1 :])
        if of_experts and f"{vendor}_blocks" in self.tensors:
            block = FORMATS["mxfp4"].block
            if shape[-1] % block:
                raise ModelFileError(
                    f"{self.where}: {shown(vendor)}: rows of {shape[-1]} are not whole blocks of {block}"
                )
            due = (*due[:-1], shape[-1] // block)
            codes = self._tensor(canonical, f"{vendor}_blocks", (*due, block // 2), bytes_of_codes=True)
            exponents = self._tensor(canonical, f"{vendor}_scales", due, bytes_of_codes=True)
            return Blocks((codes, exponents), shape, first, step)
        turned = matrix and self.family.hf_transposed == ("experts" if of_experts else "layers")
        turned = turned and canonical.startswith("blocks.")
        tensor = self._tensor(canonical, vendor, (*due[:-2], *due[-2:][::-1]) if turned else due)
        if not shared and not turned:
            return Bound((replace(tensor, shape=shape),), shape)
        if (turned or not matrix) and tensor.format.block > 1:
            what = "is quantised and lies as (in, out), which is" if matrix else "is quantised; biases must"
            raise ModelFileError(f"{tensor.file.name}: the tensor {shown(vendor)} {what} not be")
        if turned or of_experts:
            return Sliced((tensor,), shape, first, step, turned, matrix)
        row = tensor.nbytes // total
        part = replace(tensor, shape=shape, offset=tensor.offset + first * row, nbytes=rows * row)
        return Bound((part,), shape)

    def _tensor(self, canonical: str, name: str, due: tuple[int, ...], *, bytes_of_codes: bool = False) -> Stored:
        """The tensor of that name and shape."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelFileError(
                f"{self.where}: the tensor {shown(name)} is missing ({canonical} of a {self.spec.family} model)"
            )
        if (tensor.format.name == "u8") != bytes_of_codes:
            raise UnsupportedModelError(
                f"{tensor.file.name}: the tensor {shown(name)} is stored as {tensor.format.name.upper()}, "
                + ("not U8" if bytes_of_codes else "which here stands for no number")
            )
        # A norm with weights for each head may lie as (heads, d_head), a matrix of one row as a vector.
        d_head = self.spec.d_head
        by_head = self.spec.qk_norm == "each" and canonical.endswith("_norm.w")
        others = [(due[0] // d_head, d_head)] if by_head else [due[1:]] if due[0] == 1 and len(due) == 2 else []
        if tensor.shape != due and tensor.shape not in others:
            raise ModelFileError(
                f"{tensor.file.name}: the tensor {shown(name)} has shape {list(tensor.shape)}, "
                f"but the model's sizes call for {list(due)}"
            )
        self.used.add(name)
        return tensor


def _axis(canonical: str) -> int:
    """The axis, counted from the last, of the rows of a weight's matrices, or of the values of its vectors."""
    return -2 if is_matrix(canonical) else -1
