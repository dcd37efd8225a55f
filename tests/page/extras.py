"""More of the chat: several answers side by side, output formats, and tools answered by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from support.chat_templates import CHATML
from support.scripted import write_scripted
from support.serving import Server, start_server

from tests.page.conftest import (
    LONG_CONTEXT,
    answers,
    ask,
    choose,
    linked,
    parameter,
    say,
    set_option,
    wait_in,
)

SCHEMA = {
    "type": "object",
    "properties": {"sum": {"enum": [1, 2]}},
    "required": ["sum"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '{"name": "weather", "arguments": {"city": "Lima"}}'


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model that calls a tool, and that answers what ends with the letter n."""
    folder = linked(models, tmp_path_factory.mktemp("more"))
    script = ["<tool_call>", CALL, "</tool_call>"]
    write_scripted(folder / "caller.gguf", script, template=CHATML)
    home = tmp_path_factory.mktemp("home")
    settings = {"TAMPU_CONTEXT_LENGTH": str(LONG_CONTEXT), "TAMPU_NUM_PARALLEL": "4"}
    server = start_server(folder, home, TAMPU_THREADS="1", **settings)
    yield server
    server.end()


def columns(page: Page) -> Locator:
    return page.get_by_role("list", name="Side by side").get_by_role("listitem")


def opened(page: Page, summary: str, field: Locator) -> Locator:
    """Open the panel of parameters, and the part of it that has a field; return the field."""
    if not page.get_by_role("complementary", name="Parameters").is_visible():
        page.get_by_role("button", name="Parameters").click()
    expect(parameter(page, "temperature")).to_be_visible()  # the server's table is there
    if not field.is_visible():
        page.get_by_text(summary, exact=True).click()
    return field


def test_several_answers_stand_side_by_side_and_one_is_gone_on_with(page: Page) -> None:
    choose(page, "demo")
    set_option(page, "3", "radio")
    say(page, "What is 27 + 58?")
    expect(columns(page)).to_have_count(3)
    for column in columns(page).all():
        expect(column.get_by_text("tokens cached")).to_be_visible()
        expect(column).to_contain_text("85")
    columns(page).nth(1).get_by_role("button", name="Go on with this answer").click()
    expect(columns(page)).to_have_count(0)
    expect(answers(page)).to_contain_text("2 of 3")
    page.get_by_role("button", name="Side by side").click()
    expect(columns(page)).to_have_count(3)


def test_all_answers_stream_at_once_and_are_stopped_together(page: Page) -> None:
    choose(page, "endless")
    opened(page, "The answer", parameter(page, "num_predict")).fill("1000000")
    set_option(page, "2", "radio")
    say(page, "Sing.")
    expect(columns(page)).to_have_count(2)
    for column in columns(page).all():
        expect(column).to_contain_text("la li lo la li lo")
    page.get_by_role("button", name="Stop").click()
    expect(columns(page).get_by_text("Stopped.")).to_have_count(2)


def test_an_answer_follows_a_schema_that_is_checked_while_it_is_typed(page: Page) -> None:
    choose(page, "demo")
    opened(page, "Output format", page.get_by_label("Format")).select_option("JSON schema")
    schema = page.get_by_role("textbox", name="JSON schema")
    schema.fill('{"type": "object",')
    expect(page.get_by_role("status").filter(has_text="JSON")).to_contain_text("line 1")
    expect(page.get_by_role("alert")).to_contain_text("cannot be sent")
    page.get_by_role("textbox", name="Message").fill("Hi")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    schema.fill("[1]")
    expect(page.get_by_role("alert")).to_contain_text("A JSON schema is an object.")
    schema.fill(json.dumps(SCHEMA))
    expect(page.get_by_role("alert")).to_have_count(0)
    answer = ask(page, "demo", "What is 27 + 58?")
    expect(answer.get_by_text("json", exact=True)).to_be_visible()
    expect(answer.locator("pre")).to_have_text(re.compile(r'^\s*\{\s*"sum":\s*[12]\s*\}\s*$'))


def test_what_a_schema_has_and_is_ignored_is_said_while_it_is_typed(page: Page) -> None:
    choose(page, "demo")
    opened(page, "Output format", page.get_by_label("Format")).select_option("JSON schema")
    schema = page.get_by_role("textbox", name="JSON schema")
    schema.fill(json.dumps(SCHEMA | {"dependentRequired": {"sum": ["unit"]}}))
    told = page.get_by_role("status").filter(has_text="ignored")
    expect(told).to_contain_text("dependentRequired")
    expect(told).to_have_class("hint")
    expect(schema).to_have_attribute("aria-invalid", "false")
    schema.fill(json.dumps(SCHEMA))
    expect(told).to_have_count(0)


