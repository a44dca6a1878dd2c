"""Encoding, decoding and explaining: places, merges, bytes, control tokens, and texts made to be slow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pellucid import _core
from pellucid.errors import ModelFileError, RequestError, UnsupportedModelError
from pellucid.models.tokens import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, TokenizerSource
from pellucid.text.pretokenizers import PRETOKENIZERS
from pellucid.text.tokenizer import Tokenizer
from text.corpus import SHORT, random_texts

MISSING = frozenset(bytes.fromhex("04 06 13 14 16 1d c0 c1 f1 f2 f5 f6 f7 f8 f9 fa fb fc fd fe ff"))
"""Bytes that SmolLM2's vocabulary has no token for."""
NAMES = ["smollm2", "qwen-0.5b", "gemma3-270m"]
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def byte_source(extra: list[str], merges: list[str], pre: str = "gpt-2", **more: object) -> TokenizerSource:
    """A byte-level vocabulary: 256 bytes, the results of the merges, then `extra` control tokens."""
    from tokenizers import pre_tokenizers

    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges), *extra]
    types = np.full(len(pieces), NORMAL, dtype=np.int32)
    types[len(pieces) - len(extra) :] = CONTROL
    return TokenizerSource("bpe", pieces=pieces, types=types, merges=merges, pre=pre, **more)  # type: ignore[arg-type]


