"""Right-to-left texts, and less motion for those who ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from support.scripted import write_scripted
from support.serving import Server, start_server

from tests.page.conftest import (
    LONG_CONTEXT,
    PLAIN,
    answers,
    choose,
    linked,
    questions,
    say,
    watched,
)

ARABIC = "ما هي عاصمة بيرو؟"
HEBREW = "מהי בירת פרו?"
ANSWER = (
    "## שלום\n\nעיר הבירה היא לימה, ראו `print(1)`.\n\n- אחת\n- שתיים\n\n"
    "> ציטוט\n\n| עיר | אנשים |\n|---|---:|\n| לימה | 10 |\n\n"
    "This sentence is English.\n\n```python\nprint('Lima')  # a city\n```\n\n$$e^{i\\pi} = -1$$\n"
)
DIRECTION = """one => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const text = range.getBoundingClientRect();
    const box = one.getBoundingClientRect();
    const isRight = box.right - text.right < text.left - box.left;
    return [getComputedStyle(one).direction, isRight ? "right" : "left"];
}"""
MOVING = """() => document.getAnimations().filter((one) => one.playState === "running").length"""


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = linked(models, tmp_path_factory.mktemp("more"))
    write_scripted(folder / "hebrew.gguf", [ANSWER], template=PLAIN)
    settings = {"TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": str(LONG_CONTEXT)}
    server = start_server(folder, tmp_path_factory.mktemp("home"), **settings)
    yield server
    server.end()


@pytest.mark.parametrize("text", [ARABIC, HEBREW])
def test_a_message_from_right_to_left_is_shown_so(page: Page, text: str) -> None:
    field = page.get_by_role("textbox", name="Message")
    field.fill(text)
    assert field.evaluate("one => getComputedStyle(one).direction") == "rtl"
    choose(page, "hebrew")
    say(page, text)
    bubble = questions(page).get_by_text(text)
    assert bubble.evaluate("one => getComputedStyle(one).direction") == "rtl"
    title = page.get_by_role("heading", level=1)
    expect(title).to_have_text(text)
    assert title.evaluate("one => getComputedStyle(one).direction") == "rtl"
    entry = page.get_by_role("navigation").get_by_role("link", name=text)
    assert entry.evaluate("one => getComputedStyle(one).direction") == "rtl"
    assert page.locator("html").evaluate("one => getComputedStyle(one).direction") == "ltr"


def test_parts_of_an_answer_have_their_own_directions(page: Page) -> None:
    choose(page, "hebrew")
    say(page, "Hi")
    answer = answers(page).locator(".markdown")
    expect(answer.locator(".katex")).to_be_visible()
    for text in ("שלום", "עיר הבירה", "אחת", "ציטוט"):
        block = answer.locator(":is(h3, h4, p, li)").filter(has_text=text).last
        assert block.evaluate(DIRECTION) == ["rtl", "right"], text
    cells = answer.get_by_role("cell")
    assert cells.first.bounding_box()["x"] > cells.last.bounding_box()["x"]
    english = answer.get_by_text("This sentence is English.")
    assert english.evaluate(DIRECTION) == ["ltr", "left"]
    code = answer.locator("pre")
    assert code.evaluate("one => getComputedStyle(one).direction") == "ltr"
    formula = answer.locator(".katex")
    assert formula.evaluate("one => getComputedStyle(one).direction") == "ltr"


@pytest.mark.parametrize(("wish", "moves"), [("no-preference", True), ("reduce", False)])
def test_nothing_moves_for_those_who_do_not_want_it(
    browser: Browser, server: Server, wish: str, moves: bool
) -> None:
    options: dict[str, Any] = {"reduced_motion": wish, "viewport": {"width": 390, "height": 700}}
    with watched(browser, server, **options) as page:
        choose(page, "endless")
        say(page, "Sing.")
        expect(answers(page)).to_contain_text("la li lo")
        page.get_by_role("button", name="Show conversations").click()
        expect(page.get_by_label("Waiting for the first token…")).to_be_visible()  # it pulses
        assert (page.evaluate(MOVING) > 0) == moves
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