def test_an_answer_follows_a_grammar_and_a_wrong_one_is_explained(page: Page) -> None:
    choose(page, "demo")
    opened(page, "Output format", page.get_by_label("Format")).select_option("grammar (GBNF)")
    grammar = page.get_by_role("textbox", name="grammar (GBNF)")
    grammar.fill('root ::= "yes" | "no"')
    answer = ask(page, "demo", "What is 27 + 58?").locator("pre")
    expect(answer).to_have_text(re.compile("^(yes|no)$"))
    grammar.fill("root ::= other")
    told = page.get_by_role("status").filter(has_text="other")
    expect(told).to_have_text("The rule other, which root uses, is missing")
    expect(grammar).to_have_attribute("aria-invalid", "true")
    say(page, "Again?")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("Again?")  # is not sent
    send = page.get_by_role("button", name="Send")
    expect(send).to_be_disabled()
    expect(send).to_have_accessible_description(re.compile("cannot be sent: the rule other"))
    grammar.fill('root ::= "yes"')
    expect(told).to_have_count(0)
    expect(send).to_be_enabled()
    page.get_by_label("Format").select_option("regular expression")
    page.get_by_role("textbox", name="regular expression").fill("[0-9")
    expect(page.get_by_role("status").filter(has_text="unclosed")).to_be_visible()


def test_an_answer_in_a_format_is_shown_as_it_is(page: Page) -> None:
    choose(page, "demo")
    opened(page, "Output format", page.get_by_label("Format")).select_option("regular expression")
    page.get_by_role("textbox", name="regular expression").fill(r"\*\*bold\*\* a_b_c")
    answer = ask(page, "demo", "What is 27 + 58?")
    expect(answer.locator("pre")).to_have_text("**bold** a_b_c")
    page.reload()
    expect(answers(page).locator("pre")).to_have_text("**bold** a_b_c")


def test_a_verdict_is_of_the_text_that_stands_there(page: Page) -> None:
    choose(page, "demo")
    opened(page, "Output format", page.get_by_label("Format")).select_option("grammar (GBNF)")
    grammar = page.get_by_role("textbox", name="grammar (GBNF)")
    grammar.fill("root ::= other")
    problem = page.locator(f"[id='{grammar.get_attribute('aria-describedby')}']")
    expect(problem).to_contain_text("The rule other")
    held: list[Route] = []
    page.route("**/api/format/check", lambda route: held.append(route))
    grammar.fill("root ::= another")
    expect(problem).to_have_text("Checking…")
    expect(page.get_by_role("alert")).to_have_count(0)
    wait_in(page, lambda: held, "the server is asked")
    expect(problem).to_have_text("Checking…")
    held[-1].continue_()
    expect(problem).to_contain_text("The rule another")


def test_what_ended_an_answer_early_is_said(page: Page) -> None:
    opened(page, "Output format", page.get_by_label("Format")).select_option("regular expression")
    page.get_by_role("textbox", name="regular expression").fill("[a-z ]{2000}")
    answer = ask(page, "demo", "What is 27 + 58?")
    expect(answer).to_contain_text("Ended early: one token was repeated too often.")
    opened(page, "The answer", parameter(page, "num_predict")).fill("5")
    page.keyboard.press("Tab")
    answer = ask(page, "demo", "What is 27 + 58?")
    expect(answer).to_contain_text("Ended at the limit of 5 tokens.")


def test_a_call_is_shown_and_its_result_is_given_by_hand(page: Page) -> None:
    choose(page, "caller")
    opened(page, "Tools", page.get_by_label("Functions that the model may call")).fill(
        json.dumps(WEATHER)
    )
    say(page, "What is the weather in Lima?")
    call = page.get_by_role("region", name="Call of weather")
    expect(call).to_contain_text(re.compile(r'"city": "Lima"'))
    call.get_by_label("Result of weather").fill("22 degrees")
    with page.expect_request("**/api/chat") as request:
        page.get_by_role("button", name="Send the results").click()
    sent = json.loads(request.value.post_data)
    assert sent["tools"] == [{"type": "function", "function": WEATHER}]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"city": "Lima"}
    assert sent["messages"][2] == {
        "role": "tool", "content": "22 degrees", "tool_name": "weather",
    }  # fmt: skip
    expect(page.get_by_role("region", name="Result of weather")).to_contain_text("22 degrees")
    expect(page.get_by_role("region", name="Call of weather")).to_have_count(2)


def test_tools_that_are_not_functions_are_explained(page: Page) -> None:
    tools = opened(page, "Tools", page.get_by_label("Functions that the model may call"))
    for text, problem in (
        ("[{]", "line 1"),
        ("[5]", "Tool 1 is not a function"),
        ('{"description": "x"}', "Tool 1 has no name."),
        ('{"name": "f", "parameters": []}', "The parameters of f are not an object."),
    ):
        tools.fill(text)
        expect(page.get_by_role("alert")).to_contain_text(problem)
