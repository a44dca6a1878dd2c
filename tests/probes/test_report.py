"""A report in one file: what it holds is what Python says, it is the same each time, and no prompt breaks out of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid import LLM, SamplingParams
from pellucid.errors import RequestError
from pellucid.probes import views
from pellucid.probes.embedding import neighbours
from pellucid.probes.packed import heads_packed, packed
from pellucid.probes.report import CacheWatch, report, save

TINY = Path(__file__).parents[1] / "golden" / "tiny" / "llama"
PARAMS = SamplingParams(temperature=0.9, max_tokens=6, seed=3, ignore_eos=True)


class Elements(HTMLParser):
    """The elements of a file, and the text of its scripts by id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.starts: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._id = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.starts.append((tag, dict(attrs)))
        self._id = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self._id = ""

    def handle_data(self, data: str) -> None:
        self.scripts[self._id] = self.scripts.get(self._id, "") + data

    def block(self, name: str) -> bytes:
        return gzip.decompress(base64.b64decode(self.scripts[name], validate=True))

    def answers(self, name: str = "answers") -> dict[str, Any]:
        return json.loads(self.block(name))

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads(self.scripts["report"])


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TINY, threads=1, ctx=128, progress=False) as llm:
        yield llm


def close(found: Any, due: Any) -> None:
    """The same but for digits that a float32 has not."""
    if isinstance(due, dict):
        assert found.keys() == due.keys()
        for key in due:
            close(found[key], due[key])
    elif isinstance(due, list):
        assert len(found) == len(due)
        for one, other in zip(found, due, strict=True):
            close(one, other)
    elif isinstance(due, float):
        assert found == pytest.approx(due, rel=1e-6, abs=1e-12)
    else:
        assert found == due


def test_it_holds_what_python_says(llm: LLM) -> None:
    trace = llm.inspect([1, 7, 9, 20], PARAMS, level="heads")
    n = len(trace.ids)
    made = report(llm, trace)
    assert made.left_out == []
    file = Elements(made.html)
    assert file.facts["places"] == list(range(n)) and file.facts["first"] == 0
    common = file.answers()
    tokens = common["/inspect/requests/report/tokens"]
    assert [token["id"] for token in tokens["tokens"]] == trace.ids and tokens["delta"] == 0
    close(tokens["norms"], views.tokens(trace)["norms"])
    close(common["/inspect/requests/report/attn/heads"], views.heads(trace))
    assert common["/inspect/model"]["n_layers"] == llm.spec.n_layers
    for pos in range(1, n):
        of_token = file.answers(f"token-{pos}")
        path = "/inspect/requests/report/"
        why = trace.why(pos, top=24)
        funnel = of_token[f"{path}logits?pos={pos}&top=24"]["funnel"]
        close(funnel["raw"], [list(pair) for pair in why.raw])
        assert funnel["token"] == why.token
        assert [(s["name"], s["kept"]) for s in funnel["stages"]] == [(s.name, s.kept) for s in why.stages]
        lens = of_token[f"{path}lens?pos={pos}&top=5"]
        alone = json.loads(json.dumps(views.lens(llm, trace, trace.logit_lens(pos=pos, top_k=5))))
        close(lens, alone)
        near = neighbours(llm, [trace.ids[pos]], 8)
        embed = json.loads(json.dumps(views.embed(llm, trace, pos, near)))
        close(of_token[f"{path}embed?pos={pos}"], embed)
        assert of_token[f"{path}attribution?pos={pos}"]["logit"] == pytest.approx(
            trace.attribution(pos).logit, rel=1e-6
        )


def unpacked(data: bytes, n: int, first: int = 0) -> list[np.ndarray]:
    rows = n - first
    scales = np.frombuffer(data, "<f4", rows)
    high, low = np.frombuffer(data, np.uint8, offset=8 * rows).reshape(2, -1).astype(np.float64)
    cells = np.split(256 * high + low, np.cumsum(np.arange(first + 1, n)))
    return [row / 65535 * float(scale) for row, scale in zip(cells, scales, strict=True)]


@pytest.mark.parametrize("first", [0, 3])
def test_weights_are_those_of_the_head_to_a_part_in_65535(llm: LLM, first: int) -> None:
    trace = llm.inspect([1, 7, 9, 20, 30, 31, 32], SamplingParams(max_tokens=0))
    for head, data in heads_packed(trace, 1, [0, 3], first).items():
        due = trace.attention(1, head)[0]
        for pos, row in enumerate(unpacked(data, 7, first), first):
            assert np.abs(row - due[pos, : pos + 1]).max() <= due[pos].max() / 65535
            assert row.sum() == pytest.approx(1, abs=1e-4)


