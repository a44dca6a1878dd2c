"""ModelSpec and TokenizerSource from the JSON files of a Hugging Face folder.

Law: a key means what transformers' configuration classes say, silence included (`Family.hf_defaults`); a setting that
would change the arithmetic in a way we do not know is refused by name. Nothing of a folder is ever run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pellucid.checkpoint import from_tekken, strict_json
from pellucid.checkpoint.families import FAMILIES, LIMITS, NAMES, Bias, Family, Scaling
from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.mapped import MappedFile, shown
from pellucid.checkpoint.rope import (
    llama3_factors,
    longrope_magnitude,
    rotated_layers,
    yarn_factors,
    yarn_magnitude,
)
from pellucid.checkpoint.tokens import end_of_turn_ids
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.models.spec import ExpertsSpec, LayerSpec, ModelSpec, RopeSpec
from pellucid.models.tokens import TokenizerSource

_ACTIVATIONS = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new"),
    "clamped": ("silu",),  # its form and its numbers are the family's
}
_CLAMPED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""Numbers of the clamped activation, which a file may state but not change."""
_REFUSED = {
    "quantization_config": "quantised weights",
    "use_bidirectional_attention": "attention in both directions",
    "add_cross_attention": "attention to another sequence",
    "scale_attn_by_inverse_layer_idx": "attention scales that differ from layer to layer",
    "clip_qkv": "clamped q, k and v",
    "mlp_only_layers": "layers without experts",
}
"""Settings that change the arithmetic, unless they are null, 0 or false."""
_SCALINGS: dict[Scaling, tuple[str, str]] = {
    "attn_scale": ("attention_multiplier", "an attention scale of its own"),
    "attn_softcap": ("attn_logit_softcapping", "soft-capped attention"),
    "logit_softcap": ("final_logit_softcapping", "soft-capped logits"),
    "embed_scale": ("embedding_multiplier", "scaled embeddings"),
    "residual_scale": ("residual_multiplier", "scaled residuals"),
    "logit_scale": ("logit_scale", "scaled logits"),
    "logit_divisor": ("logits_scaling", "scaled logits"),
}
"""What a family may state → key, and what it is called where a family may not state it."""
_TEMPLATE_LIMIT = 1 << 20


@dataclass(frozen=True)
class Folder:
    """The configuration of a folder."""

    path: Path
    family: Family
    fields: Fields
    """The language model's settings, with the family's defaults where the file is silent."""
    outer: Fields
    """config.json as it stands."""

    def key(self, usual: str) -> str:
        """This family's spelling of a key."""
        return self.family.hf_keys.get(usual, usual)


def read_config(path: Path) -> Folder:
    """Read config.json and find the family. Raises ModelFileError or UnsupportedModelError."""
    if not (path / "config.json").is_file():
        ggufs = sorted(p.name for p in path.glob("*.gguf"))
        hint = f"; it holds {shown(ggufs[0])}: give that file" if ggufs else ""
        raise ModelFileError(f"{path}: no config.json, so not a Hugging Face model folder{hint}")
    outer = Fields("config.json", strict_json.read(MappedFile(path / "config.json")))
    model_type = outer.text("model_type")
    family = next((f for f in FAMILIES if model_type in f.hf), None)
    if family is None:
        raise UnsupportedModelError(f"config.json: model_type {shown(model_type)} is not supported; known are {NAMES}")
    text = outer.table("text_config")
    inner = text or outer
    values = {**family.hf_defaults, **inner.values}  # an explicit null stays: it is not silence
    if text is not None and "tie_word_embeddings" in outer.values and "tie_word_embeddings" not in text.values:
        values["tie_word_embeddings"] = outer.values["tie_word_embeddings"]
    return Folder(path, family, Fields(inner.where, values), outer)


