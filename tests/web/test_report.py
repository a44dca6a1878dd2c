"""A report in a browser, from disk: the views work without a server, and their numbers are those of the Python API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from pellucid import SamplingParams
from pellucid.kv.map import KVMap
from pellucid.probes.report import CacheWatch, save
from pellucid.probes.trace import Trace
from serving import Live
from web.conftest import Seen
from web.test_page import AXE, PROMPT, VIEWS, rows, share, view

PARAMS = SamplingParams(temperature=0.8, max_tokens=3, seed=7)


@dataclass(frozen=True)
class Written:
    file: Path
    trace: Trace
    cache: KVMap


@pytest.fixture(scope="module")
def written(site: Live, tmp_path_factory: pytest.TempPathFactory) -> Written:
    file = tmp_path_factory.mktemp("report") / "out.html"
    with CacheWatch(site.llm) as cache:
        trace = site.llm.inspect(PROMPT, PARAMS, level="heads")
    assert cache.map is not None
    save(site.llm, trace, file, cache=cache.map)
    return Written(file, trace, cache.map)


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """`opened(file)` opens it in a browser without a network; whatever it asks for but itself is a fault."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light", offline=True)
    faults: list[str] = []

    def open(file: Path) -> Page:
        page = context.new_page()
        page.set_default_timeout(20_000)
        seen = Seen(page, file.as_uri())
        seen.faults = faults

        def asked(route: Route) -> None:
            if not route.request.url.startswith((file.as_uri(), "data:")):
                faults.append(f"asked for {route.request.url}")
                route.abort()
            else:
                route.continue_()

        page.route("**/*", asked)
        page.goto(file.as_uri())
        expect(page.get_by_role("region", name="Walk through the phases")).to_be_visible()
        return page

    yield open
    context.close()
    assert not faults, faults


def test_the_walk(opened: Open, written: Written) -> None:
    page, trace = opened(written.file), written.trace
    about = page.get_by_role("region", name="The report")
    expect(about).to_contain_text("".join(trace.texts))
    expect(about).to_contain_text("seed 7, temperature 0.8")
    expect(page.locator("#prompt")).to_have_count(0)
    walk = page.get_by_role("region", name="Walk through the phases")
    assert [int(r[2]) for r in rows(page, "Tokens of the sequence")] == trace.ids
    tables = {
        "Embed and position": ("Nearest tokens by cosine", 8),
        "Attention": ("Heaviest keys", 5),
        "Feed-forward": ("Top neurons", 8),
        "Logits and sampling": ("Likeliest tokens", 10),
        "Cache": ("Pages by state", 3),
        "Stream": ("Time to each piece", 3),
    }
    for phase, (caption, count) in tables.items():
        walk.get_by_role("button", name=phase).click()
        assert len(rows(page, caption)) == count, phase
    expect(page.get_by_role("alert")).to_have_count(0)


def test_where_a_head_looks(opened: Open, written: Written) -> None:
    page = opened(written.file)
    page.goto(f"{page.url.split('#')[0]}#/attention?id=report&pos=5&layer=5&head=3&form=rows")
    expect(page.get_by_role("heading", name=re.compile("head 5.3"))).to_be_visible()
    weights = written.trace.attention(layer=5, heads=3, pos=5)[0, 0]
    found = rows(page, "Weights of each key")
    assert len(found) == 6
    for name, _, text in found:
        assert share(text) == pytest.approx(float(weights[int(name.split()[0])]), abs=6e-4)
    page.get_by_role("button", name="Orbit").click()
    page.get_by_text("table", exact=True).last.click()
    around = rows(page, "Weights around the query")
    assert sum(float(w) for _, w in around) == pytest.approx(1, abs=1e-4)
    page.get_by_role("button", name="Matrix").click()
    box = page.get_by_role("img", name=re.compile("Weights of head 5.3")).bounding_box()
    assert box is not None
    cell = box["width"] / len(written.trace.ids)
    page.mouse.move(box["x"] + 4.5 * cell, box["y"] + 5.5 * cell)
    looks = page.get_by_text(re.compile("looks at"))
    expect(looks).to_be_visible()
    assert share(looks.inner_text().split(": ")[1]) == pytest.approx(float(weights[4]), abs=4e-3)


