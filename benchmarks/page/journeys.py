"""What people do with the page, as a hand would do it: at most one movement a frame."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect


def paced(steps: int, step: Callable[[int], None], every: float = 1 / 60) -> None:
    """Take steps, none sooner than the time of a frame after the one before."""
    due = time.perf_counter()
    for i in range(steps):
        step(i)
        due = max(due + every, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))


def ask(page: Page, url: str) -> None:
    """Ask the first example, and stand before the walk."""
    page.goto(url + "/")
    page.get_by_role("button", name=re.compile("a fact")).click()
    expect(page.get_by_role("region", name="Walk through the phases")).to_be_visible()


def walk(page: Page) -> None:
    """The walk through all phases of a token, playing by itself."""
    page.get_by_label("a phase every").select_option("2 s")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible(timeout=30_000)


def matrix_of(page: Page) -> Locator:
    return page.get_by_role("img", name=re.compile("Weights of head"))


def open_matrix(page: Page, url: str, trace: str, pos: int) -> None:
    """The attention view of a trace, with all of it there."""
    page.goto("about:blank")
    page.goto(f"{url}/#/attention?id={trace}&pos={pos}&layer=5&head=3&form=matrix")
    expect(page.get_by_role("img", name="first of every head")).to_be_visible(timeout=300_000)
    expect(page.get_by_text(re.compile("looks most at"))).to_be_visible(timeout=60_000)
    page.wait_for_load_state("networkidle", timeout=120_000)


def _box(page: Page) -> dict[str, float]:
    matrix_of(page).scroll_into_view_if_needed()
    box = matrix_of(page).bounding_box()
    assert box is not None
    return dict(box)


def hover(page: Page) -> None:
    """The pointer moves along the diagonal and back, reading cells."""
    box = _box(page)

    def step(i: int) -> None:
        at = 0.5 - 0.48 * math.cos(i / 40)
        page.mouse.move(box["x"] + box["width"] * at * 0.8, box["y"] + box["height"] * at)

    paced(300, step)


def zoom(page: Page) -> None:
    """Into the matrix where the pointer is, and out again."""
    box = _box(page)
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.7)
    page.keyboard.down("Control")
    paced(240, lambda i: page.mouse.wheel(0, -40 if i // 40 % 2 == 0 else 40))
    page.keyboard.up("Control")


def pan(page: Page) -> None:
    """Close to the diagonal, the map is drawn along it and back."""
    box = _box(page)
    if page.get_by_role("button", name="All", exact=True).is_enabled():
        page.get_by_role("button", name="All", exact=True).click()
    for _ in range(5):
        page.get_by_role("button", name="Zoom in").click()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    paced(240, lambda i: page.mouse.move(x - 200 * math.sin(i / 30), y - 200 * math.sin(i / 30)))
    page.mouse.up()
    page.get_by_role("button", name="All", exact=True).click()


def scroll(page: Page) -> None:
    """The wheel over the matrix, down and up."""
    box = _box(page)
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    paced(240, lambda i: page.mouse.wheel(0, 40 if i // 30 % 2 == 0 else -40))


def cursor(page: Page) -> None:
    """The cursor goes from token to token by keyboard, as fast as a held key repeats."""
    paced(120, lambda i: page.keyboard.press("ArrowRight" if i < 60 else "ArrowLeft"), every=1 / 30)


def heads(page: Page) -> None:
    """One head after the other is looked at."""
    paced(12, lambda i: page.keyboard.press("]" if i < 6 else "["), every=0.4)


MATRIX: dict[str, Callable[[Page], None]] = {
    "hover": hover,
    "zoom": zoom,
    "pan": pan,
    "scroll": scroll,
    "cursor": cursor,
    "heads": heads,
}
