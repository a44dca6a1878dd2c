"""Vocabularies that stand beside a model or are given in its place: tekken.json, tokenizer.json, another GGUF."""

from __future__ import annotations

import base64
import json
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models as library_models

from pellucid.checkpoint.from_tekken import tokenizer_from_tekken
from pellucid.checkpoint.open import open_checkpoint, open_tokenizer
from pellucid.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from pellucid.text.tokenizer import Tokenizer
from tinyfiles import PIECES, SPECS, weights, write_gguf, write_hf

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ASCII = re.compile(r"[^\r\na-zA-Z0-9]?[a-zA-Z]+|[0-9]| ?[^\sa-zA-Z0-9]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""The same for texts of ASCII."""
SPECIALS = 24


def tekken(path: Path, **changes: object) -> tuple[Path, dict[bytes, int]]:
    """A tekken.json of the 256 bytes and 300 pieces; and its ranks."""
    draw = random.Random(3)
    pieces = [bytes([byte]) for byte in range(256)]
    while len(pieces) < 556:
        piece = draw.choice(pieces[97:123] + pieces[256:]) + draw.choice(pieces[97:123] + pieces[256:])
        if piece not in pieces and len(piece) < 9:
            pieces.append(piece)
    vocab = [{"rank": i, "token_bytes": base64.b64encode(p).decode(), "token_str": None} for i, p in enumerate(pieces)]
    config = {"pattern": PATTERN, "default_vocab_size": 556 + SPECIALS, "default_num_special_tokens": SPECIALS}
    path.write_text(json.dumps({"config": config, "vocab": vocab} | changes))
    return path, {piece: rank for rank, piece in enumerate(pieces)}


def lowest_first(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """What tiktoken does: of all neighbours the pair whose whole has the lowest rank joins, the leftmost of equals."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not pairs:
            return [ranks[part] for part in parts]
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_tekken_joins_as_tiktoken_does(tmp_path: Path) -> None:
    path, ranks = tekken(tmp_path / "tekken.json")
    source = tokenizer_from_tekken(path)
    tokenizer = Tokenizer.from_source(source)
    assert (source.bos_id, source.eos_id, source.pieces[3], source.pieces[20]) == (1, 2, "[INST]", "<SPECIAL_20>")
    draw = random.Random(5)
    texts = ["".join(draw.choice("abcdefghij  12\n/.,") for _ in range(40)) for _ in range(80)]
    for text in texts:
        due = [SPECIALS + rank for word in ASCII.findall(text) for rank in lowest_first(word.encode(), ranks)]
        assert tokenizer.encode(text, add_special=False) == due, text
        assert tokenizer.decode(due) == text
    assert tokenizer.encode("[INST]x", parse_special=True)[:2] == [1, 3]
    assert 3 not in tokenizer.encode("[INST]x")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"config": None}, "config: is missing"),
        ({"vocab": []}, "vocab: has 0 entries; config calls for 556"),
        ({"vocab": [7] * 600}, "vocab: entry 0: rank: is missing"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}] * 600}, "vocab: entry 0: token_bytes: is not base64"),
        ({"vocab": [{"rank": i, "token_bytes": "AA=="} for i in range(600)]}, "vocab: holds a piece twice"),
        ({"special_tokens": [{"rank": 1, "token_str": "x"}]}, "special_tokens: entry 0: rank: is 1, not 0"),
    ],
)
def test_a_tekken_file_that_contradicts_itself(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        tokenizer_from_tekken(tekken(tmp_path / "tekken.json", **changes)[0])


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="580 tokens, but the model has 40; it belongs to another model"):
        open_tokenizer(tekken(tmp_path / "tekken.json")[0], 40)


def test_a_folder_without_tokenizer_json(tmp_path: Path) -> None:
    spec = SPECS["llama"]
    folder = write_hf(tmp_path / "m", spec, weights(spec))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match=r"no tokenizer.json; tokenizer.model is not read .*--tokenizer"):
        open_checkpoint(folder)
    (folder / "tokenizer.model").rename(folder / "cl100k_base.tiktoken")
    with pytest.raises(UnsupportedModelError, match=r"cl100k_base.tiktoken is not read"):
        open_checkpoint(folder)


def bert_gguf(path: Path) -> Path:
    spec = SPECS["llama"]
    return write_gguf(path, spec, weights(spec), tokenizer__ggml__model="bert")


def word_json(path: Path) -> Path:
    vocab = {piece: i for i, piece in enumerate(PIECES)}
    engine = Library(library_models.WordLevel(vocab, unk_token="<unk>"))
    engine.add_special_tokens(PIECES[:4])
    engine.save(str(path))
    return path


def test_a_given_vocabulary_stands_in_for_one_that_is_not_known(tmp_path: Path) -> None:
    model = bert_gguf(tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModelError, match=r"'bert' is not supported; .*with --tokenizer"):
        open_checkpoint(model)
    with open_checkpoint(model, word_json(tmp_path / "words.json")) as checkpoint:
        assert Tokenizer.from_source(checkpoint.tokenizer).encode("t5") == [PIECES.index("t5")]


def test_the_models_own_completes_a_bare_tokenizer_json(tmp_path: Path) -> None:
    spec = SPECS["llama"]
    model = write_gguf(tmp_path / "m.gguf", spec, weights(spec), tokenizer__chat_template="{{ 7 }}")
    own = open_checkpoint(model).tokenizer
    given = open_checkpoint(model, word_json(tmp_path / "words.json")).tokenizer
    assert given.kind == "json"
    for field in ("bos_id", "eos_id", "eot_ids", "add_bos", "chat_template"):
        assert getattr(given, field) == getattr(own, field), field


def test_another_models_file_gives_its_vocabulary(tmp_path: Path) -> None:
    spec = SPECS["llama"]
    folder = write_hf(tmp_path / "hf", spec, weights(spec))
    model = write_gguf(tmp_path / "m.gguf", spec, weights(spec))
    assert open_checkpoint(folder, model).tokenizer.pieces == PIECES
    assert open_checkpoint(model, folder).tokenizer.json_path == folder / "tokenizer.json"
    assert open_checkpoint(model, folder / "tokenizer.json").tokenizer.chat_template == "{{ 1 }}"


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    spec = SPECS["llama"]
    model = write_gguf(tmp_path / "m.gguf", spec, weights(spec))
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_checkpoint(model, tmp_path / "none.json")
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match="not a tokenizer that can be read"):
        open_checkpoint(model, tmp_path / "tokenizer.model")