def test_layers_sampling_and_cache(opened: Open, written: Written) -> None:
    page, trace = opened(written.file), written.trace
    view(page, "layers")
    lens = trace.logit_lens(pos=5)
    assert [int(r[4].replace(",", "")) for r in reversed(rows(page, "Likeliest tokens by layer"))] == lens.ranks[
        :, 0
    ].tolist()
    view(page, "sampling")
    why = trace.why(5, top=24)
    assert why.random is not None
    expect(page.get_by_role("region", name="The draw")).to_contain_text(f"{why.random:.6f}")
    stages = rows(page, "Sampling stages in order")
    assert [(s[0], int(s[1].replace(",", ""))) for s in stages] == [(s.name, s.kept) for s in why.stages]
    for (_, probability), row in zip(
        why.raw[:8], rows(page, "Likeliest tokens before and after sampling stages"), strict=False
    ):
        assert share(row[1]) == pytest.approx(probability, abs=6e-4)
    expect(page.get_by_role("button", name="fork")).to_have_count(0)
    expect(page.get_by_label("temperature")).to_have_count(0)
    view(page, "cache")
    [held] = rows(page, "Requests that hold pages")
    [request] = written.cache.requests
    assert [int(cell) for cell in held[1:]] == [request.tokens, request.computed, request.pages, request.shared]
    assert sum(int(run[1]) for run in rows(page, "Runs of pages")) == written.cache.page_count
    for name in ("engine", "compare"):
        view(page, name)
        expect(page.get_by_text("This is a recorded report.")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_it_reads_in_light_and_dark_and_fits_a_phone(opened: Open, written: Written) -> None:
    page = opened(written.file)
    seen: set[str] = set()
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        seen.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        for name in ("request", "sampling") if AXE.exists() else ():
            view(page, name)
            page.wait_for_timeout(150)
            page.evaluate(f"() => {{ {AXE.read_text()} }}")
            found: Any = page.evaluate("async () => (await axe.run()).violations")
            grave = [(v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")]
            assert not grave, (name, theme, grave)
    assert len(seen) == 2
    page.set_viewport_size({"width": 390, "height": 844})
    for name in VIEWS:
        view(page, name)
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    expect(page.get_by_role("button", name="Light or dark")).to_be_in_viewport()


def test_what_was_left_out_is_said(opened: Open, site: Live, written: Written, tmp_path: Path) -> None:
    html = written.file.read_text()
    heads = sum(
        map(len, re.findall(r'id="head-[^"]+">([^<]*)<', html))
    )  # not all tokens fit then: the heads have a share
    budget = len(html.encode()) - heads
    made = save(site.llm, written.trace, tmp_path / "small.html", budget=budget, cache=written.cache)
    assert len(made.left_out) == 2
    page = opened(tmp_path / "small.html")
    for line in made.left_out:
        expect(page.get_by_role("region", name="The report")).to_contain_text(line)
    base = page.url.split("#")[0]
    kept = set(re.findall(r'id="head-(\d+-\d+)"', made.html))
    layer, head = next((i, h) for i in range(30) for h in range(9) if f"{i}-{h}" not in kept)
    page.goto(f"{base}#/attention?id=report&pos=5&layer={layer}&head={head}")
    said = rf"Head {layer}\.{head} is not in this report; of layer {layer} it has"
    expect(page.get_by_role("alert")).to_have_text(re.compile(said))
    page.goto(f"{base}#/layers?id=report&pos=1&layer=0&head=0")
    expect(page.get_by_text(re.compile("Token 1 is not in this report"))).to_be_visible()
