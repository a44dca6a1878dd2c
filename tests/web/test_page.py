"""The page in a browser: a journey for each question that it answers; numbers are those of the Python API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from pellucid import LLM, SamplingParams
from pellucid.probes.trace import Trace
from serving import Live, running

VIEWS = ("request", "attention", "layers", "sampling", "cache", "engine", "compare")
PROMPT = "The capital of France is"
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


def ask(page: Page, site: Live, prompt: str = PROMPT, tokens: int = 6) -> None:
    """Have a text continued, as a person would."""
    page.goto(site.url + "/")
    page.get_by_role("button", name="Continue a text").click()
    page.locator("#prompt").fill(prompt)
    page.locator("#max").fill(str(tokens))
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("region", name="Walk through the phases")).to_be_visible()


def view(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("button", name=re.compile(f"^{name}", re.I)).click()


def traced(site: Live) -> Trace:
    """The same answer, looked into from Python."""
    return site.llm.inspect(PROMPT, SamplingParams(temperature=0.8, max_tokens=6, seed=7), level="heads")


def rows(page: Page, caption: str) -> list[list[str]]:
    """Cells of a table by its caption."""
    table = page.get_by_role("table", name=caption)
    expect(table).to_be_visible()
    return [[c.strip() for c in r.locator("th, td").all_inner_texts()] for r in table.locator("tbody tr").all()]


def share(text: str) -> float:
    return float(text.removesuffix(" %").removeprefix("< ")) / 100


def test_why_this_token_in_three_clicks(page: Page, site: Live) -> None:
    page.goto(site.url + "/")
    page.get_by_role("button", name=re.compile("a fact")).click()  # asks
    expect(page.get_by_role("region", name="Walk through the phases")).to_be_visible()
    view(page, "sampling")
    expect(page.get_by_role("heading", name=re.compile("Why “ Paris”"))).to_be_visible()
    funnel = site.llm.inspect(PROMPT, SamplingParams(temperature=0.8, max_tokens=12, seed=7)).why(5, top=24)
    assert funnel.random is not None
    assert f"{funnel.random:.6f}" in page.get_by_role("region", name="The draw").inner_text()
    found = rows(page, "Likeliest tokens before and after sampling stages")
    for (id, probability), row in zip(funnel.raw[:8], found, strict=False):
        assert row[0] == site.llm.detokenize([id]).replace(" ", "␣")
        assert share(row[1]) == pytest.approx(probability, abs=6e-4)
    stages = rows(page, "Sampling stages in order")
    assert [(s[0], int(s[1].replace(",", ""))) for s in stages] == [(s.name, s.kept) for s in funnel.stages]


def test_what_if_and_fork(page: Page, site: Live) -> None:
    ask(page, site)
    view(page, "sampling")
    slider = page.get_by_label("temperature")
    slider.fill("0")
    expect(page.get_by_text("Greedy: the likeliest token is taken")).to_be_visible()
    page.get_by_role("button", name="as it was").click()
    expect(page.get_by_text("Greedy: the likeliest")).to_have_count(0)
    row = page.get_by_role("row", name=re.compile("␣London"))
    row.get_by_role("button", name="fork").click()
    expect(page.get_by_role("heading", name=re.compile("Why “ London”"))).to_be_visible()
    view(page, "compare")
    expect(page.get_by_text(re.compile("The same for 5 tokens; then ␣Paris before, and ␣London now"))).to_be_visible()


def test_where_does_head_5_3_look(page: Page, site: Live) -> None:
    ask(page, site)
    view(page, "attention")
    heat = page.get_by_role("img", name="first of every head")
    box = heat.bounding_box()
    assert box is not None
    layers = site.llm.spec.n_layers
    page.mouse.click(box["x"] + 3 * 20 + 3 + 8, box["y"] + box["height"] * (layers - 5 - 0.5) / layers)
    expect(page.get_by_role("heading", name=re.compile("head 5.3"))).to_be_visible()
    page.get_by_role("button", name="Rows").click()
    trace = traced(site)
    weights = trace.attention(layer=5, heads=3, pos=5)[0, 0]
    found = rows(page, "Weights of each key")
    assert len(found) == len(weights) == 6
    for name, _, text in found:
        assert share(text) == pytest.approx(float(weights[int(name.split()[0])]), abs=6e-4)
    page.get_by_role("button", name="Orbit").click()
    page.get_by_text("table", exact=True).last.click()
    orbit = rows(page, "Weights around the query")
    assert sum(float(w) for _, w in orbit) == pytest.approx(1, abs=1e-4)
    # The matrix's numbers are those of the head, to a byte.
    page.get_by_role("button", name="Matrix").click()
    matrix = page.get_by_role("img", name=re.compile("Weights of head 5.3"))
    box = matrix.bounding_box()
    assert box is not None
    cell = box["width"] / len(trace.ids)
    page.mouse.move(box["x"] + 4.5 * cell, box["y"] + 5.5 * cell)
    looks = page.get_by_text(re.compile("looks at"))
    expect(looks).to_be_visible()
    assert share(looks.inner_text().split(": ")[1]) == pytest.approx(float(weights[4]), abs=4e-3)


def test_a_large_matrix_is_zoomed_and_moved(page: Page, site: Live) -> None:
    ids = site.llm.tokenizer.encode("The rain had stopped by the time the train came in. " * 70)[:700]
    made = site.post("/inspect/replay", {"prompt_ids": ids}).json()["id"]
    page.goto(f"{site.url}/#/attention?id={made}&pos=600&layer=5&head=3&form=matrix")
    expect(page.get_by_text("a cell is 2 × 2 tokens")).to_be_visible()
    weights = site.llm.inspect(ids, SamplingParams(max_tokens=0)).attention(layer=5, heads=3, pos=[600, 601])[0]
    matrix = page.get_by_role("img", name=re.compile("Weights of head 5.3"))
    box = matrix.bounding_box()
    assert box is not None
    looks = page.get_by_text(re.compile("looks at"))
    side = box["width"] / 700

    def cell(query: float, key: float) -> float:
        page.mouse.move(box["x"] + (key + 0.5) * side, box["y"] + (query + 0.5) * side)
        expect(looks).to_be_visible()
        return share(looks.inner_text().split(": ")[1])

    heavy = int(weights.max(axis=0)[2:].argmax() // 2 * 2) + 2
    assert cell(600, heavy) == pytest.approx(float(weights[:, heavy : heavy + 2].max()), abs=4e-3)
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
    expect(page.get_by_text(re.compile("a cell is"))).to_have_count(0)
    page.locator("#app").press("ArrowRight")  # the cursor's row is brought to the middle, and its own key
    page.locator("#app").press("ArrowLeft")
    page.wait_for_load_state("networkidle")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(looks).to_be_visible()
    assert share(looks.inner_text().split(": ")[1]) == pytest.approx(float(weights[0, 600]), abs=4e-3)
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.get_by_text("a cell is 2 × 2 tokens")).to_be_visible()
    page.get_by_label("Place in the sequence").fill("42")
    expect(page).to_have_url(re.compile("pos=42"))


def test_when_was_it_decided(page: Page, site: Live) -> None:
    ask(page, site)
    view(page, "layers")
    found = rows(page, "Likeliest tokens by layer")
    lens = traced(site).logit_lens(pos=5)
    assert [int(r[4].replace(",", "")) for r in reversed(found)] == lens.ranks[:, 0].tolist()
    norms = traced(site).norms
    assert norms is not None
    written = rows(page, "Norms by layer")
    assert [float(r[2]) for r in reversed(written)] == pytest.approx(norms.mlp[:, 4].tolist(), abs=6e-3)


def test_what_fills_the_cache(page: Page, site: Live) -> None:
    ask(page, site)
    site.settles()
    view(page, "cache")
    expect(page.get_by_text(re.compile("0 of [0-9,]+ pages belong to requests that run"))).to_be_visible()
    found = rows(page, "Runs of pages")
    counts: dict[str, int] = {}
    for run in found:
        counts[run[2]] = counts.get(run[2], 0) + int(run[1])
    pool = site.llm.engine.pool
    assert sum(counts.values()) == pool.page_count
    assert counts["free"] + counts.get("cached", 0) == pool.available


def test_what_is_it_doing(page: Page, site: Live) -> None:
    ask(page, site)
    view(page, "engine")
    found = rows(page, "The last steps")
    assert len(found) >= 6
    assert all(int(r[2]) == int(r[3]) + int(r[4]) for r in found)


def test_the_walk_by_keyboard_alone(page: Page, site: Live) -> None:
    page.goto(site.url + "/")
    expect(page.locator("#prompt")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    walk = page.get_by_role("region", name="Walk through the phases")
    expect(walk).to_be_visible()
    page.keyboard.press("Escape")
    for _ in range(6):
        walk.get_by_role("button", name="Next phase").press("Enter")
    expect(walk.get_by_role("heading", name="Token by token, to you")).to_be_visible()
    page.keyboard.press("4")
    expect(page).to_have_url(re.compile("#/sampling"))
    before = page.url
    page.keyboard.press("ArrowRight")
    expect(page).not_to_have_url(before)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_link_opens_the_same_view(page: Page, site: Live) -> None:
    ask(page, site)
    view(page, "layers")
    expect(page).to_have_url(re.compile("#/layers.*id=trace-"))
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_role("heading", name=re.compile("When was “ Paris” decided"))).to_be_visible()


def test_nothing_serious_for_a_screen_reader(page: Page, site: Live) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci --prefix web")
    ask(page, site)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for name in VIEWS:
            view(page, name)
            page.wait_for_timeout(150)
            page.evaluate(f"() => {{ {AXE.read_text()} }}")
            found: Any = page.evaluate("async () => (await axe.run()).violations")
            grave = [(v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")]
            assert not grave, (name, theme, grave)


def test_it_fits_a_phone(page: Page, site: Live) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ask(page, site)
    for name in VIEWS:
        view(page, name)
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


def test_a_server_that_is_away_comes_back(browser: Browser, site: Live) -> None:
    page = browser.new_page()
    page.route("**/inspect/model", lambda route: route.abort())
    page.goto(site.url + "/")
    expect(page.get_by_text("The server does not answer")).to_be_visible()
    page.unroute("**/inspect/model")
    expect(page.locator("#prompt")).to_be_visible()
    page.close()


def test_a_server_with_a_key_asks_for_it(browser: Browser, smollm2_path: Path) -> None:
    with LLM(smollm2_path, ctx=256) as llm, running(llm, api_key="secret-key-1", inspect=True) as live:
        page = browser.new_page()
        page.goto(live.url + "/")
        page.get_by_label("API key").fill("wrong-key-9")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("Incorrect API key")).to_be_visible()
        page.get_by_label("API key").fill("secret-key-1")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#prompt")).to_be_visible()
        page.close()