def spec_from_hf(folder: Folder, *, tied_by_absence: bool) -> ModelSpec:
    """The spec that config.json describes; `tied_by_absence`: there is no lm_head among the weights."""
    fields, family, key = folder.fields, folder.family, folder.key
    stated = {_SCALINGS[scaling][0] for scaling in family.scalings}
    for name, what in (_REFUSED | dict(_SCALINGS.values())).items():
        for source in (fields, folder.outer):
            value = source.values.get(name)
            if name == "quantization_config" and family.hf_blocks and _says_mxfp4(value):
                continue
            if name not in stated and value not in (None, False, 0, []):
                raise UnsupportedModelError(f"{source.where}: {name}: {what} are not supported for {family.name}")
    if not fields.flag("scale_attn_weights", True):
        raise UnsupportedModelError(f"{fields.where}: scale_attn_weights: attention without a scale is not supported")
    name = "hidden_activation" if fields.has("hidden_activation") else key("hidden_act")
    activation = fields.text(name, _ACTIVATIONS[family.activation][0])
    if activation not in _ACTIVATIONS[family.activation]:
        raise UnsupportedModelError(
            f"{fields.where}: {name}: {shown(activation)} is not supported; {family.name} has "
            f"{_ACTIVATIONS[family.activation][0]}"
        )

    def scaling(name: Scaling, default: float) -> float:
        """What the file states, if its family may; null, where that is allowed, means none."""
        return fields.number(_SCALINGS[name][0], 1e-6, 1e6, default) if name in family.scalings else default

    n_layers = fields.integer(key("num_hidden_layers"), 1, LIMITS["layers"])
    d_model = fields.integer(key("hidden_size"), 1, LIMITS["d_model"])
    n_heads = fields.integer(key("num_attention_heads"), 1, LIMITS["heads"])
    n_kv = fields.integer("num_key_value_heads", 1, LIMITS["heads"], n_heads)
    if n_heads % n_kv:
        raise fields.fault("num_key_value_heads", f"is {n_kv}, which does not divide the {n_heads} heads")
    d_head = fields.optional_integer("head_dim", 2, LIMITS["d_head"])
    if d_head is None:
        if d_model % n_heads:
            raise fields.fault(key("num_attention_heads"), f"is {n_heads}, which does not divide the width {d_model}")
        d_head = d_model // n_heads
    if d_head % 2 and family.rotated != "none":
        raise fields.fault("head_dim", f"is {d_head}; rotary positions need an even one")
    scalar = fields.number("query_pre_attn_scalar", 1e-3, 1e6, float(d_head))
    biases = family.biases if fields.flag("use_bias", True) else family.biases & {"norm"}
    attention_bias = fields.flag("attention_bias", False)
    biases -= frozenset[Bias]() if fields.flag("qkv_bias", True) else {"qkv"}
    qk_norm = family.qk_norm
    if family.qk_norm_optional and not fields.flag("use_qk_norm", False):
        qk_norm = "none"
    layers, context = _layers(folder, n_layers, d_head)
    return ModelSpec(
        family=family.name,
        name=folder.path.resolve().name,
        vocab=fields.integer("vocab_size", 1, LIMITS["vocab"]),
        d_model=d_model,
        d_ff=_d_ff(folder, d_model),
        experts=_experts(folder),
        sinks=family.sinks,
        n_heads=n_heads,
        n_kv_heads=n_kv,
        d_head=d_head,
        layers=layers,
        context=context,
        norm_eps=fields.number(key("rms_norm_eps"), 1e-12, 1e-2),
        attn_scale=scaling("attn_scale", scalar**-0.5),
        activation=family.activation,
        gated=family.gated,
        norm=family.norm,
        norm_bias="norm" in biases,
        qkv_bias="qkv" in biases or attention_bias,
        out_bias="out" in biases or attention_bias,
        mlp_bias="mlp" in biases or fields.flag("mlp_bias", False),
        qk_norm=qk_norm,
        pre_norms=family.pre_norms,
        post_norms=family.post_norms,
        parallel=family.parallel,
        learned_positions=family.learned_positions,
        embed_scale=math.sqrt(d_model) if family.embed_scaled else scaling("embed_scale", 1.0),
        residual_scale=scaling("residual_scale", 1.0),
        attn_softcap=scaling("attn_softcap", 0.0),
        logit_scale=scaling("logit_scale", 1.0) / scaling("logit_divisor", 1.0),
        logit_softcap=scaling("logit_softcap", 0.0),
        tied=fields.flag("tie_word_embeddings", False) or tied_by_absence,
    )


def _d_ff(folder: Folder, d_model: int) -> int:
    """Width of the MLP or of each expert; where the family spells it n_inner, silence means four times the model's."""
    key = folder.key("intermediate_size" if folder.family.routed == "none" else "moe_intermediate_size")
    return folder.fields.integer(key, 1, LIMITS["d_ff"], 4 * d_model if key == "n_inner" else None)


