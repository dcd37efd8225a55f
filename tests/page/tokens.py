"""Tokens: a tokenizer view of any text, and the log-probabilities of answers."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, Route, expect

from tests.page.conftest import (
    answers,
    ask,
    choose,
    has_ended,
    leave,
    set_option,
    statistics,
    wait_in,
)


def test_a_text_is_shown_as_tokens_with_their_ids_while_it_is_typed(page: Page) -> None:
    page.get_by_role("link", name="Tokenizer").click()
    choose(page, "demo")
    page.get_by_role("textbox", name="Text").fill("Hé\n<end_of_turn>")
    expect(page.get_by_role("status")).to_have_text("5 tokens, 16 characters")
    pieces = page.get_by_role("list", name="Tokens").get_by_role("listitem")
    expect(pieces).to_have_text(["H1306", "c3206", "a9180", "↵1362", "<end_of_turn>5"])
    page.get_by_role("checkbox", name="Read control tokens").uncheck()
    expect(pieces.last).not_to_contain_text("end_of_turn")
    page.get_by_role("checkbox", name="Add the model's start").check()
    expect(pieces.first).to_contain_text("<bos>")
    page.get_by_role("textbox", name="Text").fill("")
    expect(pieces).to_have_count(0)


def test_a_tokenizer_that_is_not_there_yet_has_no_count(page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/tokenize", lambda route: held.append(route))
    page.get_by_role("link", name="Tokenizer").click()
    choose(page, "demo")
    page.get_by_role("textbox", name="Text").fill("A text")
    wait_in(page, lambda: held, "the server is asked")
    status = page.get_by_role("status")
    expect(status).to_have_text("Loading the tokenizer of demo:latest…")
    held[0].continue_()
    expect(status).to_have_text(re.compile(r"[1-9] tokens, 6 characters"))


def with_tokens(page: Page, question: str) -> Locator:
    """Ask the built-in model with the switch on; return the tokens of the answer."""
    set_option(page, "Token probabilities")
    return ask(page, "demo", question).get_by_role("listbox", name="Tokens").get_by_role("option")


def test_a_token_shows_its_probability_and_the_alternatives(page: Page) -> None:
    tokens = with_tokens(page, "What is 27 + 58?")
    expect(tokens).to_have_text(["8", "5"])
    expect(statistics(answers(page))).to_contain_text("2 tokens and the end")
    leave(page)
    tokens.first.hover()
    shown = page.get_by_role("group", name="Alternatives of the token")
    expect(shown).to_contain_text(re.compile(r"8\s*99\.\d+ %"))
    expect(shown).to_contain_text(re.compile(r"entropy 0\.\d+ bits"))
    expect(shown.get_by_role("listitem")).to_have_count(10)
    page.get_by_role("heading", level=1).hover()
    expect(shown).to_be_hidden()


def test_an_answer_goes_on_from_an_alternative_as_a_new_branch(page: Page) -> None:
    tokens = with_tokens(page, "What is 27 + 58?")
    tokens.first.hover()
    shown = page.get_by_role("group", name="Alternatives of the token")
    shown.get_by_role("button", name=re.compile("^7 ")).click()
    expect(answers(page)).to_contain_text("2 of 2")
    expect(has_ended(answers(page))).to_be_visible()
    expect(tokens.first).to_have_text("7")
    expect(tokens.nth(1)).to_be_visible()  # the model has written more after it
    page.get_by_role("button", name="Earlier version").click()
    expect(tokens).to_have_text(["8", "5"])


def test_tokens_are_reached_and_chosen_with_keys_alone(page: Page) -> None:
    tokens = with_tokens(page, "What is 27 + 58?")
    listbox = page.get_by_role("listbox", name="Tokens")
    shown = page.get_by_role("group", name="Alternatives of the token")
    listbox.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    expect(tokens.last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(shown.get_by_role("button").nth(1)).to_be_focused()
    page.keyboard.press("Escape")
    expect(listbox).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    chosen = shown.get_by_role("button").nth(2)
    expect(chosen).to_be_focused()
    digit = chosen.inner_text().split()[0]
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("2 of 2")
    expect(tokens.nth(1)).to_have_text(digit)
    expect(tokens.first).to_have_text("8")


def test_tokens_are_coloured_by_probability_or_entropy_and_kept(page: Page) -> None:
    tokens = with_tokens(page, "What is 27 + 58?")
    tokens.first.hover()
    alternatives = page.get_by_role("group", name="Alternatives of the token")
    alternatives.get_by_role("button").last.click()  # improbable where the model was certain
    expect(tokens.first).to_have_class(re.compile("doubt-5"))
    set_option(page, "entropy", "radio")
    expect(tokens.first).to_have_class(re.compile("doubt-0"))
    expect(has_ended(answers(page))).to_be_visible()
    page.reload()
    expect(tokens.first).to_have_class(re.compile("doubt-0"))
    set_option(page, "Token probabilities", to=False)
    expect(tokens).to_have_count(0)
