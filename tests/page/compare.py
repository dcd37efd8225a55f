"""Comparison: the same prompt to two models or settings at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect
from support.serving import Server, start_server

from tests.page.conftest import LONG_CONTEXT, choose, parameter, watched


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose models answer two requests at once."""
    home = tmp_path_factory.mktemp("home")
    settings = {"TAMPU_CONTEXT_LENGTH": str(LONG_CONTEXT), "TAMPU_NUM_PARALLEL": "2"}
    server = start_server(models, home, TAMPU_THREADS="1", **settings)
    yield server
    server.end()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with watched(browser, server, "/#/compare") as page:
        yield page


def side(page: Page, name: str, model: str) -> Locator:
    """Choose the model of a side."""
    choose(page, model, f"Model {name}")
    return page.get_by_role("region", name=f"Side {name}")


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def test_two_models_answer_the_same_prompt_each_with_its_figures(page: Page) -> None:
    left, right = side(page, "A", "demo"), side(page, "B", "formatted")
    send(page, "What is 27 + 58?")
    expect(left).to_contain_text("85")
    expect(right.get_by_role("cell", name="Lima")).to_be_visible()
    for one, model in ((left, "demo:latest"), (right, "formatted:latest")):
        expect(one).to_contain_text(re.compile(rf"{model}.*tokens/s.*after.*tokens cached", re.S))


def test_both_sides_are_stopped(page: Page) -> None:
    left, right = side(page, "A", "endless"), side(page, "B", "endless")
    for one in (left, right):
        one.get_by_text("Parameters").click()
        parameter(one, "num_predict").fill("1000000")
    send(page, "Sing.")
    expect(left).to_contain_text("la li lo")
    page.get_by_role("button", name="Stop").click()
    expect(left).to_contain_text("Stopped.")
    expect(right).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_answers_are_in_sight_although_parameters_were_open(page: Page) -> None:
    sides = [side(page, name, "formatted") for name in ("A", "B")]
    for one in sides:
        one.get_by_text("Parameters").click()
        expect(parameter(one, "temperature")).to_be_visible()
        expect(one.get_by_text("The answer appears here.")).to_be_in_viewport()
    send(page, "All of it.")
    for one in sides:
        expect(one.get_by_role("heading", name="Title")).to_be_in_viewport()
        expect(parameter(one, "temperature")).to_be_hidden()
        one.get_by_text("Parameters").click()
        expect(parameter(one, "temperature")).to_be_visible()
        expect(one.get_by_role("heading", name="Title")).to_be_in_viewport()


def test_two_settings_of_one_model_are_compared(page: Page) -> None:
    sent: list[Request] = []
    page.on("request", lambda one: sent.append(one) if one.url.endswith("/api/chat") else None)
    for name, limit in (("A", "3"), ("B", "7")):
        one = side(page, name, "endless")
        one.get_by_text("Parameters").click()
        parameter(one, "num_predict").fill(limit)
        one.get_by_label("System prompt").fill(f"You are {name}.")
    send(page, "Sing.")
    for name, limit in (("A", "3"), ("B", "7")):
        one = page.get_by_role("region", name=f"Side {name}")
        expect(one).to_contain_text(f"Ended at the limit of {limit} tokens.")
        expect(one).to_contain_text(f"{limit} tokens")
    bodies = [json.loads(one.post_data or "") for one in sent]
    assert [body["options"] for body in bodies] == [{"num_predict": 3}, {"num_predict": 7}]
    systems = [body["messages"][0]["content"] for body in bodies]
    assert systems == ["You are A.", "You are B."]