def _experts(folder: Folder) -> ExpertsSpec | None:
    """The mixture, where the family has one."""
    fields, family = folder.fields, folder.family
    if family.routed == "none":
        return None
    for key, only in _CLAMPED.items() if family.activation == "clamped" else ():
        if (stated := fields.number(key, 0.0, 1e6, only)) != only:
            raise UnsupportedModelError(
                f"{fields.where}: {key}: {stated:g} is not supported for {family.name}; {only} is"
            )
    if (sparse := fields.integer("decoder_sparse_step", 1, LIMITS["layers"], 1)) != 1:
        raise UnsupportedModelError(f"{fields.where}: decoder_sparse_step: {sparse} is not supported; 1 is")
    # Some configurations are written under either name, by one version of transformers or another.
    key = "num_local_experts" if fields.has("num_local_experts") else "num_experts"
    count = fields.integer(key, 1, LIMITS["experts"])
    top = fields.integer("num_experts_per_tok", 1, LIMITS["experts"])
    if top > count:
        raise fields.fault("num_experts_per_tok", f"is {top}, but there are {count} experts")
    shared = fields.integer("shared_expert_intermediate_size", 1, LIMITS["d_ff"]) if family.shared_expert else 0
    normalized = fields.flag("norm_topk_prob", family.routed == "normalized")
    return ExpertsSpec(count, top, normalized, shared, shared_gated=family.shared_expert)


def _says_mxfp4(value: object) -> bool:
    return isinstance(value, dict) and cast("dict[str, object]", value).get("quant_method") == "mxfp4"


def _layers(folder: Folder, n_layers: int, d_head: int) -> tuple[tuple[LayerSpec, ...], int]:
    """The layers, and the longest sequence that they are made for."""
    fields, family = folder.fields, folder.family
    context = fields.integer(folder.key("max_position_embeddings"), 1, LIMITS["context"])
    local = _local_layers(fields, family, n_layers)
    window = fields.integer("sliding_window", 1, LIMITS["window"]) if any(local) else 0
    if family.rotated == "none":
        return tuple(LayerSpec(window if is_local else 0, None) for is_local in local), context
    spread, reach = _rope(fields, family, "full_attention", d_head, "rope_theta", context)
    near = spread
    if family.local_rope_base is not None:
        near, _ = _rope(fields, family, "sliding_attention", d_head, "rope_local_base_freq", context)
    layers = [LayerSpec(window, near) if is_local else LayerSpec(0, spread) for is_local in local]
    listed = None
    if family.rotated == "interval" and fields.has("no_rope_layers"):
        listed = [bool(v) for v in fields.numbers("no_rope_layers", 0, 1)]
        if len(listed) != n_layers:
            raise fields.fault("no_rope_layers", f"has {len(listed)} entries for {n_layers} layers")
    interval = fields.integer("no_rope_layer_interval", 1, LIMITS["layers"], family.rotary_interval)
    return rotated_layers(family, layers, interval, listed), max(context, reach)


def _local_layers(fields: Fields, family: Family, n_layers: int) -> list[bool]:
    """Which layers see a sliding window only."""
    if fields.has("layer_types"):
        kinds = fields.strings("layer_types")
        known = {"sliding_attention": True, "full_attention": False}
        for kind in kinds:
            if kind not in known:
                raise UnsupportedModelError(
                    f"{fields.where}: layer_types: {shown(kind)} is not supported; known are {', '.join(known)}"
                )
        if len(kinds) != n_layers:
            raise fields.fault("layer_types", f"has {len(kinds)} entries for {n_layers} layers")
        return [known[kind] for kind in kinds]
    if family.windows == "pattern":
        key = "sliding_window_pattern" if fields.has("sliding_window_pattern") else "_sliding_window_pattern"
        pattern = fields.integer(key, 1, LIMITS["layers"], family.window_pattern)
        return [i % pattern < pattern - 1 for i in range(n_layers)]
    if family.windows == "none" and family.routed != "none" and fields.flag("use_sliding_window", False):
        raise UnsupportedModelError(f"{fields.where}: use_sliding_window: not supported for {family.name} by that key")
    if family.windows == "none" or not fields.has("sliding_window"):
        return [False] * n_layers
    if family.windows == "all":
        return [True] * n_layers
    first = fields.integer("max_window_layers", 0, LIMITS["layers"])
    return [fields.flag("use_sliding_window", False) and i >= first for i in range(n_layers)]


