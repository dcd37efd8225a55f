"""The whole page: its policy, keys, keyboard, themes, narrow screens, and what axe finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from support.serving import Server, start_server

from tests.page.conftest import (
    OTHER_NAME,
    answers,
    ask,
    choose,
    has_ended,
    parameter,
    say,
    set_option,
    violations,
    wait_in,
    watched,
)

# How far the page, or a part of it that scrolls up and down, is wider than its place.
OVERFLOW = """() => Math.max(...[
    document.documentElement, ...document.querySelectorAll(
        ".turns, .chat-column, .panel, .compare-body, .models-column, .tokenizer-column,"
        + ".inside-column"),
].map((one) => one.scrollWidth - one.clientWidth))"""
SUM = "What is 27 + 58?"
KEY = "a-secret-key"
VIEWS = {"Models": "models", "Compare": "compare", "Tokenizer": "tokens"}


@pytest.fixture
def locked(models: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that asks for a key."""
    server = start_server(models, tmp_path, TAMPU_THREADS="1", TAMPU_API_KEY=KEY)
    yield server
    server.end()


def test_the_page_asks_for_a_key_and_keeps_it(browser: Browser, locked: Server) -> None:
    with watched(browser, locked) as page:
        field = page.get_by_role("dialog").get_by_label("API key", exact=True)
        field.fill("wrong")
        page.keyboard.press("Enter")
        alert = page.get_by_role("dialog").get_by_role("alert")
        expect(alert).to_have_text("The server does not accept this key.")
        expect(page.get_by_role("main").locator(".notice")).to_have_text(
            "The server does not accept this key."
        )
        expect(field).to_be_focused()
        field.fill(KEY)
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(ask(page, "demo", SUM)).to_contain_text("85")
        page.reload()
        expect(ask(page, "demo", "What is 10 + 20?")).to_contain_text("30")


def test_a_late_refusal_of_an_earlier_key_asks_for_none(browser: Browser, locked: Server) -> None:
    with watched(browser, locked) as page:
        field = page.get_by_role("dialog").get_by_label("API key", exact=True)
        expect(field).to_be_focused()
        late: list[Route] = []

        def hold(route: Route) -> None:
            has_key = "authorization" in route.request.headers
            route.continue_() if has_key else late.append(route)

        page.route("**/api/tags", hold)
        page.route("**/api/ps", hold)
        page.evaluate("() => dispatchEvent(new Event('focus'))")  # the lists are read again
        wait_in(page, lambda: len(late) == 2, "both lists are asked for")
        field.fill(KEY)
        page.keyboard.press("Enter")
        expect(ask(page, "demo", SUM)).to_contain_text("85")
        for route in late:
            route.continue_()
            refused = route.request.response()
            assert refused is not None
            assert refused.status == 401
        page.get_by_role("link", name="New chat").click()  # after what it may have opened
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("main").locator(".notice")).to_have_count(0)


def test_that_a_key_is_saved_is_told_and_it_can_be_removed(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog")
    field = dialog.get_by_label("API key", exact=True)
    expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    expect(dialog.get_by_role("button", name="Remove")).to_have_count(0)
    field.fill(KEY)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("status")).to_have_text("The key is saved in this browser.")
    with page.expect_request("**/api/tags") as request:
        page.reload()
    assert request.value.headers["authorization"] == f"Bearer {KEY}"
    page.get_by_role("button", name="Settings").click()
    field.fill("ключ")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This cannot be a key")
    dialog.get_by_role("button", name="Remove").click()
    expect(dialog.get_by_role("status")).to_have_text("The key is removed.")
    expect(field).to_have_value("")
    expect(field).to_be_focused()
    field.blur()
    page.keyboard.press("Escape")  # wherever the focus is
    expect(dialog).to_have_count(0)
    with page.expect_request("**/api/tags") as request:
        page.reload()
    assert "authorization" not in request.value.headers


