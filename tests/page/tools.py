"""Tools with a URL: allowed once by the user, asked through the server, and forbidden again."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from support.chat_templates import CHATML
from support.local_http import Answer, LocalServer, Request
from support.scripted import write_scripted
from support.serving import Server, start_server
from support.waiting import PATIENCE_S, wait_until

from tests.page.conftest import PLAIN, answers, choose, has_ended, say, statistics

CALL = '{"name": "weather", "arguments": {"city": "Lima"}}'
HOSTILE = "22 degrees <img src=x onerror=alert(1)>"


class Tool:
    """What the tool answers, once it may."""

    def __init__(self) -> None:
        self.answer = Answer(body=HOSTILE.encode())
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, _: Request) -> Answer:
        self.may_answer.wait(PATIENCE_S)
        return self.answer


@pytest.fixture
def tool() -> Tool:
    return Tool()


@pytest.fixture
def local(tool: Tool) -> Iterator[LocalServer]:
    with LocalServer(tool) as local:
        yield local


@pytest.fixture
def server(tmp_path: Path, local: LocalServer) -> Iterator[Server]:
    """A server with a model that calls a tool each time."""
    folder = tmp_path / "models"
    folder.mkdir()
    script = ["<tool_call>", CALL, "</tool_call>"]
    write_scripted(folder / "caller.gguf", script, template=CHATML)
    write_scripted(folder / "silent.gguf", [" la"], template=PLAIN)
    allowed = f"{local.url}/weather"
    server = start_server(folder, tmp_path, TAMPU_THREADS="1", TAMPU_TOOL_URLS=allowed)
    yield server
    server.end()


def calls(page: Page) -> Locator:
    return page.get_by_role("region", name="Call of weather")


def ask_weather(page: Page, url: str) -> None:
    """Ask for the weather, with a tool that has a URL."""
    choose(page, "caller")
    page.get_by_role("button", name="Parameters").click()
    page.get_by_text("Tools", exact=True).click()
    tool = {"name": "weather", "parameters": {"type": "object"}, "url": url}
    page.get_by_label("Functions that the model may call").fill(json.dumps(tool))
    page.get_by_role("button", name="Close").click()
    with page.expect_request("**/api/chat") as request:
        say(page, "What is the weather in Lima?")
    assert url not in request.value.post_data  # the model is not shown it


def test_a_url_is_asked_once_the_user_has_allowed_it(page: Page, local: LocalServer) -> None:
    url = f"{local.url}/weather"
    ask_weather(page, url)
    expect(calls(page)).to_have_count(1)
    page.get_by_role("button", name="Send the calls").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(url)
    dialog.get_by_role("button", name="Cancel").click()
    assert local.requests == []
    page.get_by_role("button", name="Send the calls").click()
    with page.expect_request("**/api/chat") as request:
        dialog.get_by_role("button", name="Allow").click()
    result = json.loads(request.value.post_data)["messages"][-1]
    assert result == {"role": "tool", "content": HOSTILE, "tool_name": "weather"}
    expect(page.get_by_role("region", name="Result of weather").first).to_contain_text(HOSTILE)
    # The model calls it again and again: ten times in a row without a click.
    expect(calls(page)).to_have_count(11)
    expect(page.get_by_role("button", name="Send the calls")).to_be_visible()
    assert len(local.requests) == 10
    assert json.loads(local.requests[0].body) == json.loads(CALL)
    say(page, "And now?")
    expect(calls(page)).to_have_count(22)  # also after a reload, until it is forbidden
    page.reload()
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name=f"Send no calls to {url}").click()
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Send the calls").click()
    expect(dialog).to_contain_text(url)


def test_a_url_that_the_server_does_not_allow_is_told_and_answered_by_hand(
    page: Page, local: LocalServer
) -> None:
    ask_weather(page, f"{local.url}/other")
    page.get_by_role("button", name="Send the calls").click()
    page.get_by_role("button", name="Allow").click()
    expect(answers(page).get_by_role("alert")).to_contain_text("is not in TAMPU_TOOL_URLS")
    assert local.requests == []
    calls(page).get_by_label("Result of weather").fill("by hand")
    page.get_by_role("button", name="Send the results").click()
    expect(page.get_by_role("region", name="Result of weather")).to_contain_text("by hand")
    expect(answers(page).first.get_by_role("alert")).to_have_count(0)


def test_an_error_of_the_tool_is_told_and_the_call_can_be_sent_again(
    page: Page, local: LocalServer, tool: Tool
) -> None:
    tool.answer = Answer(500, body=b"no sensor")
    ask_weather(page, f"{local.url}/weather")
    page.get_by_role("button", name="Send the calls").click()
    page.get_by_role("button", name="Allow").click()
    expect(answers(page).get_by_role("alert")).to_contain_text("status 500: no sensor")
    tool.answer = Answer(body=b"22 degrees")
    page.get_by_role("button", name="Send the calls").click()
    expect(page.get_by_role("region", name="Result of weather").first).to_contain_text("22 degrees")


def test_a_tool_that_does_not_answer_can_be_stopped(
    page: Page, local: LocalServer, tool: Tool
) -> None:
    tool.answer = Answer(body=b"x", stall_after=0)
    ask_weather(page, f"{local.url}/weather")
    page.get_by_role("button", name="Send the calls").click()
    page.get_by_role("button", name="Allow").click()
    wait_until(lambda: len(local.requests) == 1, "the tool is asked")
    expect(page.get_by_text("Waiting for the results…")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send the calls")).to_be_visible()
    expect(answers(page).get_by_role("alert")).to_have_count(0)


def test_a_result_that_comes_later_changes_neither_what_is_looked_at_nor_what_is_written(
    page: Page, local: LocalServer, tool: Tool
) -> None:
    tool.may_answer.clear()
    ask_weather(page, f"{local.url}/weather")
    page.get_by_role("button", name="Send the calls").click()
    page.get_by_role("button", name="Allow").click()
    wait_until(lambda: len(local.requests) == 1, "the tool is asked")
    page.get_by_role("link", name="New chat").click()
    message = page.get_by_role("textbox", name="Message")
    message.fill("Half of a mess")
    tool.may_answer.set()
    wait_until(lambda: len(local.requests) == 10, "the model has called as often as it may")
    entry = page.get_by_role("link", name="What is the weather")
    expect(entry.get_by_label("Waiting for the first token")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_have_text("New chat")
    expect(message).to_have_value("Half of a mess")
    entry.click()
    expect(calls(page)).to_have_count(11)
    expect(message).to_have_value("")
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name="New chat").click()
    expect(message).to_have_value("Half of a mess")


def test_a_model_that_calls_no_tools_is_known_before_a_message_is_sent(page: Page) -> None:
    choose(page, "silent")
    message = page.get_by_role("textbox", name="Message")
    message.fill("What is the weather in Lima?")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_role("button", name="Parameters").click()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Functions that the model may call").fill('{"name": "weather"}')
    why = "silent:latest does not call tools. Those of this conversation are under Parameters."
    expect(page.get_by_role("alert")).to_have_text(why)
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("button", name="Reset all").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_a_search_finds_calls_and_their_results(page: Page, local: LocalServer) -> None:
    ask_weather(page, f"{local.url}/other")
    expect(calls(page)).to_contain_text("Lima")
    calls(page).get_by_label("Result of weather").fill("drizzle and fog")
    page.get_by_role("button", name="Send the results").click()
    expect(page.get_by_role("region", name="Result of weather")).to_contain_text("drizzle")
    page.get_by_role("main").get_by_label("Conversation menu").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").fill("A talk")
    page.keyboard.press("Enter")
    entry = page.get_by_role("navigation", name="Conversations").get_by_role("link", name="A talk")
    for words in ('"city": "Lima"', "DRIZZLE weather"):
        page.get_by_role("searchbox").fill(words)
        expect(entry).to_be_visible()
    page.get_by_role("searchbox").fill("Quito")
    expect(entry).to_have_count(0)


def test_an_answer_without_a_text_has_nothing_to_copy(page: Page, local: LocalServer) -> None:
    ask_weather(page, f"{local.url}/weather")
    answer = answers(page).first
    expect(has_ended(answer)).to_be_visible()
    expect(statistics(answer)).to_contain_text(re.compile(r"after [\d.]+ m?s"))
    expect(answer.get_by_role("button", name="Answer again")).to_be_visible()
    expect(answer.get_by_role("button", name="Copy")).to_have_count(0)