def _rope(fields: Fields, family: Family, kind: str, d_head: int, base_key: str, context: int) -> tuple[RopeSpec, int]:
    """Rotary positions of the layers of one kind, and the context that their scaling stretches to (0: it does not);
    rope_parameters (transformers 5) wins over the older keys."""
    partial = fields.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    scaling = fields.table("rope_scaling") if base_key == "rope_theta" else None
    base = fields.number(base_key, 1.0, 1e12, 10000.0)
    parameters = fields.table("rope_parameters")
    if parameters is not None:
        scaling = parameters.table(kind) if any(isinstance(v, dict) for v in parameters.values.values()) else parameters
        if scaling is not None:
            base = scaling.number("rope_theta", 1.0, 1e12, base)
            partial = scaling.number("partial_rotary_factor", 0.0, 1.0, partial)
    if partial != 1.0 and not family.rotary_partial:
        raise UnsupportedModelError(
            f"{fields.where}: partial_rotary_factor: {partial:g} is not supported for {family.name}; 1 is"
        )
    dims = int(d_head * partial)
    if dims < 2 or dims % 2:
        raise fields.fault("partial_rotary_factor", f"rotates {dims} of {d_head} values; it must be an even number")
    plain = RopeSpec(base, dims)
    if scaling is None:
        return plain, 0
    method = scaling.text("rope_type", scaling.text("type", "default"))
    if method == "default":
        return plain, 0
    if method == "linear":
        return replace(plain, linear=scaling.number("factor", 1e-3, 1e6)), 0
    if method == "dynamic":
        stretch = scaling.number("factor", 1.0, 1e6)
        return replace(plain, trained=context, stretch=stretch), int(context * stretch)
    trained = scaling.integer(
        "original_max_position_embeddings",
        1,
        LIMITS["context"],
        fields.integer("original_max_position_embeddings", 1, LIMITS["context"], context),
    )
    if method == "llama3":
        low, high = scaling.number("low_freq_factor", 1e-3, 1e6), scaling.number("high_freq_factor", 1e-3, 1e6)
        if high <= low:
            raise scaling.fault("high_freq_factor", f"is {high:g}, not above low_freq_factor {low:g}")
        factor = scaling.number("factor", 1.0, 1e6)
        return replace(plain, factors=llama3_factors(base, dims, factor, low, high, trained)), 0
    factor = scaling.number("factor", 1.0, 1e6, max(1.0, context / trained))
    magnitude = scaling.optional_number("attention_factor", 1e-3, 1e3)
    if method in ("longrope", "su") or (method == "yarn" and scaling.has("long_factor")):
        short, long = (scaling.numbers(name, 1e-6, 1e9) for name in ("short_factor", "long_factor"))
        for name, factors in (("short_factor", short), ("long_factor", long)):
            if len(factors) != dims // 2:
                raise scaling.fault(name, f"has {len(factors)} entries for {dims // 2} frequencies")
        magnitude = longrope_magnitude(factor, trained) if magnitude is None else magnitude
        return replace(plain, factors=short, magnitude=magnitude, trained=trained, long_factors=long), 0
    if method != "yarn":
        raise UnsupportedModelError(
            f"{scaling.where}: rotary scaling {shown(method)} is not supported; known are default, linear, dynamic, "
            "yarn, longrope and llama3"
        )
    if magnitude is None:
        weight, whole = (scaling.number(name, 0.0, 1e3, 0.0) for name in ("mscale", "mscale_all_dim"))
        both = weight and whole
        magnitude = yarn_magnitude(factor, weight) / yarn_magnitude(factor, whole) if both else yarn_magnitude(factor)
    fast = scaling.number("beta_fast", 1e-3, 1e6, 32.0)
    slow = scaling.number("beta_slow", 1e-3, 1e6, 1.0)
    factors = yarn_factors(base, dims, factor, trained, fast, slow, whole=scaling.flag("truncate", True))
    return replace(plain, factors=factors, magnitude=magnitude), int(trained * factor)


def tokenizer_from_hf(folder: Folder, vocab: int) -> TokenizerSource:
    """The tokenizer of a model's folder, with the ids that its configuration names; see `tokenizer_from_folder`."""
    return tokenizer_from_folder(folder.path, vocab, (folder.fields, folder.outer))


