"""tokenizer.json of kinds other than BPE: ids equal the tokenizers library's, and text comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pellucid.errors import UnsupportedModelError
from pellucid.models.tokens import TokenizerSource
from pellucid.text.detokenize import Detokenizer
from pellucid.text.tokenizer import Tokenizer
from text.corpus import SHORT, random_texts

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "unbelievable", "things", "quickly"]
TEXTS = [*SHORT, *random_texts(60, seed=2), " ".join(WORDS), "unquick happen dogs"]


def wordpiece() -> Library:
    engine = Library(models.WordPiece(unk_token="[UNK]"))
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    engine.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    ends = [(name, engine.token_to_id(name)) for name in special[1:]]
    engine.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return engine


def unigram() -> Library:
    engine = Library(models.Unigram())
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    engine.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    return engine


def words() -> Library:
    vocab = {"<unk>": 0, "<s>": 1} | {word: i + 2 for i, word in enumerate(dict.fromkeys(WORDS))}
    engine = Library(models.WordLevel(vocab, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.add_special_tokens(["<unk>", "<s>"])
    return engine


KINDS = {"WordPiece": wordpiece, "Unigram": unigram, "WordLevel": words}


def read(engine: Library, folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    engine.save(str(path))
    return Tokenizer.from_source(TokenizerSource("json", json_path=path))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parse_special", [False, True])
def test_ids_equal_the_library(kind: str, parse_special: bool, tmp_path: Path) -> None:
    engine = KINDS[kind]()
    ours = read(engine, tmp_path)
    engine.encode_special_tokens = not parse_special
    for text in TEXTS:
        due = engine.encode(text, add_special_tokens=False).ids
        got = ours.encode(text, add_special=False, parse_special=parse_special)
        assert got == due or (not parse_special and any(map(ours.is_special, due))), text


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_back_whole_and_token_by_token(kind: str, tmp_path: Path) -> None:
    ours = read(KINDS[kind](), tmp_path)
    text = " ".join(WORDS)
    ids = ours.encode(text)
    assert ours.decode(ids) == text
    stream = Detokenizer(ours)
    assert "".join([*map(stream.push, ids), stream.finish()]) == text
    assert [info.id for info in ours.explain(text)] == ids
    assert not any(info.merges for info in ours.explain(text))


def test_wordpiece_has_its_frame(tmp_path: Path) -> None:
    ours = read(wordpiece(), tmp_path)
    assert [ours.token_text(i) for i in ours.encode("fox")][:: len(ours.encode("fox")) - 1] == ["[CLS]", "[SEP]"]
    assert ours.token_bytes(ours.encode("quickly", add_special=False)[0]).startswith(b" ")


def test_what_cannot_be_put_together_again_is_refused(tmp_path: Path) -> None:
    engine = words()
    engine.decoder = decoders.CTC()
    with pytest.raises(UnsupportedModelError, match=r"a WordLevel tokenizer with decoders \['CTC'\] is not supported"):
        read(engine, tmp_path)
