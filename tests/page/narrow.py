"""A phone's screen: nothing is cut, nothing sticks out, words stay whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.serving import Server

from tests.page.conftest import answers, ask, choose, watched

SUM = "What is 27 + 58?"
LONG = "What is the sum of all numbers from one to a hundred?"
# The parts of names that stand on two lines: names may be broken after their dots and underscores.
BROKEN = """(all) => all.flatMap((one) => {
    const found = [], walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        for (const word of walker.currentNode.data.matchAll(/\\S+/g)) {
            const range = document.createRange();
            range.setStart(walker.currentNode, word.index);
            range.setEnd(walker.currentNode, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map((rect) => rect.top)).size > 1) {
                found.push(word[0]);
            }
        }
    }
    return found;
})"""
IS_WHOLE = "(one) => one.scrollWidth <= one.clientWidth"


@pytest.fixture(params=[390, 360])
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    with watched(browser, server, viewport={"width": request.param, "height": 844}) as page:
        yield page


def box(found: Locator) -> dict[str, float]:
    place = found.bounding_box()
    assert place
    return dict(place)


@pytest.mark.parametrize("model", ["demo", "thinker"])
def test_the_button_that_sends_stands_beside_the_last_switch(page: Page, model: str) -> None:
    choose(page, model)
    send = box(page.get_by_role("button", name="Send"))
    switch = box(page.get_by_role("checkbox", name="Token probabilities"))
    assert send["y"] < switch["y"] < send["y"] + send["height"]


def test_the_title_has_the_width_of_the_head(page: Page) -> None:
    ask(page, "demo", SUM)
    title = page.get_by_role("heading", level=1)
    expect(title).to_have_text(SUM)
    assert title.evaluate(IS_WHOLE)
    page.get_by_role("button", name="Show conversations").click()
    page.get_by_role("link", name="New chat").click()
    ask(page, "demo", LONG)
    assert box(title)["width"] > 200  # what is too long ends in dots


def test_names_in_the_details_of_a_model_are_broken_between_their_words(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/models")
    models = page.get_by_role("list", name="Models")
    demo = models.get_by_role("listitem").filter(has=page.get_by_role("heading", name="demo"))
    demo.get_by_role("button", name="Details").click()
    expect(demo.get_by_text("gemma3.attention.layer_norm_rms_epsilon")).to_be_visible()
    terms = demo.locator("dt")
    assert terms.count() > 10
    assert terms.evaluate_all(BROKEN) == []
    expect(demo).to_contain_text(re.compile(r"rms_epsilon\s*0\.000001"))


def test_words_in_tables_stay_whole(page: Page) -> None:
    cells = ask(page, "formatted", "All of it.").locator("th, td")
    expect(cells.first).to_be_visible()
    assert cells.evaluate_all(BROKEN) == []


def test_a_menu_closes_when_something_else_is_touched(page: Page) -> None:
    ask(page, "demo", SUM)
    menu = page.get_by_role("main").get_by_label("Conversation menu")
    menu.click()
    expect(page.get_by_role("button", name="Rename")).to_be_visible()
    answers(page).click()
    expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    menu.click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    expect(menu).to_be_focused()


def test_the_parameters_can_be_closed_wherever_one_is_in_them(page: Page) -> None:
    page.get_by_role("button", name="Parameters").click()
    panel = page.get_by_role("complementary", name="Parameters")
    expect(panel.get_by_label("temperature")).to_be_visible()
    panel.evaluate("(one) => one.scrollTo(0, one.scrollHeight)")
    panel.get_by_role("button", name="Close").click(trial=True)
    expect(panel.get_by_role("button", name="Close")).to_be_in_viewport()


def test_escape_the_way_back_and_a_touch_beside_close_the_parameters(page: Page) -> None:
    ask(page, "demo", SUM)
    here = page.url
    panel = page.get_by_role("complementary", name="Parameters")

    def show() -> None:
        page.get_by_role("button", name="Parameters").click()
        expect(panel.get_by_label("temperature")).to_be_visible()

    show()
    panel.get_by_label("temperature").focus()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    show()
    page.go_back()
    expect(panel).to_have_count(0)
    show()
    page.mouse.click(10, 400)
    expect(panel).to_have_count(0)
    assert page.url == here
    expect(answers(page)).to_contain_text("85")
    page.get_by_role("button", name="Show conversations").click()
    expect(page.get_by_role("searchbox")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("searchbox")).to_be_hidden()
    assert page.url == here


def test_the_way_back_from_a_view_leads_to_the_one_before(page: Page) -> None:
    ask(page, "demo", SUM)
    title = page.get_by_role("heading", level=1)
    for view in ("Compare", "Models"):
        page.get_by_role("button", name="Show conversations").click()
        page.get_by_role("link", name=view).click()
        expect(title).to_have_text(view)
    page.go_back()
    expect(title).to_have_text("Compare")
    page.go_back()
    expect(title).to_have_text(SUM)
