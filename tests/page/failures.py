"""What a person sees when the server restarts or is busy, the network is lost, or a key expires."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect
from support.serving import Server, start_server
from support.waiting import PATIENCE_S, wait_until

from tests.page.conftest import LONG_CONTEXT, answers, ask, choose, say, wait_in, watched

UNREACHABLE = "The server cannot be reached"
Start = Callable[..., Server]


@pytest.fixture
def start(models: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a server with more options and variables; all are ended."""
    started: list[Server] = []

    def begin(*options: str, **environment: str) -> Server:
        settings = {"TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": str(LONG_CONTEXT)}
        started.append(start_server(models, tmp_path, *options, **settings | environment))
        return started[-1]

    yield begin
    for server in started:
        server.end()


def again(start: Start, server: Server, **environment: str) -> Server:
    """Start a server where another one was."""
    server.end()
    return start("--port", server.url.rpartition(":")[2], **environment)


def sing(page: Page) -> None:
    """Ask for an answer without an end, and wait for its beginning."""
    choose(page, "endless")
    say(page, "Sing.")
    expect(answers(page).last).to_contain_text("la li lo la li lo")


def waiting(server: Server) -> int:
    """Return how many requests wait, as metrics say."""
    metrics = httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text
    found = re.search(r"^tampu_requests_waiting (\d+)", metrics, re.MULTILINE)
    assert found
    return int(found[1])


@contextmanager
def reread(page: Page) -> Iterator[None]:
    """Wait until the page has read the lists again, as after an answer, and asks no more."""
    asked: list[Request] = []
    ended: list[Request] = []
    page.on("request", lambda one: asked.append(one))
    page.on("requestfinished", lambda one: ended.append(one))
    page.on("requestfailed", lambda one: ended.append(one))  # what the page itself aborts, too
    yield
    wait_in(
        page,
        lambda: set(asked) <= set(ended) and any("/api/tags" in one.url for one in asked),
        "the lists are read again",
    )


def stop(page: Page) -> None:
    """Stop the answer that is streamed."""
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")


def test_an_answer_goes_on_after_the_server_restarted(browser: Browser, start: Start) -> None:
    server = start()
    with watched(browser, server) as page:
        sing(page)
        server.end()
        expect(answers(page).get_by_role("alert")).to_be_visible()
        expect(answers(page)).to_contain_text("la li lo la li lo")  # what had come is kept
        again(start, server)
        page.get_by_role("button", name="Continue").click()
        expect(answers(page).get_by_role("alert")).to_have_count(0)
        stop(page)


def test_a_lost_network_is_told_and_the_message_can_be_sent_again(page: Page) -> None:
    ask(page, "demo", "What is 27 + 58?")
    page.context.set_offline(True)
    say(page, "What is 10 + 20?")
    expect(answers(page).last.get_by_role("alert")).to_contain_text(UNREACHABLE)
    page.context.set_offline(False)
    answers(page).last.get_by_role("button", name="Answer again").click()
    expect(answers(page).last).to_contain_text("30")


def test_a_full_queue_is_told_with_its_wait(browser: Browser, start: Start) -> None:
    server = start(TAMPU_MAX_QUEUE="1", TAMPU_NUM_PARALLEL="1")
    with (
        watched(browser, server) as first,
        watched(browser, server) as second,
        watched(browser, server) as third,
    ):
        sing(first)
        choose(second, "endless")
        say(second, "Sing, too.")
        wait_until(lambda: waiting(server) == 1, "the second request waits")
        choose(third, "endless")
        say(third, "And I?")
        refusal = answers(third).get_by_role("alert")
        expect(refusal).to_contain_text(re.compile(r"busy.*Try again in \d+ s\."))
        stop(first)
        expect(answers(second)).to_contain_text("la li lo")
        stop(second)
        third.get_by_role("button", name="Answer again").click()
        expect(answers(third)).to_contain_text("la li lo")
        stop(third)


def test_a_key_that_is_no_longer_accepted_is_asked_for_again(
    browser: Browser, start: Start
) -> None:
    server = start(TAMPU_API_KEY="first")
    with watched(browser, server) as page:
        field = page.get_by_role("dialog").get_by_label("API key", exact=True)
        field.fill("first")
        page.keyboard.press("Enter")
        choose(page, "demo")
        with reread(page):  # else it is asked for before the next message is sent
            ask(page, "demo", "What is 27 + 58?")
        again(start, server, TAMPU_API_KEY="second")
        say(page, "What is 10 + 20?")
        expect(page.get_by_role("dialog")).to_contain_text("API key")
        field.fill("second")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)
        answers(page).last.get_by_role("button", name="Answer again").click()
        expect(answers(page).last).to_contain_text("30")


def test_a_view_that_cannot_be_loaded_says_so_until_the_server_is_back(
    browser: Browser, start: Start
) -> None:
    server = start()
    with watched(browser, server) as page:
        ask(page, "demo", "What is 27 + 58?")
        server.end()
        page.get_by_role("link", name="Tokenizer").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Tokenizer")
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("Is the server runn")
        expect(page.get_by_role("button", name="Reload the page")).to_be_visible()
        again(start, server)
        expect(page.get_by_role("textbox", name="Text")).to_be_visible()  # without a click


def test_the_view_from_inside_waits_for_a_key(browser: Browser, start: Start) -> None:
    with watched(browser, start(TAMPU_API_KEY="first"), "/#/inside") as page:
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("needs an API key")
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("dialog").get_by_label("API key", exact=True).fill("first")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        expect(page.get_by_role("main")).to_contain_text("No model is in memory")


def test_what_is_refused_after_the_dialog_was_closed_asks_for_no_key_again(
    browser: Browser, start: Start
) -> None:
    with watched(browser, start(TAMPU_API_KEY="first")) as page:
        expect(page.get_by_role("dialog")).to_be_visible()
        held: list[Route] = []
        page.route("**/api/live", lambda route: held.append(route))
        page.evaluate("() => (location.hash = '#/inside')")
        wait_in(page, lambda: held, "the view asks the server")
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        held[0].continue_()
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("needs an API key")
        expect(page.get_by_role("dialog")).to_have_count(0)
