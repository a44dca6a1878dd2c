"""`pellucid tokens`: every token with its bytes and its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Cli, Outcome
from pellucid.cli.tokens import on_one_line


@pytest.fixture
def tokens(cli: Cli, smollm2_path: Path):
    def call(*args: str, stdin: str = "") -> Outcome:
        return cli("tokens", *args, "-m", str(smollm2_path), stdin=stdin)

    return call


def test_json(tokens) -> None:
    text = "The rain, 🌧️ naïve\n\n\t end"
    got = tokens("--json", text)
    assert (got.code, got.err) == (0, "")
    result = json.loads(got.out)
    assert result["count"] == len(result["tokens"])
    assert b"".join(bytes.fromhex(token["bytes"]) for token in result["tokens"]) == text.encode()
    first = result["tokens"][0]
    assert first == {
        "id": 504,
        "piece": "The",
        "bytes": "546865",
        "start": 0,
        "end": 3,
        "special": False,
        "merges": [["h", "e"], ["T", "he"]],
    }
    for token in result["tokens"]:
        assert 0 <= token["start"] <= token["end"] <= len(text)


def test_table(tokens) -> None:
    got = tokens("The rain\n🌧")
    assert got.code == 0
    lines = got.out.splitlines()
    assert lines[0].startswith("The│ rain│␊│")
    assert "\\xf0\\x9f" in lines[0]
    assert lines[2].split() == ["#", "id", "piece", "bytes", "at", "merges"]
    assert lines[3].split()[:4] == ["0", "504", "The", "54"]
    assert lines[-1].endswith("10 characters, 13 bytes")


def test_control_tokens_are_marked_and_only_where_asked(tokens) -> None:
    plain = json.loads(tokens("--json", "<|im_end|>").out)
    assert plain["count"] > 1
    assert not any(token["special"] for token in plain["tokens"])
    parsed = json.loads(tokens("--json", "--special", "<|im_end|>").out)
    assert [(token["id"], token["special"]) for token in parsed["tokens"]] == [(2, True)]
    assert "◆ 1 control token" in tokens("--special", "<|im_end|>").out


def test_chat(tokens) -> None:
    result = json.loads(tokens("--chat", "--json", "--system", "Be brief.", "Hi <|im_end|>").out)
    assert result["text"].startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert b"".join(bytes.fromhex(token["bytes"]) for token in result["tokens"]).decode() == result["text"]
    pieces = [token["piece"] for token in result["tokens"] if token["special"]]
    assert pieces == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]
    for token in result["tokens"]:
        assert result["text"][token["start"] : token["end"]].encode().decode() == bytes.fromhex(token["bytes"]).decode()


def test_stdin_and_errors(tokens) -> None:
    assert json.loads(tokens("--json", stdin="The").out)["count"] == 1
    for args in ([""], ["--system", "a", "b"], ["--chat", "--special", "b"]):
        got = tokens(*args)
        assert got.code == 2
        assert got.err.startswith("error: ")


def test_control_characters_are_visible() -> None:
    assert on_one_line("a\x1b\n\t\x00") == "a␛␊␉␀"


def test_sentencepiece(cli: Cli, real_model) -> None:
    result = json.loads(cli("tokens", "--json", "-m", str(real_model("gemma3-270m")), "a  b é").out)
    assert result["tokens"][0]["special"]
    assert (result["tokens"][0]["start"], result["tokens"][0]["end"]) == (0, 0)
    assert b"".join(bytes.fromhex(t["bytes"]) for t in result["tokens"][1:]) == "a  b é".encode()