def test_every_action_with_a_key_is_listed_and_does_what_it_says(page: Page) -> None:
    ask(page, "demo", SUM)
    page.keyboard.press("Escape")  # leaves the field
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Answer the last message again")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("r")
    expect(answers(page)).to_contain_text("2 of 2")
    expect(has_ended(answers(page))).to_be_visible()
    page.keyboard.press("[")
    expect(answers(page)).to_contain_text("1 of 2")
    page.keyboard.press("]")
    expect(answers(page)).to_contain_text("2 of 2")
    page.keyboard.press("e")
    expect(page.get_by_role("textbox", name="Edit")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("textbox", name="Edit")).to_have_count(0)
    page.keyboard.press("p")
    expect(parameter(page, "temperature")).to_be_visible()
    expect(page.get_by_role("complementary").get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("p")
    page.keyboard.press("m")
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")
    page.keyboard.press("c")
    expect(answers(page)).to_contain_text("85")
    page.keyboard.press("n")
    expect(answers(page)).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("mnt?")  # a text, no keys
    expect(page.get_by_role("textbox", name="Message")).to_have_value("mnt?")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(answers(page)).to_contain_text("85")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("?nr")  # a text in a field
    expect(page.get_by_role("searchbox")).to_have_value("?nr")


def test_what_is_typed_after_new_chat_or_a_choice_is_a_message(page: Page) -> None:
    ask(page, "demo", SUM)
    message = page.get_by_role("textbox", name="Message")
    page.get_by_role("link", name="New chat").click()
    page.keyboard.type("tell me something")
    expect(message).to_have_value("tell me something")
    page.get_by_role("link", name=SUM).click()
    expect(answers(page)).to_have_count(1)
    page.keyboard.type("more")
    expect(message).to_have_value("more")
    page.get_by_role("link", name="Models").click()
    page.get_by_role("button", name="Chat").last.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New chat")
    expect(message).to_be_focused()


# Presses a link, and says how far the page is before any key can come, with the focused field.
PRESSED = """async (link) => {
    link.click();
    for (let step = 0; step < 20; step++) await null;
    const { id, value } = document.activeElement;
    return [location.hash, document.querySelector("h1").textContent, id, value];
}"""


def test_no_key_after_new_chat_or_a_choice_goes_to_what_was_shown_before(page: Page) -> None:
    ask(page, "demo", SUM)
    address = page.evaluate("() => location.hash")
    page.get_by_role("textbox", name="Message").fill("a draft")
    new = page.get_by_role("link", name="New chat")
    assert new.evaluate(PRESSED) == ["#/", "New chat", "message", ""]
    old = page.get_by_role("link", name=SUM)
    assert old.evaluate(PRESSED) == [address, SUM, "message", "a draft"]
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("New chat")


def test_a_conversation_in_a_new_tab_leaves_this_one_as_it_is(page: Page) -> None:
    ask(page, "demo", SUM)
    page.get_by_role("link", name="New chat").click()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name=SUM).click(modifiers=["Control"])
    expect(opened.value.get_by_role("heading", level=1)).to_have_text(SUM)
    expect(page.get_by_role("heading", level=1)).to_have_text("New chat")


def test_a_tab_is_called_what_it_shows(page: Page) -> None:
    expect(page).to_have_title("tampu")
    ask(page, "demo", SUM)
    expect(page).to_have_title(f"{SUM} · tampu")
    page.get_by_role("link", name="Inside").click()
    expect(page).to_have_title("Inside · tampu")


def test_the_page_works_from_another_machine_without_tls(browser: Browser, server: Server) -> None:
    away = replace(server, url=server.url.replace("127.0.0.1", OTHER_NAME))
    with watched(browser, away) as page:
        assert not page.evaluate("() => isSecureContext")  # browsers withhold some functions there
        answer = ask(page, "demo", SUM)
        expect(answer).to_contain_text("85")
        answer.get_by_role("button", name="Copy").click()
        expect(answer.get_by_role("button", name="Copied")).to_be_visible()


def test_themes_follow_the_system_or_the_user(page: Page) -> None:
    background = "() => getComputedStyle(document.documentElement).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("radio", name="dark").check()
    assert page.evaluate(background) == dark
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 2560])
def test_nothing_is_wider_than_the_screen(browser: Browser, server: Server, width: int) -> None:
    with watched(browser, server, viewport={"width": width, "height": 700}) as page:
        ask(page, "formatted", "All of it.")
        assert page.evaluate(OVERFLOW) == 0
        for view, name in VIEWS.items():
            page.goto(f"{server.url}/#/{name}")
            expect(page.get_by_role("heading", level=1)).to_have_text(view)
            # What stands in for a view until its code is here has the title alone.
            expect(page.locator("main > :not(.head)").first).to_be_visible()
            if view == "Compare":
                choose(page, "formatted", "Model B")
                page.get_by_role("textbox", name="Message").fill("All of it.")
                page.get_by_role("textbox", name="Message").press("Enter")
                expect(page.get_by_text("tokens cached")).to_have_count(2)
            assert page.evaluate(OVERFLOW) == 0


