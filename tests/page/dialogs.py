"""The dialogs for keys, names, questions and tools, in both themes: what axe finds in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from support.chat_templates import CHATML
from support.scripted import write_scripted
from support.serving import Server, start_server

from tests.page.conftest import PLAIN, ask, choose, say, violations, watched
from tests.page.conversations import menu
from tests.page.models import row

CALL = '{"name": "weather", "arguments": {"city": "Lima"}}'
TOOL = {"name": "weather", "url": f"http://127.0.0.1:9/{'w' * 300}"}
KEY = "a-secret-key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key, a model that calls a tool, and one that can be quantized."""
    folder = tmp_path_factory.mktemp("models")
    calls = ["<tool_call>", CALL, "</tool_call>"]
    write_scripted(folder / "caller.gguf", calls, template=CHATML)
    write_scripted(folder / "singer.gguf", [" la"], template=PLAIN)
    home = tmp_path_factory.mktemp("home")
    server = start_server(folder, home, TAMPU_THREADS="1", TAMPU_API_KEY=KEY)
    yield server
    server.end()


def enter(page: Page) -> None:
    """Give the key that the page asks for."""
    page.get_by_role("dialog").get_by_label("API key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)


def key(page: Page) -> None:
    page.get_by_role("dialog").get_by_label("API key", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_have_text("The server does not accept this key.")


def rename_chat(page: Page) -> None:
    enter(page)
    ask(page, "singer", "Sing.")
    menu(page, "Rename")


def delete_chat(page: Page) -> None:
    enter(page)
    ask(page, "singer", "S" * 200)
    menu(page, "Delete")


def delete_model(page: Page) -> None:
    enter(page)
    # Only what is in the server's own store can be deleted.
    page.request.post(
        page.evaluate("location.origin") + "/api/create",
        headers={"authorization": f"Bearer {KEY}"},
        data={"model": "mine", "from": "demo", "stream": False},
    )
    page.get_by_role("link", name="Models").click()
    row(page, "mine:latest").get_by_role("button", name="Delete").click()


def quantize(page: Page) -> None:
    enter(page)
    page.get_by_role("link", name="Models").click()
    row(page, "singer:latest").get_by_role("button", name="Quantize").click()


def allow_url(page: Page) -> None:
    enter(page)
    choose(page, "caller")
    page.get_by_role("button", name="Parameters").click()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Functions that the model may call").fill(json.dumps(TOOL))
    say(page, "What is the weather in Lima?")
    page.get_by_role("button", name="Send the calls").click()


def allowed_urls(page: Page) -> None:
    allow_url(page)
    page.get_by_role("dialog").get_by_role("button", name="Allow").click()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog")).to_contain_text(TOOL["url"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "show", [key, rename_chat, delete_chat, delete_model, quantize, allow_url, allowed_urls]
)
def test_axe_finds_nothing_in_a_dialog(
    browser: Browser, server: Server, show: Callable[[Page], None], theme: Any
) -> None:
    with watched(browser, server, bypass_csp=True, color_scheme=theme) as page:
        show(page)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        assert dialog.evaluate("one => one.contains(document.activeElement)")
        assert dialog.evaluate("one => one.scrollWidth <= one.clientWidth")  # whatever is in it
        assert violations(page) == []
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