def sentencepiece_source(pieces: dict[str, float], **more: object) -> TokenizerSource:
    """A small SentencePiece vocabulary: <unk>, <s>, the bytes, then `pieces` with their scores."""
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = np.array([UNKNOWN, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)], dtype=np.int32)
    scores = np.array([0.0] * 258 + list(pieces.values()), dtype=np.float32)
    fields = {"pieces": names, "types": types, "scores": scores, "unk_id": 0, "bos_id": 1, **more}
    return TokenizerSource("spm", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(text=st.text(max_size=60))
def test_text_comes_back(name: str, text: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    import unicodedata

    tokenizer = tokenizer_of(name)
    want = unicodedata.normalize("NFC", text) if name.startswith("qwen") else text
    want = want.replace("▁", " ") if name.startswith("gemma") else want
    if name == "smollm2":  # bytes without a token are dropped, as by Hugging Face's tokenizer
        assume(all(byte not in MISSING for byte in text.encode()))
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids, skip_special=False) == want
    assert b"".join(map(tokenizer.token_bytes, ids)) == want.encode()


@pytest.mark.parametrize("name", NAMES)
def test_explain_replays_the_real_merges(name: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of(name)
    for text in [*SHORT, *random_texts(40, seed=3)]:
        infos = tokenizer.explain(text)
        assert [info.id for info in infos] == tokenizer.encode(text)
        for info in infos:
            assert info.bytes == tokenizer.token_bytes(info.id)
            assert 0 <= info.offsets[0] <= info.offsets[1] <= len(text)
            if info.merges:  # the steps build the piece: each joins what is there, the last makes the whole
                assert info.merges[-1].left + info.merges[-1].right == info.piece
                assert len(info.merges) == len(info.piece) - 1
                assert all(step.left + step.right in info.piece for step in info.merges)
            else:
                plain = len(info.piece) == 1 or info.special or info.id in tokenizer.added
                assert plain or info.piece.startswith("<0x"), (text, info)


def test_explain_shows_order_and_places(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    infos = tokenizer_of("gemma3-270m").explain("Hi, é!")
    assert [(info.piece, info.offsets, info.special) for info in infos] == [
        ("<bos>", (0, 0), True),
        ("Hi", (0, 2), False),
        (",", (2, 3), False),
        ("▁é", (3, 5), False),
        ("!", (5, 6), False),
    ]
    (step,) = infos[1].merges
    assert (step.left, step.right) == ("H", "i")


@pytest.mark.parametrize("name", NAMES)
def test_spellings_of_control_tokens_are_text_unless_asked(name: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of(name)
    for token in list(tokenizer.added.values())[:400]:
        if not token.control:
            continue
        text = f"a{token.text}b"
        ids = tokenizer.encode(text, add_special=False)
        assert token.id not in ids
        assert tokenizer.decode(ids) == text
        assert token.id in tokenizer.encode(text, add_special=False, parse_special=True)


def test_merges_that_make_a_control_token_make_text_instead() -> None:
    source = byte_source(["<a>"], ["< a", "<a >"])
    pieces = [piece for piece in source.pieces if piece != "<a>"]
    types = np.full(len(pieces) + 1, NORMAL, dtype=np.int32)
    types[-1] = CONTROL
    tokenizer = Tokenizer.from_source(
        TokenizerSource("bpe", pieces=[*pieces, "<a>"], types=types, merges=source.merges, pre="gpt-2")
    )
    control = tokenizer.vocab_size - 1
    assert tokenizer.encode("x<a>y", parse_special=True).count(control) == 1
    ids = tokenizer.encode("x<a>y<a>")
    assert control not in ids
    assert tokenizer.decode(ids) == "x<a>y<a>"
    assert [info.id for info in tokenizer.explain("x<a>y<a>")] == ids


def test_a_whole_word_that_is_a_control_token_is_text_too() -> None:
    tokenizer = Tokenizer.from_source(byte_source(["stop"], ["s t"], pre="llama-bpe"))
    assert tokenizer.decode(tokenizer.encode("stop")) == "stop"
    assert tokenizer.vocab_size - 1 not in tokenizer.encode("stop")


@pytest.mark.parametrize("pre", PRETOKENIZERS)
def test_every_pretokenizer_keeps_all_bytes(pre: str) -> None:
    tokenizer = Tokenizer.from_source(byte_source(["<|end|>"], ["i n", "Ġ t", "1 2", "Ġ 1"], pre=pre))
    for text in SHORT:
        want = tokenizer.decode(tokenizer.encode(text))
        assert want == text or PRETOKENIZERS[pre].normalizer is not None


def test_digits_fall_as_each_family_cuts_them() -> None:
    merges = ["1 2", "12 3", "123 4", "Ġ 1", "Ġ1 2"]
    want = {
        "smollm": ["1", "2", "3", "4", "Ġ", "1", "2"],
        "gpt-2": ["1234", "Ġ", "12"],
        "llama-bpe": ["123", "4", "Ġ", "12"],
        "qwen2": ["1", "2", "3", "4", "Ġ", "1", "2"],
        "default": ["123", "4", "Ġ", "12"],
    }
    for pre, pieces in want.items():
        tokenizer = Tokenizer.from_source(byte_source([], merges, pre=pre))
        assert [tokenizer.token_text(token) for token in tokenizer.encode("1234 12")] == pieces, pre


def test_sentencepiece_with_a_space_of_its_own() -> None:
    pieces = {"▁": -9.0, "h": -8.0, "i": -7.0, "hi": -1.0, "▁hi": -2.0, "▁▁": -3.0}
    tokenizer = Tokenizer.from_source(sentencepiece_source(pieces, add_space_prefix=True, add_bos=True))
    texts = {
        text: [tokenizer.token_text(token) for token in tokenizer.encode(text)] for text in ("hi", " hi", "", "hié")
    }
    assert texts == {
        "hi": ["<s>", "▁hi"],
        " hi": ["<s>", "▁", "▁hi"],
        "": ["<s>"],
        "hié": ["<s>", "▁hi", "<0xC3>", "<0xA9>"],
    }
    for text in ("hi", " hi", "hi hi", "é", "  hi  "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("hi"), skip_special=False) == "<s> hi"


def test_pruned_merges_encode_as_all_merges_do() -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    draw = np.random.default_rng(5)
    for _ in range(12):
        names = list("abc") + ["".join(draw.choice(list("abc"), size=draw.integers(2, 7))) for _ in range(60)]
        pieces = list(dict.fromkeys(names))
        scores = draw.integers(-12, 0, size=len(pieces)).astype(np.float32)  # with ties
        vocab = {piece: at for at, piece in enumerate(pieces)}
        every = [
            (float(scores[vocab[piece]]), cut, len(piece) - cut, piece[:cut], piece[cut:])
            for piece in pieces
            for cut in range(1, len(piece))
            if piece[:cut] in vocab and piece[cut:] in vocab
        ]
        every.sort(key=lambda m: (-m[0], -m[1], -m[2], vocab[m[3] + m[4]], vocab[m[3]], vocab[m[4]]))
        left, right = _core.spm_merges(pieces, scores, np.ones(len(pieces), dtype=np.uint8))
        pruned = [(pieces[a], pieces[b]) for a, b in zip(left, right, strict=True)]
        assert set(pruned) <= {(m[3], m[4]) for m in every}
        full, small = Library(BPE(vocab, [(m[3], m[4]) for m in every])), Library(BPE(vocab, pruned))
        for _ in range(150):
            text = "".join(draw.choice(list("abc"), size=draw.integers(1, 40)))
            assert full.encode(text).ids == small.encode(text).ids


def test_merges_take_odd_vocabularies() -> None:
    pieces = ["", "é", "éé", "é" * 200, "a", "a", "\0", "\0\0", "x" * 70, "x", "xx", "x" * 35]
    left, right = _core.spm_merges(pieces, np.zeros(len(pieces), np.float32), np.ones(len(pieces), np.uint8))
    found = {(pieces[a], pieces[b]) for a, b in zip(left, right, strict=True)}
    assert found == {("é", "é"), ("\0", "\0"), ("x", "x"), ("x" * 35, "x" * 35)}
    with pytest.raises(ValueError, match="differ in length"):
        _core.spm_merges(pieces, np.zeros(1, np.float32), np.ones(len(pieces), np.uint8))
    assert [len(part) for part in _core.spm_merges([], np.zeros(0, np.float32), np.zeros(0, np.uint8))] == [0, 0]


@pytest.mark.parametrize("bad", [-1, 49152, 10**12])
def test_an_id_out_of_range_is_a_request_error(bad: int, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    for call in (
        lambda: tokenizer.decode([1, bad]),
        lambda: tokenizer.token_bytes(bad),
        lambda: tokenizer.token_text(bad),
    ):
        with pytest.raises(RequestError, match="not in the vocabulary"):
            call()


def test_a_lone_surrogate_is_a_request_error(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate \(U\+D83D\) at character 2"):
        tokenizer_of("smollm2").encode("ab\ud83d")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", ["a", " ", "\n", "7", "é", "\u0301", "😀", "<", "\0", "a b\n", "<|im_start|>", "'s"])
def test_a_megabyte_takes_no_more_than_its_share(
    name: str, unit: str, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    tokenizer = tokenizer_of(name)
    size = 1 << 20
    small, large = (unit * (n // len(unit.encode())) for n in (size // 8, size))
    tokenizer.encode(small[:4096])

    def cost(text: str) -> float:
        start = time.process_time()
        tokenizer.encode(text)
        return time.process_time() - start

    base = cost(small)
    assert cost(large) < 24 * max(base, 0.02), f"{base:.3f} s for an eighth"


def test_a_batch_is_its_texts(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("gemma3-270m")
    texts = [*SHORT[:20], "long " * 1000]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_faults_of_a_vocabulary_are_named() -> None:
    good = byte_source([], ["a b"])
    faults: list[tuple[TokenizerSource, type[Exception], str]] = [
        (TokenizerSource("bpe"), ModelFileError, "no vocabulary"),
        (byte_source([], ["a b"], pre="strange"), UnsupportedModelError, "'strange', which is not known"),
        (TokenizerSource("bpe", pieces=good.pieces, pre="gpt-2"), ModelFileError, "needs its merges"),
        (TokenizerSource("bpe", pieces=["a", "a"], merges=[], pre="gpt-2"), ModelFileError, "'a' twice"),
        (TokenizerSource("bpe", pieces=good.pieces, merges=["a zz"], pre="gpt-2"), ModelFileError, "merges do not fit"),
        (TokenizerSource("bpe", pieces=good.pieces, merges=["ab"], pre="gpt-2"), ModelFileError, "merges do not fit"),
        (
            TokenizerSource("bpe", pieces=good.pieces, merges=["a b c"], pre="gpt-2"),
            ModelFileError,
            "merges do not fit",
        ),
        (TokenizerSource("spm", pieces=["a"]), ModelFileError, "needs its scores"),
        (TokenizerSource("spm", pieces=["a"], scores=np.zeros(2, np.float32)), ModelFileError, "1 tokens but 2 scores"),
        (TokenizerSource("spm", pieces=["a"], scores=np.array([np.nan], np.float32)), ModelFileError, "not a number"),
        (
            TokenizerSource("spm", pieces=["<0xZZ>"], scores=np.zeros(1, np.float32), types=np.array([BYTE], np.int32)),
            ModelFileError,
            "byte token 0",
        ),
        (TokenizerSource("json"), ModelFileError, "no tokenizer.json"),
    ]
    for source, kind, message in faults:
        with pytest.raises(kind, match=message):
            Tokenizer.from_source(source)


def test_a_bad_tokenizer_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for text in ("", "{", "[]", "{}", '{"model": {"type": "WordLevel", "vocab": {"a": 0}}}'):
        path.write_text(text)
        with pytest.raises((ModelFileError, UnsupportedModelError), match=r"tokenizer\.json"):
            Tokenizer.from_source(TokenizerSource("json", json_path=path))


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_a_tokenizer_json_gives_the_same_ids(
    name: str, tokenizer_of: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    from tokenizers import decoders

    ours = tokenizer_of(name)
    library = ours._vocabulary.engine  # type: ignore[attr-defined]
    data = json.loads(library.to_str())
    data["decoder"] = (
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        if name == "smollm2"
        else json.loads(
            decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]).__getstate__()
        )
    )
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    source = TokenizerSource(
        "json", json_path=tmp_path / "tokenizer.json", bos_id=ours.bos_id, add_bos=bool(ours.prefix)
    )
    read = Tokenizer.from_source(source)
    assert read.vocab_size == ours.vocab_size
    assert read.prefix == ours.prefix
    for text in [*SHORT, *random_texts(30, seed=11)]:
        for parse in (False, True):
            ids = ours.encode(text, parse_special=parse)
            assert read.encode(text, parse_special=parse) == ids
            assert read.decode(ids) == ours.decode(ids)
    assert read.explain("Hello, world!") == ours.explain("Hello, world!")


def test_user_defined_tokens_are_tokens_in_any_text() -> None:
    source = byte_source([], [])
    types = np.full(len(source.pieces) + 1, NORMAL, dtype=np.int32)
    types[-1] = USER_DEFINED
    tokenizer = Tokenizer.from_source(
        TokenizerSource("bpe", pieces=[*source.pieces, "<think> é"], types=types, merges=[], pre="gpt-2")
    )
    ids = tokenizer.encode("a<think> éb")
    assert ids[1] == tokenizer.vocab_size - 1
    assert tokenizer.decode(ids) == "a<think> éb"
    assert not tokenizer.is_special(ids[1])
