"""`pellucid show --verify`, --tokenizer on the commands, and the line of a server's start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, pre_tokenizers, trainers

from cli.conftest import Cli
from pellucid.checkpoint.open import open_checkpoint
from pellucid.cli import verify
from pellucid.llm import LLM
from pellucid.models.tokens import CONTROL, NORMAL
from text.corpus import SHORT
from tinyfiles import LLAMA, weights, write_gguf, write_hf

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"


@pytest.fixture(scope="module")
def engine() -> Library:
    """A byte-level BPE that cuts as Qwen does, with control tokens."""
    published = json.loads((Path(__file__).parents[1] / "text" / "pretokenizers.json").read_text())["qwen2"]
    library = Library.from_str(
        json.dumps(
            {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
            | {key: published[key] for key in ("normalizer", "pre_tokenizer")}
        )
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=1,
        special_tokens=["<unk>", "<s>", "</s>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(SHORT, trainer)
    return library


def pair(tmp_path: Path, engine: Library, **changes: object) -> tuple[Path, Path]:
    """A GGUF file and the folder of its twin. `changes` are key-values of the GGUF file."""
    from dataclasses import replace

    model = json.loads(engine.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    spec = replace(LLAMA, vocab=len(pieces))
    values = weights(spec)
    folder = write_hf(tmp_path / "twin", spec, values)
    engine.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    keys: dict[str, object] = {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "qwen2",
        "tokenizer__ggml__tokens": pieces,
        "tokenizer__ggml__token_type": [CONTROL] * 4 + [NORMAL] * (len(pieces) - 4),
        "tokenizer__ggml__scores": [0.0] * len(pieces),
        "tokenizer__ggml__merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        "tokenizer__ggml__add_bos_token": False,
        "tokenizer__chat_template": TEMPLATE,
    }
    return write_gguf(tmp_path / "m.gguf", spec, values, **keys | changes), folder


def test_equal(cli: Cli, tmp_path: Path, engine: Library) -> None:
    model, folder = pair(tmp_path, engine)
    got = cli("show", "--verify", str(model), "--tokenizer", str(folder))
    assert (got.code, got.err) == (0, "")
    assert "m.gguf against twin/" in got.out
    assert "  equal" in got.out
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (folder / "tokenizer_config.json").rename(tmp_path / "tokenizer_config.json")
    result = json.loads(cli("show", "--verify", "--json", str(model)).out)  # beside the model: found unasked
    assert result["equal"] is True
    assert (result["differences"], result["not_compared"]) == ([], [])
    assert result["texts"] > 80 and result["conversations"] > 5 and result["pieces"] == 400


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"tokenizer__ggml__pre": "llama-bpe"}, "ids", "composed: at token"),
        ({"tokenizer__ggml__pre": "gpt-2"}, "ids", "at token"),
        ({"tokenizer__ggml__add_bos_token": True}, "frame", "1 '<s>' here"),
        ({"tokenizer__chat_template": TEMPLATE.replace("\n", " ")}, "template", "conversation 0: at character"),
    ],
)
def test_differences(
    cli: Cli, tmp_path: Path, engine: Library, changes: dict[str, object], kind: str, told: str
) -> None:
    model, folder = pair(tmp_path, engine, **changes)
    got = cli("show", "--verify", str(model), "--tokenizer", str(folder))
    assert got.code == 1
    assert told in got.out
    result = json.loads(cli("show", "--verify", "--json", str(model), "--tokenizer", str(folder)).out)
    assert result["equal"] is False
    first = next(d for d in result["differences"] if d["kind"] == kind)
    assert first["ours"] != first["theirs"]


def test_nothing_to_compare_with(cli: Cli, tmp_path: Path, engine: Library) -> None:
    model, folder = pair(tmp_path, engine)
    got = cli("show", "--verify", str(model))
    assert got.code == 3
    assert "not compared: tokenizer.json is neither beside m.gguf nor brought; name one with --tokenizer" in got.out
    got = cli("show", "--verify", str(folder))
    assert got.code == 3
    assert "a .gguf file is neither" in got.out


def test_what_could_not_be_compared(cli: Cli, tmp_path: Path, engine: Library) -> None:
    model, folder = pair(tmp_path, engine)
    (folder / "tokenizer_config.json").unlink()
    got = cli("show", "--verify", str(model), "--tokenizer", str(folder))
    assert got.code == 0
    assert "not compared: chat template: twin/ has none" in got.out
    (folder / "tokenizer.json").write_text("{}")
    got = cli("show", "--verify", str(model), "--tokenizer", str(folder))
    assert got.code == 3
    assert "twin/: " in got.out and "not a tokenizer.json" in got.out
    strange, folder = pair(tmp_path, engine, tokenizer__ggml__pre="strange")
    got = cli("show", "--verify", str(strange), "--tokenizer", str(folder))
    assert got.code == 3
    assert "'strange', which is not known" in got.out


def test_a_server_says_how_its_tokenizer_was_checked(tmp_path: Path, engine: Library) -> None:
    model, folder = pair(tmp_path, engine)
    with LLM(model, threads=1, ctx=64) as llm:
        result = verify.of(llm)
        assert result is not None
        assert verify.line(result).startswith("tokenizer not compared: tokenizer.json is neither")
    with LLM(model, tokenizer=folder, threads=1, ctx=64) as llm:
        result = verify.of(llm)
        assert result is not None
        assert verify.line(result).startswith("tokenizer equal to twin/ on 400 pieces, ")
    other, folder = pair(tmp_path, engine, tokenizer__ggml__pre="llama-bpe")
    with LLM(other, tokenizer=folder, threads=1, ctx=64) as llm:
        result = verify.of(llm)
        assert result is not None
        assert verify.line(result).startswith("warning: the tokenizer differs from twin/: ids, ")


def test_a_given_tokenizer_counts(cli: Cli, tmp_path: Path, engine: Library) -> None:
    model, folder = pair(tmp_path, engine, tokenizer__ggml__pre="strange")
    got = cli("tokens", "12 34", "--json", "-m", str(model))
    assert got.code == 3
    assert "with --tokenizer" in got.err
    got = cli("tokens", "12 34", "--json", "-m", str(model), "--tokenizer", str(folder))
    assert [t["id"] for t in json.loads(got.out)["tokens"]] == engine.encode("12 34").ids
    got = cli("run", "12 34", "--raw", "-m", str(model), "--tokenizer", str(folder), "--max-tokens", "2", "--json")
    assert json.loads(got.out)["prompt_token_ids"] == engine.encode("12 34").ids
    got = cli("show", "--json", str(model), "--tokenizer", str(folder))
    assert json.loads(got.out)["tokenizer"]["kind"] == "json"


def test_a_tokenizer_of_a_larger_model(cli: Cli, tmp_path: Path, engine: Library) -> None:
    model = write_gguf(tmp_path / "m.gguf", LLAMA, weights(LLAMA))
    engine.save(str(tmp_path / "big.json"))
    got = cli("run", "x", "-m", str(model), "--tokenizer", str(tmp_path / "big.json"))
    assert got.code == 2
    assert "has 396 tokens, but the model has rows for 40; it belongs to another model" in got.err


def test_the_base_that_a_file_names_is_looked_up_in_the_store(
    tmp_path: Path, engine: Library, store_home: Path
) -> None:
    from pellucid.models import store
    from pellucid.models.sources import HubSource

    address = "https://huggingface.co/org/base"
    model, folder = pair(tmp_path, engine, general__base_model__0__repo_url=address)
    with open_checkpoint(model) as checkpoint:
        assert verify.twin(model, checkpoint.metadata) is None
        place = store.root() / store.tokenizer_key(HubSource("org/base"))
        place.parent.mkdir(parents=True)
        folder.rename(place)
        (place / "model.json").write_text("{}")
        assert verify.twin(model, checkpoint.metadata) == place
