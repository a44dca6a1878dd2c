"""What a person writes is read as what they meant."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from pellucid.checkpoint.families import FAMILIES as ALL_FAMILIES
from pellucid.errors import ConfigError, ModelNotFoundError
from pellucid.models import hub, quants, registry, sources
from pellucid.models.sources import HubSource, PackageSource, PathSource, parse

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("org/repo", HubSource("org/repo")),
        ("hf:org/repo", HubSource("org/repo")),
        ("org/repo:q4_k_m", HubSource("org/repo", quant="Q4_K_M")),
        ("org/repo/file.gguf", HubSource("org/repo", file="file.gguf")),
        ("org/repo/deep/er/file-Q8_0.gguf", HubSource("org/repo", file="deep/er/file-Q8_0.gguf")),
        (f"org/repo:Q8_0#sha256={DIGEST}", HubSource("org/repo", quant="Q8_0", sha256=DIGEST)),
        ("pypi:a", PackageSource(("a",))),
        ("pypi:a==1.0+b-part2==1.0", PackageSource(("a==1.0", "b-part2==1.0"))),
        (f"pypi:a==1#sha256={DIGEST.upper()}", PackageSource(("a==1",), DIGEST)),
    ],
)
def test_spellings(text: str, source: sources.Source) -> None:
    assert parse(text) == source


def test_spellings_round_trip() -> None:
    for text in ("org/repo", "org/repo:Q4_K_M", "org/repo/a/b.gguf", "pypi:a==1.0+b==2"):
        assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["qwen3-4b", "qwen3:4b", " Qwen3-4B "])
def test_names_are_read_kindly(text: str) -> None:
    assert parse(text) == HubSource("Qwen/Qwen3-4B-GGUF", quant="Q4_K_M")


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "repo").mkdir(parents=True)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert parse("org/repo") == PathSource(Path("org/repo"))
    assert parse("m.gguf") == PathSource(Path("m.gguf"))
    assert parse(str(tmp_path / "m.gguf")) == PathSource(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("", "empty"),
        ("smolm2", "did you mean smollm2"),
        ("xyzzy", "pellucid ls --all"),
        ("./nowhere.gguf", "no file or folder"),
        ("/nowhere/at/all", "no file or folder"),
        ("nowhere.gguf", "no file nowhere.gguf"),
        ("org/repo/x.bin", "neither"),
        ("org/../repo/x.gguf", "neither"),
        ("org/repo/../../x.gguf", "neither"),
        ("org/repo:Q4 K", "neither"),
        ("-org/repo", "neither"),
        ("https://huggingface.co/org/repo", "no model is named"),
        ("a\0b", "no model is named"),
        ("x" * 5000, "no model is named"),
    ],
)
def test_what_is_none_of_these_is_said(text: str, needle: str) -> None:
    with pytest.raises(ModelNotFoundError) as e:
        parse(text)
    assert needle in e.value.message
    assert "\n" not in e.value.message


@pytest.mark.parametrize(
    "text",
    [
        "pypi:",
        "pypi:--index-url=http://evil",
        "pypi:a==1.0+",
        "pypi:a @ http://evil/x.whl",
        "pypi:../a",
        "pypi:-r x",
        "org/repo#sha256=12",
        "org/repo#md5=" + DIGEST,
    ],
)
def test_sources_that_are_not_well_formed(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)


def test_the_registry_is_sound() -> None:
    assert registry.DEFAULT in registry.BY_NAME
    assert len(registry.BY_NAME) == len(registry.MODELS)
    for row in registry.MODELS:
        source = sources.row_source(row)
        assert sources.row_of(source) == row
        assert row.name == row.name.lower()
        assert ":" not in row.name
        assert row.family in FAMILIES
        assert row.sha256 is None or len(row.sha256) == 64
        if isinstance(source, HubSource):
            assert quants.readable(source.quant), row.name
        if row.gated:
            assert row.alternative is not None
            assert not registry.BY_NAME[row.alternative].gated
    assert not registry.BY_NAME[registry.OPEN_ALTERNATIVE].gated


FAMILIES = {family.name for family in ALL_FAMILIES}

# What each repository calls the file of its row, and its bytes (all parts of a split), as public catalogues that pin
# the file state them. Repositories differ in how they write a name, so a row names the quantization; this holds the
# reading to the real names.
HUB_FILES = {
    "gemma3-270m": ("gemma-3-270m-it-Q8_0.gguf", 291_545_600),
    "smollm2-360m": ("smollm2-360m-instruct-q8_0.gguf", 386_404_992),
    "qwen2.5-0.5b": ("qwen2.5-0.5b-instruct-q4_k_m.gguf", 491_400_032),
    "qwen3-0.6b": ("Qwen3-0.6B-Q8_0.gguf", 639_446_688),
    "gemma3-1b": ("gemma-3-1b-it-Q4_K_M.gguf", 806_058_240),
    "gemma3-1b-qat": ("gemma-3-1b-it-q4_0.gguf", 1_003_541_152),
    "llama3.2-1b": ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", 807_694_464),
    "olmo2-1b": ("OLMo-2-0425-1B-Instruct-Q4_K_M.gguf", 935_515_296),
    "smollm2-1.7b": ("smollm2-1.7b-instruct-q4_k_m.gguf", 1_055_609_536),
    "qwen2.5-1.5b": ("qwen2.5-1.5b-instruct-q4_k_m.gguf", 1_117_320_736),
    "qwen3-1.7b": ("Qwen3-1.7B-Q8_0.gguf", 1_834_426_016),
    "gemma2-2b": ("gemma-2-2b-it-Q4_K_M.gguf", 1_708_582_752),
    "granite3.3-2b": ("granite-3.3-2b-instruct-Q4_K_M.gguf", 1_545_303_328),
    "starcoder2-3b": ("starcoder2-3b.Q4_K_M.gguf", 1_887_905_664),
    "qwen2.5-3b": ("qwen2.5-3b-instruct-q4_k_m.gguf", 2_104_932_768),
    "llama3.2-3b": ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", 2_019_377_696),
    "smollm3-3b": ("SmolLM3-3B-Q4_K_M.gguf", 1_915_306_528),
    "mistral-7b": ("Mistral-7B-Instruct-v0.3-Q4_K_M.gguf", 4_372_812_000),
    "phi3.5-mini": ("Phi-3.5-mini-instruct-Q4_K_M.gguf", 2_393_232_672),
    "phi4-mini": ("Phi-4-mini-instruct-Q4_K_M.gguf", 2_491_874_272),
    "gemma3-4b": ("gemma-3-4b-it-Q4_K_M.gguf", 2_489_757_856),
    "gemma3-4b-qat": ("gemma-3-4b-it-q4_0.gguf", 3_155_051_328),
    "qwen3-4b": ("Qwen3-4B-Q4_K_M.gguf", 2_497_280_256),
    "qwen2.5-7b": ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", 4_683_073_632),
    "command-r7b": ("c4ai-command-r7b-12-2024-Q4_K_M.gguf", 5_057_009_792),
    "llama3.1-8b": ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", 4_920_739_232),
    "gemma2-9b": ("gemma-2-9b-it-Q4_K_M.gguf", 5_761_057_728),
    "mistral-nemo": ("Mistral-Nemo-Instruct-2407-Q4_K_M.gguf", 7_477_208_192),
    "qwen3-8b": ("Qwen3-8B-Q4_K_M.gguf", 5_027_783_488),
}


def test_every_row_of_the_hub_finds_its_file() -> None:
    hub_rows = [row for row in registry.MODELS if isinstance(sources.row_source(row), HubSource)]
    assert [row.name for row in hub_rows] == list(HUB_FILES)
    for row in hub_rows:
        source = sources.row_source(row)
        assert isinstance(source, HubSource)
        file, nbytes = HUB_FILES[row.name]
        later_part = file.replace("-00001-of", "-00002-of")
        others = ["x-Q4_K_L.gguf", "x-Q4_0_4_4.gguf", "x-fp16.gguf", "mmproj-x-Q8_0.gguf"]
        found = hub.Listing(source.repo, "0", dict.fromkeys([*others, later_part, file], (1, None)), None)
        assert hub.choose(found, source).main == file
        assert abs(row.nbytes - nbytes) <= 600_000, row.name


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gemma-3-1b-it-Q8_0.gguf", "Q8_0"),
        ("x-fp16.gguf", "F16"),
        ("BF16/x-BF16-00001-of-00003.gguf", "BF16"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("x-IQ4_XS.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("x-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("x-TQ1_0.gguf", "TQ1_0"),
        ("ggml-model-i2_s.gguf", None),
        ("model.gguf", None),
        ("llama-3.2-1b.gguf", None),
    ],
)
def test_quantizations_are_read_off_names(file: str, quant: str | None) -> None:
    assert quants.quant_of(file) == quant


def test_readable_follows_the_table_of_formats() -> None:
    assert all(quants.readable(q) for q in ("Q4_K_M", "Q8_0", "Q4_0", "F16", "BF16", "F32", None))
    assert not any(quants.readable(q) for q in ("IQ2_XXS", "IQ3_M", "UD-IQ1_S", "UD-Q2_K_XL"))
    for label in quants.LABELS:
        assert quants.readable(label)
        assert quants.quant_of(f"m-{label}.gguf") == label


def test_file_types_are_those_of_ggml() -> None:
    ggml = {t.value: t.name.removeprefix("MOSTLY_").removeprefix("ALL_") for t in gguf.LlamaFileType}
    assert all(ggml[value] == label for value, label in quants.FILE_TYPES.items())
    assert all(
        label in quants.FILE_TYPES.values()
        for label in quants.LABELS
        if label[:2] != "UD" and label[-1] != "L" and label != "MXFP4"
    )


@pytest.mark.parametrize(
    ("file", "file_type", "formats", "label"),
    [
        ("m-Q5_K_M.gguf", 17, {"q5_k": 9, "q6_k": 3, "f32": 1}, "Q5_K_M"),
        ("m.gguf", 12, {"q3_k": 9, "q4_k": 3, "q5_k": 1}, "Q3_K_M"),
        ("m-Q4_K_L.gguf", 15, {"q4_k": 9, "q8_0": 3}, "Q4_K_L"),
        ("m-Q4_K_M.gguf", 7, {"q8_0": 9, "f32": 1}, "Q8_0"),
        ("m-Q4_K_M.gguf", 15, {"iq4_xs": 9, "q6_k": 12}, "Q6_K"),
        ("m.gguf", True, {"f16": 9}, "F16"),
        ("m.gguf", "15", {"mxfp4": 9, "f32": 2}, "MXFP4"),
        ("folder", None, {"bf16": 9}, "BF16"),
        ("folder", None, {}, None),
    ],
)
def test_a_mix_is_named_by_what_fits_it(
    file: str, file_type: object, formats: dict[str, int], label: str | None
) -> None:
    assert quants.label_of(file, file_type, formats) == label
