"""With keys alone: the ring around what has the focus is whole, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect
from support.serving import Server

from tests.page.conftest import ask, choose, parameter, set_option, watched

# Where the ring of what has the focus is cut: by the window, or by an element that hides what
# stands out of it. Null: the focus is nowhere, or where it was already.
CUT = """() => {
    const one = document.activeElement;
    window.stops ||= new Set();
    if (one === document.body || window.stops.has(one)) return null;
    window.stops.add(one);
    const style = getComputedStyle(one);
    const width = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
    const room = Math.max(width + parseFloat(style.outlineOffset), 0);
    const box = one.getBoundingClientRect();
    const clips = [["the window", 0, 0, innerWidth, innerHeight]];
    for (let up = one.parentElement; up; up = up.parentElement) {
        const own = getComputedStyle(up);
        if (own.overflowX !== "visible" || /content|paint|strict/.test(own.contain)) {
            const edge = up.getBoundingClientRect();
            const left = edge.left + up.clientLeft, top = edge.top + up.clientTop;
            clips.push([up.className, left, top, left + up.clientWidth, top + up.clientHeight]);
        }
        if (own.position === "fixed") break;
    }
    const cut = clips.filter(([, left, top, right, bottom]) =>
        box.left - room < left - 0.5 || box.top - room < top - 0.5 ||
        box.right + room > right + 0.5 || box.bottom + room > bottom + 0.5);
    return [one.outerHTML.slice(0, 160), cut.map(([name]) => name)];
}"""


def chat(page: Page) -> None:
    ask(page, "demo", "What is 27 + 58?")
    ask(page, "formatted", "All of it.")
    expect(page.locator(".katex").first).to_be_visible()


def tokens(page: Page) -> None:
    set_option(page, "Token probabilities")
    ask(page, "demo", "What is 27 + 58?")


def start(page: Page) -> None:
    choose(page, "demo")


def parameters(page: Page) -> None:
    page.get_by_role("button", name="Parameters").click()
    expect(parameter(page, "temperature")).to_be_visible()


def drawer(page: Page) -> None:
    ask(page, "demo", "What is 27 + 58?")
    page.keyboard.press("Escape")
    page.keyboard.press("h")


def models(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/models")
    page.get_by_text("Create from a file", exact=True).click()
    page.get_by_role("button", name="Load", exact=True).first.click()
    page.get_by_role("button", name="Details").first.click()
    expect(page.get_by_text("template", exact=True)).to_be_visible()


def compare(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/compare")
    choose(page, "demo", "Model A")


def inside(page: Page) -> None:
    ask(page, "demo", "What is 27 + 58?")
    page.goto(f"{page.url.partition('#')[0]}#/inside")
    expect(page.get_by_role("main").get_by_role("figure").last).to_be_visible()


def settings(page: Page) -> None:
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    expect(page.get_by_role("dialog")).to_be_visible()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    "view", [start, chat, tokens, parameters, drawer, models, compare, inside, settings]
)
def test_the_ring_of_each_stop_is_whole(
    browser: Browser, server: Server, view: Callable[[Page], None], width: int
) -> None:
    with watched(browser, server, viewport={"width": width, "height": 844}) as page:
        page.emulate_media(reduced_motion="reduce")
        view(page)
        stops, again = [], 0
        while again < 3:  # all of them: the focus goes round
            page.keyboard.press("Tab")
            found = page.evaluate(CUT)
            if found is None:
                again += 1
            else:
                stops.append(found)
        assert len(stops) > 3
        assert [stop for stop in stops if stop[1]] == []