def test_the_conversations_are_one_touch_away_on_a_narrow_screen(
    browser: Browser, server: Server
) -> None:
    with watched(browser, server, viewport={"width": 390, "height": 700}) as page:
        ask(page, "demo", SUM)
        expect(page.get_by_role("searchbox")).to_be_hidden()
        page.get_by_role("button", name="Show conversations").click()
        page.get_by_role("link", name="New chat").click()
        expect(page.get_by_role("searchbox")).to_be_hidden()
        expect(answers(page)).to_have_count(0)


# What a person sees of an element: whatever of it changes under the pointer.
LOOK = """(one) => {
    const style = getComputedStyle(one.labels?.[0] ?? one);
    const own = getComputedStyle(one);
    const { backgroundColor, backgroundImage, borderTopColor, textDecoration } = own;
    return [style.color, backgroundColor, backgroundImage, borderTopColor, textDecoration].join();
}"""
CLICKABLE = ":is(button, a[href], summary, select, input):visible:not(:disabled)"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("view", "title", "last"),
    [
        ("", "All of it.", "textbox"),
        ("compare", "Compare", "textbox"),
        ("tokens", "Tokenizer", "checkbox"),
        ("inside", "Inside", "figure"),
        ("models", "Models", "listitem"),
    ],
)
def test_what_can_be_clicked_looks_different_under_the_pointer(
    browser: Browser, server: Server, view: str, title: str, last: Any, theme: Any
) -> None:
    with watched(browser, server, color_scheme=theme) as page:
        page.emulate_media(reduced_motion="reduce")
        ask(page, "formatted", "All of it.")
        page.get_by_role("button", name="Parameters").click()
        page.get_by_role("textbox", name="Message").fill("Something")
        if view:
            page.goto(f"{server.url}/#/{view}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        expect(page.get_by_role("main").get_by_role(last).last).to_be_visible()
        found = page.locator(CLICKABLE)
        assert found.count() > 12
        for place in range(found.count()):
            one = found.nth(place)
            one.scroll_into_view_if_needed()
            page.mouse.move(0, 0)
            page.keyboard.press("Escape")  # the focus is no pointer
            before = one.evaluate(LOOK)
            one.hover()
            assert one.evaluate(LOOK) != before, one.evaluate("(one) => one.outerHTML")


def chat(page: Page) -> None:
    ask(page, "thinker", "Why?")
    ask(page, "formatted", "All of it.")


def parameters(page: Page) -> None:
    page.get_by_role("button", name="Parameters").click()
    expect(parameter(page, "temperature")).to_be_visible()


def models(page: Page) -> None:
    page.get_by_role("link", name="Models").click()
    page.get_by_role("button", name="Details").first.click()
    expect(page.get_by_text("template", exact=True)).to_be_visible()


def probabilities(page: Page) -> None:
    set_option(page, "Token probabilities")
    ask(page, "demo", SUM)
    page.get_by_role("listbox", name="Tokens").get_by_role("option").first.hover()
    expect(page.get_by_role("group", name="Alternatives of the token")).to_be_visible()


def side_by_side(page: Page) -> None:
    set_option(page, "2", "radio")
    choose(page, "demo")
    say(page, SUM)
    expect(page.get_by_text("tokens cached")).to_have_count(2)


def formats(page: Page) -> None:
    parameters(page)
    page.get_by_text("Output format", exact=True).click()
    page.get_by_label("Format").select_option("JSON schema")
    page.get_by_role("textbox", name="JSON schema").fill("{")
    page.get_by_text("Tools", exact=True).click()


def compare(page: Page) -> None:
    page.get_by_role("link", name="Compare").click()
    page.get_by_role("textbox", name="Message").fill(SUM)
    choose(page, "demo", "Model A")
    choose(page, "formatted", "Model B")
    page.get_by_role("textbox", name="Message").press("Enter")
    expect(page.get_by_text("tokens cached")).to_have_count(2)


def tokenizer(page: Page) -> None:
    page.get_by_role("link", name="Tokenizer").click()
    page.get_by_role("textbox", name="Text").fill("A text 🙂")
    expect(page.get_by_role("status")).to_contain_text("tokens")


def keys(page: Page) -> None:
    page.get_by_role("button", name="Keyboard").click()


def settings(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "view",
    [
        chat, parameters, models, keys, settings, probabilities, side_by_side, formats, compare,
        tokenizer,
    ],
)  # fmt: skip
def test_axe_finds_nothing(
    browser: Browser, server: Server, view: Callable[[Page], None], theme: Any
) -> None:
    # What the test brings along runs in spite of the page's policy.
    with watched(browser, server, bypass_csp=True, color_scheme=theme) as page:
        view(page)
        assert violations(page) == []