def tokenizer_from_folder(path: Path, vocab: int, configs: Sequence[Fields] = ()) -> TokenizerSource:
    """tokenizer.json (or tekken.json) with the ids and the chat template that stand beside it.

    vocab: rows of the model, which no id may pass. configs: where else the ids of BOS and EOS may be named.
    Raises UnsupportedModelError: there is neither of the two; ModelFileError.
    """
    file = path / "tokenizer.json"
    settings = _optional(path / "tokenizer_config.json")
    if not file.is_file():
        if (path / from_tekken.NAME).is_file():
            source = from_tekken.tokenizer_from_tekken(path / from_tekken.NAME, vocab)
            return replace(source, chat_template=_template(path, settings))
        raise UnsupportedModelError(f"{path}: no tokenizer.json{_instead(path)}")
    generation = _optional(path / "generation_config.json")
    added = _added_tokens(file)

    def spelled(key: str) -> int | None:
        value = settings.values.get(key)
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get("content")
        found = added.get(value) if isinstance(value, str) else None
        if found is not None and found >= vocab:
            raise ModelFileError(
                f"tokenizer.json: the id {shown(found)} of {shown(value)} is outside the vocabulary of {vocab}"
            )
        return found

    sources = (generation, *configs)
    named = [i for source in sources for i in _ids(source, "eos_token_id", vocab)]
    eos = spelled("eos_token")
    bos = spelled("bos_token")
    pad = spelled("pad_token")
    first_bos = [i for source in sources for i in _ids(source, "bos_token_id", vocab)]
    ends = [eos, *named, *(i for i in end_of_turn_ids(added) if i < vocab)]
    return TokenizerSource(
        kind="json",
        json_path=file,
        bos_id=bos if bos is not None else next(iter(first_bos), None),
        eos_id=eos if eos is not None else next(iter(named), None),
        unk_id=spelled("unk_token"),
        pad_id=pad,
        eot_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        add_bos=settings.flag("add_bos_token", False),
        add_eos=settings.flag("add_eos_token", False),
        add_space_prefix=settings.flag("add_prefix_space", False),
        chat_template=_template(path, settings),
    )


def _instead(folder: Path) -> str:
    """What to do about a folder without tokenizer.json, by what it holds."""
    names = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", *(p.name for p in folder.glob("*.tiktoken")))
    found = next((name for name in names if (folder / name).is_file()), None)
    held = f"; {found} is not read (it does not say how text is cut)" if found else ""
    return f"{held}: save it with transformers' fast tokenizer, or give another with --tokenizer"


def _optional(path: Path) -> Fields:
    return Fields(path.name, strict_json.read(MappedFile(path)) if path.is_file() else {})


def _ids(fields: Fields, key: str, vocab: int) -> list[int]:
    value = fields.values.get(key)
    if value is None:
        return []
    out: list[int] = []
    for item in cast("list[object]", value) if isinstance(value, list) else [value]:
        if not isinstance(item, int) or isinstance(item, bool):
            raise fields.fault(key, f"is {shown(cast(object, value))}, not an id or a list of ids")
        if not 0 <= item < vocab:
            raise fields.fault(key, f"is {shown(item)}, outside the vocabulary of {vocab}")
        out.append(item)
    return out


def _template(folder: Path, settings: Fields) -> str | None:
    """chat_template.jinja, or what tokenizer_config.json says (of several, the one named default)."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        file = MappedFile(path)
        if file.size > _TEMPLATE_LIMIT:
            raise ModelFileError(f"{path.name}: {file.size} bytes; at most {_TEMPLATE_LIMIT} are read")
        try:
            return file.map[:].decode()
        except UnicodeDecodeError as e:
            raise ModelFileError(f"{path.name}: not UTF-8 at byte {e.start}") from None
    value = settings.values.get("chat_template")
    if isinstance(value, list):
        for item in cast("list[object]", value):
            entry = cast("dict[str, object]", item) if isinstance(item, dict) else {}
            if entry.get("name") == "default" and isinstance(entry.get("template"), str):
                return cast(str, entry["template"])
        return None
    return settings.optional_text("chat_template")


def _added_tokens(path: Path) -> dict[str, int]:
    """Spelling → id of the special tokens of a tokenizer.json. Only that list is parsed: the rest may be 30 MB."""
    file = MappedFile(path)
    at = file.map.find(b'"added_tokens"')
    if at < 0:
        return {}
    text = file.map[at + 14 : at + 14 + (4 << 20)].decode(errors="replace")
    start = text.find("[", 0, 64)
    if start < 0 or text[:start].strip() != ":":
        raise ModelFileError(f"{path.name}: added_tokens is not a list")
    where = f"{path.name}: added_tokens"
    end = strict_json.extent(text, start, where, depth=3, values=1 << 17)
    try:
        items = cast("list[object]", json.loads(text[start:end]))
    except (ValueError, RecursionError) as e:
        raise ModelFileError(f"{where}: not JSON ({e})") from None
    out: dict[str, int] = {}
    for item in items:
        entry = Fields(where, cast("dict[str, object]", item) if isinstance(item, dict) else {})
        if entry.flag("special", False):
            out[entry.text("content")] = entry.integer("id", 0, 1 << 31)
    return out
