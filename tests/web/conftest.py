"""A real browser on a real server with the default model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from pellucid import LLM
from serving import Live, running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium: apt-get install chromium")
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(smollm2_path: Path) -> Iterator[Live]:
    """A server whose page is looked at."""
    with LLM(smollm2_path, ctx=1024) as llm, running(llm, name="smollm2", inspect=True) as live:
        yield live


class Seen:
    """What a page did that it should not: errors, foreign requests, violations of its policy."""

    def __init__(self, page: Page, url: str) -> None:
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", self._console)
        page.on("request", lambda request: self._request(request.url, url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _request(self, asked: str, url: str) -> None:
        if not asked.startswith((url, "data:")):
            self.faults.append(f"foreign: {asked}")


@pytest.fixture
def page(browser: Browser, site: Live) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(20_000)
    seen = Seen(page, site.url)
    yield page
    context.close()
    assert not seen.faults, seen.faults
