"""The page of the API at /docs: it shows what the server serves, asks it, and loads nothing from elsewhere."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Browser, Page, expect

from serving import Live, running
from toymodel import toy_llm


def test_every_route_is_there(page: Page, site: Live) -> None:
    page.goto(site.url + "/docs")
    expect(page.locator(".route").first).to_be_visible()
    shown = [re.split(r"\s+", text)[:2] for text in page.locator(".route > summary").all_inner_texts()]
    paths = site.http.get("/openapi.json").json()["paths"]
    assert sorted(shown) == sorted([method.upper(), path] for path, methods in paths.items() for method in methods)


def test_fields_of_a_route(page: Page, site: Live) -> None:
    page.goto(site.url + "/docs")
    page.get_by_role("searchbox").fill("dynatemp_range")
    expect(page.locator(".route:visible")).to_have_count(2)  # chats and completions
    page.get_by_text("/v1/chat/completions").click()
    row = page.get_by_role("row").filter(has=page.get_by_text("repeat_last_n", exact=True))
    expect(row).to_contain_text("integer (≥ -1)")
    expect(row).to_contain_text("how many of the last tokens the penalties count")
    first = page.locator(".route:visible tbody tr").first
    expect(first).to_contain_text("messages *")
    first.get_by_text("list of Message").click()
    expect(first.get_by_role("row").filter(has_text="reasoning_content")).to_contain_text("What the model thought")


def test_it_asks(page: Page, site: Live) -> None:
    page.goto(site.url + "/docs")
    page.get_by_text("/v1/chat/completions").click()
    body = page.get_by_label("Body of POST /v1/chat/completions")
    asked = json.loads(body.input_value())
    assert asked == {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
    body.fill(json.dumps(asked | {"temperature": 0, "max_tokens": 6}))
    page.get_by_role("button", name="Send").click()
    out = page.locator("pre")
    expect(out).to_contain_text('"completion_tokens": 6')
    answer = site.post("/v1/chat/completions", asked | {"temperature": 0, "max_tokens": 6}).json()
    shown = out.inner_text()
    assert shown.startswith("200 OK")
    assert json.loads(shown.partition("\n\n")[2])["choices"] == answer["choices"]
    body.fill(json.dumps(asked | {"stream": True, "max_tokens": 3}))
    page.get_by_role("button", name="Send").click()
    expect(out).to_contain_text("data: [DONE]")


def test_a_key_is_asked_for_and_nothing_told_without(browser: Browser) -> None:
    with toy_llm() as llm, running(llm, api_key="secret-key-1") as live:
        page = browser.new_page()
        page.goto(live.url + "/docs")
        expect(page.get_by_label("API key")).to_be_visible()
        assert page.locator(".route").count() == 0
        page.get_by_label("API key").fill("wrong-key-9")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("Incorrect API key")).to_be_visible()
        page.get_by_label("API key").fill("secret-key-1")
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("/version").click()
        page.get_by_role("button", name="Send").click()
        expect(page.locator("pre")).to_contain_text('"version"')
        page.close()


def test_it_fits_a_phone(page: Page, site: Live) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site.url + "/docs")
    page.get_by_text("/v1/chat/completions").click()
    expect(page.get_by_text("repeat_last_n", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
