"""A phone's screen: nothing is cut, nothing sticks out, words stay whole."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect
from support.scripted import write_scripted
from support.serving import Server, start_server

from tests.page.conftest import PLAIN, answers, ask, choose, linked, parameter, violations, watched

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
LEFT_OF_TEXT = """(one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return Math.round(range.getBoundingClientRect().left);
}"""
VIEWS = {
    "": "New chat",
    "compare": "Compare",
    "tokens": "Tokenizer",
    "inside": "Inside",
    "models": "Models",
}
IS_WHOLE = "(one) => one.scrollWidth <= one.clientWidth"
WIDE = (
    f"{'| column ' * 9}|\n{'|---' * 9}|\n{'| a value ' * 9}|\n\n"
    f"$$\n{' + '.join(f'x_{{{number}}}' for number in range(40))}\n$$\n"
)


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = linked(models, tmp_path_factory.mktemp("more"))
    write_scripted(folder / "wide.gguf", [WIDE], template=PLAIN)
    server = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield server
    server.end()


@pytest.fixture(params=[390, 360])
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    with watched(browser, server, viewport={"width": request.param, "height": 844}) as page:
        yield page


def box(found: Locator) -> dict[str, float]:
    place = found.bounding_box()
    assert place
    return dict(place)


@pytest.mark.parametrize("model", ["demo", "thinker"])
def test_the_button_that_sends_stands_beside_that_of_the_options(page: Page, model: str) -> None:
    choose(page, model)
    send = box(page.get_by_role("button", name="Send"))
    options = box(page.get_by_role("button", name="Answer options"))
    assert send["y"] == options["y"]
    assert send["height"] == options["height"]


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
    heading = page.get_by_role("heading", name="demo:latest")
    models = page.get_by_role("list", name="Models")
    demo = models.get_by_role("listitem").filter(has=heading)
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


def brightness(found: Locator) -> tuple[float, float]:
    """How bright the left and the right edge of an element are, between two rows of its table."""
    image = Image.open(io.BytesIO(found.screenshot())).convert("L")
    pixels = np.asarray(image, dtype=np.float64)
    rows = pixels[-8:-2]
    return float(rows[:, :2].mean()), float(rows[:, -2:].mean())


def test_what_is_too_wide_has_an_edge_where_it_goes_on_and_scrolls_with_keys(page: Page) -> None:
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    ask(page, "wide", "All of it.")
    table = page.get_by_role("region", name="Table")
    formula = page.get_by_role("region", name="Formula")
    expect(formula.locator("math")).to_be_visible()
    left, right = brightness(table)
    assert right < left - 10
    for one in (table, formula):
        assert not one.evaluate(IS_WHOLE)
        one.focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("(one) => one.scrollLeft > 0", arg=one.element_handle())
    table.evaluate("(one) => one.scrollTo(one.scrollWidth, 0)")
    page.keyboard.press("Escape")  # an outline is no edge
    table.evaluate("(one) => one.blur()")
    left, right = brightness(table)
    assert left < right - 10


def test_a_table_that_is_whole_is_no_stop_for_keys(page: Page) -> None:
    answer = ask(page, "formatted", "All of it.")
    expect(answer.get_by_role("table")).to_be_visible()
    expect(answer.get_by_role("region")).to_have_count(0)


def test_axe_finds_nothing_in_what_is_too_wide(
    browser: Browser, server: Server, page: Page
) -> None:
    viewport = page.viewport_size
    with watched(browser, server, bypass_csp=True, viewport=viewport) as other:
        ask(other, "wide", "All of it.")
        expect(other.get_by_role("region", name="Formula").locator("math")).to_be_visible()
        assert violations(other) == []


def test_titles_stand_in_one_place_in_all_views(page: Page) -> None:
    ask(page, "demo", SUM)
    title = page.get_by_role("heading", level=1)
    places = []
    for view, name in VIEWS.items():
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        expect(title).to_have_text(name)
        if view == "models":
            expect(page.get_by_text("of memory taken")).to_be_visible()
        # What stands in for a view until its code is here has the title alone.
        expect(page.locator("main > :not(.head)").first).to_be_visible()
        assert title.evaluate(IS_WHOLE)
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") == 0
        places.append((title.evaluate(LEFT_OF_TEXT), box(page.locator(".head"))["height"]))
    assert len(set(places)) == 1, places


def test_a_menu_closes_when_something_else_is_touched(page: Page) -> None:
    ask(page, "demo", SUM)
    menu = page.get_by_role("main").get_by_label("Conversation menu")
    menu.click()
    expect(page.get_by_role("button", name="Rename")).to_be_visible()
    answers(page).click(position={"x": 10, "y": 10})  # beside the menu
    expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    menu.click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    expect(menu).to_be_focused()


def test_the_parameters_can_be_closed_wherever_one_is_in_them(page: Page) -> None:
    page.get_by_role("button", name="Parameters").click()
    panel = page.get_by_role("complementary", name="Parameters")
    expect(parameter(panel, "temperature")).to_be_visible()
    panel.evaluate("(one) => one.scrollTo(0, one.scrollHeight)")
    panel.get_by_role("button", name="Close").click(trial=True)
    expect(panel.get_by_role("button", name="Close")).to_be_in_viewport()


def test_escape_the_way_back_and_a_touch_beside_close_the_parameters(page: Page) -> None:
    ask(page, "demo", SUM)
    here = page.url
    panel = page.get_by_role("complementary", name="Parameters")

    def show() -> None:
        page.get_by_role("button", name="Parameters").click()
        expect(parameter(panel, "temperature")).to_be_visible()

    show()
    parameter(panel, "temperature").focus()
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


# Closes the parameters with a key, and opens them again before the browser is back from there.
REOPENED = """async () => {
    dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    for (let step = 0; step < 20; step++) await null;
    const wasClosed = document.querySelector(".panel") === null;
    document.querySelector("main button[aria-label=Parameters]").click();
    await new Promise((resolve) => addEventListener("popstate", resolve, { once: true }));
    for (let step = 0; step < 20; step++) await null;
    return [wasClosed, document.querySelector(".panel") !== null];
}"""


def test_parameters_that_are_opened_again_at_once_stay_until_the_way_back(page: Page) -> None:
    ask(page, "demo", SUM)
    panel = page.get_by_role("complementary", name="Parameters")
    page.get_by_role("button", name="Parameters").click()
    expect(parameter(panel, "temperature")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate(REOPENED) == [True, True]
    page.go_back()
    expect(panel).to_have_count(0)
    expect(answers(page)).to_contain_text("85")