def test_a_row_without_weight_is_all_the_sinks() -> None:
    data = packed([np.array([0.25], np.float32), np.zeros(2, np.float32)])
    assert np.frombuffer(data, "<f4", 2, offset=8).tolist() == [0.75, 1.0]
    assert unpacked(data, 2)[1].tolist() == [0, 0]


def test_the_same_run_makes_the_same_file_but_for_its_time() -> None:
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for _ in range(2):
        with LLM(TINY, threads=1, ctx=128, progress=False) as llm:
            with CacheWatch(llm) as cache:
                trace = llm.inspect([1, 7, 9], PARAMS, level="heads")
            html = report(llm, trace, cache=cache.map).html
        file = Elements(html)
        facts, answers = file.facts, file.answers()
        assert len(facts.pop("arrivals")) == 6
        assert facts.pop("created").endswith("+00:00")
        cache_map = answers["/inspect/kv"]
        assert (cache_map["requests"][0].pop("id"), cache_map["requests"][0]["tokens"]) != ("", 0)
        for run in cache_map["runs"]:
            run.pop("age")
        rest = html.replace(file.scripts["report"], "").replace(file.scripts["answers"], "")
        found.append((rest, facts, answers))
    assert found[0] == found[1]


def test_it_keeps_to_its_budget_and_says_what_is_not_in_it(llm: LLM) -> None:
    trace = llm.inspect([1, *range(4, 40), *range(4, 40)], PARAMS, level="heads")
    whole = report(llm, trace)
    heads = sum(len(text) for name, text in Elements(whole.html).scripts.items() if name.startswith("head-"))
    budget = whole.nbytes - heads  # so that not all tokens fit: the heads have a share
    small = report(llm, trace, budget=budget)
    assert small.nbytes <= budget
    file = Elements(small.html)
    facts = file.facts
    assert facts["places"] and len(facts["places"]) < len(trace.ids)
    assert set(facts["places"]) >= set(range(trace.prompt_len, trace.prompt_len + 3))  # the answer's first
    assert {f"token-{pos}" for pos in facts["places"]} | {f"head-{i}-{h}" for i, h in facts["heads"]} <= set(
        file.scripts
    )
    assert facts["left_out"] == small.left_out and f"for {len(facts['places'])} of the 79 tokens" in small.left_out[0]
    with pytest.raises(RequestError, match=r"at least 0\.\d+ MB, more than the 0\.1 MB"):
        report(llm, trace, budget="100KB")


def test_no_prompt_breaks_out(smollm2_path: Path, tmp_path: Path) -> None:
    hostile = '</script><script>alert(1)</script><!-- <img src="http://foreign.example/x">'
    with LLM(smollm2_path, threads=2, ctx=256, progress=False) as llm:
        trace = llm.inspect(hostile, SamplingParams(max_tokens=1, temperature=0.0))
        made = save(llm, trace, tmp_path / "out.html")
        with pytest.raises(RequestError, match="there already"):
            save(llm, trace, tmp_path / "out.html")
    html = (tmp_path / "out.html").read_text()
    assert (tmp_path / "out.html").stat().st_size == made.nbytes
    assert "alert(1)" not in html and "foreign.example" not in html
    file = Elements(html)
    kinds = [attrs.get("type") for tag, attrs in file.starts if tag == "script"]
    assert kinds.count("module") == 1 and set(kinds) == {"module", "application/json", "application/gzip"}
    assert "img" not in [tag for tag, _ in file.starts]
    tokens = file.answers()["/inspect/requests/report/tokens"]["tokens"]
    assert "".join(token["text"] for token in tokens).startswith(hostile)
    assert str(smollm2_path.parent) not in html and str(smollm2_path.parent) not in file.block("answers").decode()


def test_its_policy_lets_it_run_itself_and_load_nothing(llm: LLM) -> None:
    html = report(llm, llm.inspect([1, 7], SamplingParams(max_tokens=0))).html
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["connect-src"] == "'none'" and rules["img-src"] == "data:"
    [script], [style] = (
        re.findall(r'<script type="module">(.*?)</script>', html, re.S),
        re.findall(r"<style>(.*?)</style>", html, re.S),
    )
    for text, rule in ((script, "script-src"), (style, "style-src")):
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert not re.search(r"<(script|!--)", script, re.I) or "<script" not in script.lower()
