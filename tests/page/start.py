"""An empty conversation: its model, what it can be asked, and the menu of models."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from support.serving import Server
from support.waiting import PATIENCE_S

from tests.page.conftest import (
    answers,
    ask,
    choose,
    choose_named,
    chosen,
    has_ended,
    leave,
    questions,
    set_option,
    statistics,
    violations,
    watched,
)
from tests.page.looks import OVERFLOW

WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
LARGE = {"width": 1920, "height": 1080}
# How often something was animated since.
COUNT_ANIMATIONS = """() => {
    const animate = Element.prototype.animate;
    window.animations = 0;
    Element.prototype.animate = function (...given) {
        window.animations += 1;
        return animate.apply(this, given);
    };
}"""
# Where each part of the page is that a person sees beside what is over it.
PLACES = """() => [...document.querySelectorAll("main .head, .turns li, .actions > *, .composer *")]
    .filter((one) => !one.closest("[popover]"))
    .map((one) => one.getBoundingClientRect())
    .map(({ x, y, width, height }) => [x, y, width, height])"""


def start(page: Page) -> Locator:
    return page.locator(".start")


def trial(page: Page, title: str) -> Locator:
    return page.get_by_role("list").get_by_role("button", name=re.compile(f"^{title}"))


def unload(server: Server, model: str) -> None:
    body = {"model": model, "prompt": "", "keep_alive": 0, "stream": False}
    httpx.post(f"{server.url}/api/generate", json=body, timeout=PATIENCE_S)


def test_an_empty_conversation_shows_its_model_and_loads_it(page: Page, server: Server) -> None:
    unload(server, "demo")
    page.reload()
    choose(page, "demo")
    expect(start(page).get_by_role("heading", level=2)).to_have_text("demo:latest")
    expect(start(page)).to_contain_text("1.62M parameters, Q8_0, 1.8 MB, context of 2,048 tokens")
    abilities = start(page).get_by_role("list", name="What it can do").get_by_role("listitem")
    expect(abilities).to_have_text(["chats", "sees images", "calls tools"])
    expect(start(page).get_by_role("status")).to_contain_text("Not in memory")
    start(page).get_by_role("button", name="Load it now").click()
    expect(start(page).get_by_role("status")).to_have_text(re.compile(r"^In memory \(\d+ MB\)$"))


@pytest.mark.parametrize(
    ("title", "answer"),
    [
        ("Add two numbers", r"85"),
        ("Describe a picture", r"red circle"),
        ("Fill in a JSON schema", r'"Maria".*31.*"Lima"'),
    ],
)
def test_what_the_built_in_model_is_offered_it_can_do(page: Page, title: str, answer: str) -> None:
    choose(page, "demo")
    trial(page, title).click()
    expect(has_ended(answers(page))).to_be_visible()
    expect(answers(page)).to_contain_text(re.compile(answer, re.S))
    expect(start(page)).to_have_count(0)


def test_what_is_offered_depends_on_what_a_model_can_do(page: Page) -> None:
    titles = page.locator(".start-trials").get_by_role("button").locator("strong")
    choose(page, "thinker")
    expect(titles).to_have_text(["Call a tool", "Solve a puzzle", "Explain something"])
    choose(page, "formatted")
    expect(titles).to_have_text(["Explain something", "Write a program", "Fill in a JSON schema"])
    choose(page, "thinker")
    with page.expect_request("**/api/chat") as request:
        trial(page, "Call a tool").click()
    sent = json.loads(request.value.post_data or "")
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["get_weather"]
    expect(questions(page)).to_contain_text("What is the weather in Lima?")
    expect(page.get_by_role("button", name="Parameters (1 set)")).to_be_visible()


def bounds(found: Locator) -> tuple[float, float]:
    """Where something begins and ends, from the top."""
    box = found.bounding_box()
    assert box
    return box["y"], box["y"] + box["height"]


@pytest.mark.parametrize("viewport", [WIDE, LARGE, NARROW])
def test_the_field_stands_with_the_start_until_the_first_message(
    browser: Browser, server: Server, viewport: dict[str, int]
) -> None:
    with watched(browser, server, viewport=viewport) as page:
        page.emulate_media(reduced_motion="reduce")
        choose(page, "demo")
        field = page.get_by_role("textbox", name="Message")
        trials = page.locator(".trials")
        above, below = bounds(start(page)), bounds(trials)
        composer = bounds(page.locator(".composer"))
        height = viewport["height"]
        assert above[0] > bounds(page.locator(".head"))[1] + height / 20
        assert 0 <= composer[0] - above[1] < 20
        assert 0 <= below[0] - composer[1] < 32
        assert below[1] < height * 0.9
        field.fill("one\ntwo\nthree\nfour")
        assert bounds(start(page)) == above  # it grows downwards
        assert bounds(page.locator(".composer"))[0] == composer[0]
        assert bounds(trials)[0] > below[0]
        field.fill("What is 27 + 58?")
        page.keyboard.press("Enter")
        expect(has_ended(answers(page))).to_be_visible()
        expect(field).to_be_focused()
        assert height - bounds(page.locator(".composer"))[1] < 20
        page.reload()
        expect(answers(page)).to_contain_text("85")
        assert height - bounds(page.locator(".composer"))[1] < 20


@pytest.mark.parametrize(("motion", "count"), [("no-preference", 1), ("reduce", 0)])
def test_the_field_glides_to_the_end_unless_motion_is_unwanted(
    page: Page, motion: Literal["no-preference", "reduce"], count: int
) -> None:
    page.emulate_media(reduced_motion=motion)
    page.evaluate(COUNT_ANIMATIONS)
    ask(page, "demo", "What is 27 + 58?")
    page.get_by_role("link", name="New chat").click()
    expect(start(page)).to_be_visible()
    page.get_by_role("link", name="What is 27 + 58?").click()  # another one: nothing moves
    expect(answers(page)).to_contain_text("85")
    assert page.evaluate("() => window.animations") == count


def test_models_have_marks_in_the_colours_of_their_families(page: Page) -> None:
    mark = start(page).locator(".model-mark")
    colours: dict[str, str] = {}
    for model, initial in (("demo", "D"), ("thinker", "T"), ("formatted", "F")):
        choose(page, model)
        expect(mark).to_have_attribute("data-initial", initial)
        colours[model] = mark.evaluate("(one) => getComputedStyle(one).backgroundColor")
    assert colours["thinker"] == colours["formatted"] != colours["demo"]
    answer = ask(page, "demo", "What is 27 + 58?")
    expect(answer.locator(".answer-model")).to_have_text("demo:latest")
    expect(answer.locator(".model-mark")).to_have_css("background-color", colours["demo"])


def test_nothing_is_offered_that_could_not_be_sent(page: Page) -> None:
    choose(page, "demo")
    page.get_by_role("button", name="Parameters", exact=True).click()
    page.get_by_text("Output format", exact=True).click()
    page.get_by_label("Format").select_option("JSON schema")
    expect(trial(page, "Add two numbers")).to_be_disabled()


def test_the_menu_of_models_says_what_each_one_is_and_searches_all_of_it(page: Page) -> None:
    ask(page, "demo", "What is 27 + 58?")
    chosen(page).click()
    menu = page.get_by_role("dialog", name="Model: demo:latest")
    demo = menu.get_by_role("option", name=re.compile("demo:latest"))
    expect(demo).to_have_attribute("aria-selected", "true")
    expect(demo).to_contain_text("In memory")
    expect(demo).to_contain_text("1.62M parameters, Q8_0, 1.8 MB, chats, sees images, calls tools")
    search = menu.get_by_role("combobox", name="Search models")
    expect(search).to_be_focused()
    search.fill("reasons F32")
    expect(menu.get_by_role("option")).to_have_count(1)
    expect(menu.get_by_role("option")).to_contain_text("thinker:latest")
    search.fill("no such model")
    expect(menu).to_contain_text("No model has these words.")
    page.keyboard.press("Enter")
    leave(page)
    expect(chosen(page)).to_have_text("demo:latest")
    chosen(page).click()
    menu.get_by_role("link", name="Pull and manage models").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")


def test_with_keys_alone_a_model_is_chosen_and_something_tried(page: Page) -> None:
    expect(start(page).get_by_role("heading", level=2)).to_be_visible()
    page.keyboard.press("Escape")  # leaves the field
    page.keyboard.press("w")
    expect(page.get_by_role("combobox", name="Search models")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.type("demo:latest")
    page.keyboard.press("Enter")
    expect(chosen(page)).to_have_text("demo:latest")
    expect(chosen(page)).to_be_focused()
    for _ in range(8):  # the parameters, perhaps the button that loads, the field, and its buttons
        page.keyboard.press("Tab")
        if trial(page, "Add two numbers").evaluate("(one) => one === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("85")
    has_ended(answers(page)).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Statistics")).to_contain_text("tokens/s")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Statistics")).to_be_hidden()
    expect(has_ended(answers(page))).to_be_focused()


@pytest.mark.parametrize("viewport", [WIDE, NARROW])
def test_what_is_asked_for_moves_nothing(
    browser: Browser, server: Server, viewport: dict[str, int]
) -> None:
    with watched(browser, server, viewport=viewport) as page:
        page.emulate_media(reduced_motion="reduce")
        ask(page, "demo", "What is 27 + 58?")
        before = page.evaluate(PLACES)
        for name in ("Statistics", "Answer options", "Model: demo:latest"):
            page.get_by_role("main").get_by_role("button", name=name).click()
            shown = page.get_by_role("dialog", name=name)
            expect(shown).to_be_visible()
            assert page.evaluate(PLACES) == before
            box = shown.bounding_box()
            assert box
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= viewport["width"]
            assert box["y"] + box["height"] <= viewport["height"]
            leave(page)


def test_the_colours_of_tokens_have_a_legend(page: Page) -> None:
    set_option(page, "Token probabilities")
    answer = ask(page, "demo", "What is 27 + 58?")
    legend = answer.locator(".token-legend")
    expect(legend).to_have_text(re.compile(r"^Probability.*90 % or more.*less$"))
    expect(legend.locator(".step")).to_have_count(6)
    set_option(page, "entropy", "radio")
    expect(legend).to_have_text(re.compile(r"^Entropy in bits.*0\.15 or less.*more$"))


def test_the_options_of_answers_say_that_they_are_set(page: Page) -> None:
    button = page.get_by_role("button", name="Answer options")
    set_option(page, "2", "radio")
    expect(button).to_have_class(re.compile("is-set"))
    set_option(page, "1", "radio")
    expect(button).not_to_have_class(re.compile("is-set"))
    choose(page, "thinker")
    set_option(page, "Reason before answering", to=False)
    expect(button).to_have_class(re.compile("is-set"))
    choose(page, "demo")  # which does not reason
    expect(button).not_to_have_class(re.compile("is-set"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW])
def test_axe_finds_nothing_in_the_start_and_in_what_is_asked_for(
    browser: Browser, server: Server, viewport: dict[str, int], theme: str
) -> None:
    options: dict[str, Any] = {"bypass_csp": True, "viewport": viewport, "color_scheme": theme}
    with watched(browser, server, **options) as page:
        choose(page, "demo")
        assert violations(page) == []
        for name in ("Model: demo:latest", "Answer options"):
            page.get_by_role("main").get_by_role("button", name=name).click()
            expect(page.get_by_role("dialog", name=name)).to_be_visible()
            assert violations(page) == []
            leave(page)
        statistics(ask(page, "demo", "What is 27 + 58?"))
        assert violations(page) == []


def test_a_long_name_is_whole_in_the_menu_and_the_start_is_seen_from_its_top(
    browser: Browser, server: Server
) -> None:
    name = f"hf.co/{'organisation-' * 3}/{'Model-' * 6}GGUF:UD-Q4_K_XL"

    def renamed(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        for model in body["models"]:
            if model["name"] == "demo:latest":
                model["name"] = model["model"] = name
        route.fulfill(response=answer, json=body)

    with watched(browser, server, viewport={"width": 320, "height": 500}) as page:
        page.route("**/api/tags", renamed)
        page.reload()
        choose_named(page, name)
        heading = start(page).get_by_role("heading", level=2)
        expect(heading).to_be_in_viewport()
        assert page.locator(".chat-column").evaluate("(one) => one.scrollTop") == 0
        expect(trial(page, "Fill in a JSON schema")).to_be_attached()
        assert page.evaluate(OVERFLOW) == 0
        chosen(page).click()
        option = page.get_by_role("option").filter(has_text=name).locator(".model-name")
        assert option.evaluate("(one) => one.scrollWidth <= one.clientWidth + 1")
