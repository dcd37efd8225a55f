"""The sidebar: collapsed to its icons on a wide screen, over the page on a narrow one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.serving import Server

from tests.page.conftest import ask, violations, watched

SUM = "What is 27 + 58?"
MOST_WIDTH = 64
VIEWS = ("Compare", "Tokenizer", "Inside", "Models")


def sidebar(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Conversations")


def toggle(page: Page, name: Literal["Show", "Hide"]) -> Locator:
    return sidebar(page).get_by_role("button", name=f"{name} conversations")


def is_collapsed(page: Page) -> None:
    expect(toggle(page, "Show")).to_be_visible()
    expect(sidebar(page).get_by_role("searchbox")).to_be_hidden()
    box = sidebar(page).bounding_box()
    assert box
    assert box["width"] <= MOST_WIDTH


def test_it_collapses_to_its_icons_and_stays_so(page: Page) -> None:
    ask(page, "demo", SUM)
    conversation = sidebar(page).get_by_role("link", name=SUM)
    toggle(page, "Hide").click()
    expect(toggle(page, "Show")).to_be_focused()
    expect(conversation).to_be_hidden()
    page.reload()
    is_collapsed(page)
    for view in VIEWS:
        sidebar(page).get_by_role("link", name=view).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(view)
    sidebar(page).get_by_role("link", name="New chat").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    toggle(page, "Show").click()
    expect(conversation).to_be_visible()
    page.reload()
    expect(conversation).to_be_visible()


def test_with_keys_it_collapses_and_its_search_opens_it(page: Page) -> None:
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("h")
    is_collapsed(page)
    page.keyboard.press("/")
    expect(sidebar(page).get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("h")
    sidebar(page).get_by_role("button", name="Search conversations").click()
    expect(sidebar(page).get_by_role("searchbox")).to_be_focused()


def test_on_a_narrow_screen_it_covers_the_page_also_if_it_is_collapsed_on_wide_ones(
    page: Page,
) -> None:
    toggle(page, "Hide").click()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(sidebar(page)).to_be_hidden()
    opens = page.get_by_role("main").get_by_role("button", name="Show conversations")
    opens.focus()
    page.keyboard.press("Enter")
    expect(toggle(page, "Hide")).to_be_focused()
    expect(sidebar(page).get_by_role("link", name="Models")).to_contain_text("Models")
    expect(sidebar(page).get_by_role("searchbox")).to_be_visible()
    page.keyboard.press("Enter")
    expect(sidebar(page)).to_be_hidden()
    expect(opens).to_be_focused()
    page.keyboard.press("h")
    expect(toggle(page, "Hide")).to_be_focused()
    page.keyboard.press("h")
    expect(sidebar(page)).to_be_hidden()


def test_it_opens_to_tell_what_was_imported(page: Page, tmp_path: Path) -> None:
    toggle(page, "Hide").click()
    file = {"format": "tampu-conversations", "version": 1, "conversations": []}
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(file), "utf-8")
    sidebar(page).get_by_label("All conversations").click()
    expect(sidebar(page).get_by_role("button", name="Export all conversations")).to_be_in_viewport()
    page.get_by_label("Import conversations").set_input_files([path, __file__])
    expect(sidebar(page).get_by_role("alert")).to_contain_text("sidebar.py: ")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_its_icons(
    browser: Browser, server: Server, theme: Literal["light", "dark"]
) -> None:
    with watched(browser, server, bypass_csp=True, color_scheme=theme) as page:
        ask(page, "demo", SUM)
        toggle(page, "Hide").click()
        is_collapsed(page)
        assert violations(page) == []
