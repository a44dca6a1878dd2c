"""ModelSpec and TokenizerSource from the JSON files of a Hugging Face folder.

Law: a key means what transformers' configuration classes say, silence included (`Family.hf_defaults`); a setting that
would change the arithmetic in a way we do not know is refused by name. Nothing of a folder is ever run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pellucid.checkpoint import strict_json
from pellucid.checkpoint.families import FAMILIES, LIMITS, NAMES, Family
from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.mapped import MappedFile, shown
from pellucid.checkpoint.tokens import end_of_turn_ids
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.models.spec import LayerSpec, ModelSpec, RopeSpec
from pellucid.models.tokens import TokenizerSource

_ACTIVATIONS = {"silu": ("silu", "swish"), "gelu_tanh": ("gelu_pytorch_tanh",)}
_REFUSED = {
    "quantization_config": "quantised weights",
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "mlp_bias": "biases in the MLP",
    "use_bidirectional_attention": "attention in both directions",
}
"""Settings that change the arithmetic, unless they are null, 0 or false."""
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
    values = family.hf_defaults | dict(inner.values)  # an explicit null stays: it is not silence
    if text is not None and "tie_word_embeddings" in outer.values and "tie_word_embeddings" not in text.values:
        values["tie_word_embeddings"] = outer.values["tie_word_embeddings"]
    return Folder(path, family, Fields(inner.where, values), outer)


def spec_from_hf(folder: Folder, *, tied_by_absence: bool) -> ModelSpec:
    """The spec that config.json describes; `tied_by_absence`: there is no lm_head among the weights."""
    fields, family = folder.fields, folder.family
    for key, what in _REFUSED.items():
        for source in (fields, folder.outer):
            if source.values.get(key) not in (None, False, 0):
                raise UnsupportedModelError(f"{source.where}: {key}: {what} are not supported for {family.name}")
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    activation = fields.text(key, _ACTIVATIONS[family.activation][0])
    if activation not in _ACTIVATIONS[family.activation]:
        raise UnsupportedModelError(
            f"{fields.where}: {key}: {shown(activation)} is not supported; {family.name} has "
            f"{_ACTIVATIONS[family.activation][0]}"
        )
    n_layers = fields.integer("num_hidden_layers", 1, LIMITS["layers"])
    d_model = fields.integer("hidden_size", 1, LIMITS["d_model"])
    n_heads = fields.integer("num_attention_heads", 1, LIMITS["heads"])
    n_kv = fields.integer("num_key_value_heads", 1, LIMITS["heads"], n_heads)
    if n_heads % n_kv:
        raise fields.fault("num_key_value_heads", f"is {n_kv}, which does not divide the {n_heads} heads")
    d_head = fields.optional_integer("head_dim", 2, LIMITS["d_head"])
    if d_head is None:
        if d_model % n_heads:
            raise fields.fault("num_attention_heads", f"is {n_heads}, which does not divide the width {d_model}")
        d_head = d_model // n_heads
    if d_head % 2:
        raise fields.fault("head_dim", f"is {d_head}; rotary positions need an even one")
    scalar = fields.number("query_pre_attn_scalar", 1e-3, 1e6, float(d_head))
    return ModelSpec(
        family=family.name,
        name=folder.path.resolve().name,
        vocab=fields.integer("vocab_size", 1, LIMITS["vocab"]),
        d_model=d_model,
        d_ff=fields.integer("intermediate_size", 1, LIMITS["d_ff"]),
        n_heads=n_heads,
        n_kv_heads=n_kv,
        d_head=d_head,
        layers=_layers(fields, family, n_layers, d_head),
        context=fields.integer("max_position_embeddings", 1, LIMITS["context"]),
        norm_eps=fields.number("rms_norm_eps", 1e-12, 1e-2),
        attn_scale=scalar**-0.5,
        activation=family.activation,
        qkv_bias=family.qkv_bias or fields.flag("attention_bias", False),
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        embed_scale=math.sqrt(d_model) if family.embed_scaled else 1.0,
        tied=fields.flag("tie_word_embeddings", False) or tied_by_absence,
    )


def _layers(fields: Fields, family: Family, n_layers: int, d_head: int) -> tuple[LayerSpec, ...]:
    local = _local_layers(fields, family, n_layers)
    window = fields.integer("sliding_window", 1, LIMITS["window"]) if any(local) else 0
    spread = _rope(fields, "full_attention", d_head, "rope_theta")
    near = spread
    if family.windows == "pattern":
        near = _rope(fields, "sliding_attention", d_head, "rope_local_base_freq")
    return tuple(LayerSpec(window, near) if is_local else LayerSpec(0, spread) for is_local in local)


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
    if family.windows == "none" or not fields.has("sliding_window"):
        return [False] * n_layers
    if family.windows == "all":
        return [True] * n_layers
    first = fields.integer("max_window_layers", 0, LIMITS["layers"])
    return [fields.flag("use_sliding_window", False) and i >= first for i in range(n_layers)]


def _rope(fields: Fields, kind: str, d_head: int, base_key: str) -> RopeSpec:
    """Rotary positions of the layers of one kind; rope_parameters (transformers 5) wins over the older keys."""
    partial = fields.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    scaling = fields.table("rope_scaling") if base_key == "rope_theta" else None
    base = fields.number(base_key, 1.0, 1e12, 10000.0)
    parameters = fields.table("rope_parameters")
    if parameters is not None:
        scaling = parameters.table(kind) if any(isinstance(v, dict) for v in parameters.values.values()) else parameters
        if scaling is not None:
            base = scaling.number("rope_theta", 1.0, 1e12, base)
            partial = scaling.number("partial_rotary_factor", 0.0, 1.0, partial)
    if partial != 1.0:
        raise UnsupportedModelError(f"{fields.where}: partial_rotary_factor: {partial:g} is not supported; 1 is")
    if scaling is None:
        return RopeSpec(base, d_head)
    method = scaling.text("rope_type", scaling.text("type", "default"))
    if method == "default":
        return RopeSpec(base, d_head)
    if method == "linear":
        return RopeSpec(base, d_head, scaling.number("factor", 1e-3, 1e6))
    if method == "llama3":
        return RopeSpec(base, d_head, factors=_llama3_factors(scaling, base, d_head))
    raise UnsupportedModelError(
        f"{scaling.where}: rotary scaling {shown(method)} is not supported; known are default, linear and llama3"
    )


def _llama3_factors(scaling: Fields, base: float, d_head: int) -> tuple[float, ...]:
    """Divisors of the frequencies: 1 for short waves, `factor` for long ones, and between them 1/f interpolated.

    Source: transformers' modeling_rope_utils, llama3.
    """
    factor = scaling.number("factor", 1.0, 1e6)
    low, high = scaling.number("low_freq_factor", 1e-3, 1e6), scaling.number("high_freq_factor", 1e-3, 1e6)
    trained = scaling.integer("original_max_position_embeddings", 1, LIMITS["context"])
    if high <= low:
        raise scaling.fault("high_freq_factor", f"is {high:g}, not above low_freq_factor {low:g}")
    factors: list[float] = []
    for j in range(d_head // 2):
        turns = trained / (2 * math.pi * base ** (2 * j / d_head))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(factors)


def tokenizer_from_hf(folder: Folder, vocab: int) -> TokenizerSource:
    """tokenizer.json with the ids and the chat template that stand beside it, each id checked against `vocab`."""
    path = folder.path / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModelError(
            f"{folder.path}: no tokenizer.json; other tokenizer files are not read: "
            "save it with transformers' fast tokenizer"
        )
    settings = _optional(folder.path / "tokenizer_config.json")
    generation = _optional(folder.path / "generation_config.json")
    added = _added_tokens(path)

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

    sources = (generation, folder.fields, folder.outer)
    named = [i for source in sources for i in _ids(source, "eos_token_id", vocab)]
    eos = spelled("eos_token")
    bos = spelled("bos_token")
    pad = spelled("pad_token")
    first_bos = [i for source in sources for i in _ids(source, "bos_token_id", vocab)]
    ends = [eos, *named, *(i for i in end_of_turn_ids(added) if i < vocab)]
    return TokenizerSource(
        kind="json",
        json_path=path,
        bos_id=bos if bos is not None else next(iter(first_bos), None),
        eos_id=eos if eos is not None else next(iter(named), None),
        unk_id=spelled("unk_token"),
        pad_id=pad,
        eot_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        add_bos=settings.flag("add_bos_token", False),
        add_eos=settings.flag("add_eos_token", False),
        add_space_prefix=settings.flag("add_prefix_space", False),
        chat_template=_template(folder.path, settings),
    )


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
