"""The chat: what a person sees of messages, answers, reasoning, images and branches."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import httpx
from playwright.sync_api import Page, Route, expect
from support.serving import Server
from support.waiting import PATIENCE_S, wait_until

from tests.page.conftest import (
    answers,
    ask,
    choose,
    copy,
    has_ended,
    leave,
    parameter,
    questions,
    say,
    statistics,
    wait_in,
)
from tools.train_demo.pictures import Shape, draw

SUM = "What is 27 + 58?"
# Keeps what is said while an answer is awaited.


def test_a_question_is_answered_with_its_counts(page: Page) -> None:
    answer = ask(page, "demo", SUM)
    expect(answer).to_contain_text("85")
    expect(answer).not_to_contain_text("tokens/s")  # until it is asked for
    counts = statistics(answer)
    expect(counts).to_contain_text(re.compile(r"demo:latest\s*Answer\s*\d+ tokens"))
    expect(counts).to_contain_text(re.compile(r"\d+ tokens/s"))
    expect(counts).to_contain_text(re.compile(r"after [\d.]+ m?s"))
    expect(counts).to_contain_text(re.compile(r"0 of \d+ tokens cached"))
    expect(page.get_by_role("heading", level=1)).to_have_text(SUM)


def test_a_model_that_is_loaded_is_announced_and_timed_apart(page: Page, server: Server) -> None:
    choose(page, "demo")
    body = {"model": "demo", "prompt": "", "keep_alive": 0, "stream": False}
    httpx.post(f"{server.url}/api/generate", json=body, timeout=PATIENCE_S)
    loaded = f"{server.url}/api/ps"
    wait_until(
        lambda: "demo:latest" not in httpx.get(loaded, timeout=PATIENCE_S).text,
        "it is not in memory",
    )
    held: list[Route] = []
    page.route(
        "**/api/chat", lambda route: held.append(route)
    )  # the server does not begin before it is seen
    say(page, SUM)
    expect(answers(page)).to_contain_text("Loading demo:latest…")
    wait_in(page, lambda: held, "the answer is asked for")
    held[0].continue_()
    expect(statistics(answers(page))).to_contain_text(re.compile(r"Loading\s*[\d.]+ m?s"))


def test_the_next_turn_shows_how_much_was_cached(page: Page) -> None:
    ask(page, "demo", "What is 31 + 58?")
    answer = ask(page, "demo", SUM)
    expect(statistics(answer)).to_contain_text(re.compile(r"[1-9]\d* of \d+ tokens cached"))


def test_an_answer_streams_until_it_is_stopped_and_goes_on(page: Page) -> None:
    choose(page, "endless")
    say(page, "Sing.")
    expect(answers(page)).to_contain_text("la li lo la li lo")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")
    expect(statistics(answers(page))).to_contain_text(
        re.compile(r"endless:latest.*[\d,]+ tokens.*[\d,.]+ tokens/s.*after .*of \d+ tokens", re.S)
    )
    leave(page)
    length = len(answers(page).inner_text())
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    wait_until(lambda: len(answers(page).inner_text()) > length + 100, "the answer goes on")
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text("Stopped.")


def test_reasoning_is_folded_and_timed(page: Page) -> None:
    answer = ask(page, "thinker", "Why?")
    expect(answer).to_contain_text("Then I answer.")
    expect(answer.get_by_text("First I reason.")).to_be_hidden()
    answer.get_by_text(re.compile(r"Reasoned for [\d.]+ m?s")).click()
    expect(answer.get_by_text("First I reason.")).to_be_visible()


def test_markdown_is_formatted(page: Page) -> None:
    answer = ask(page, "formatted", "All of it.")
    expect(answer.get_by_role("heading", name="Title")).to_be_visible()
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.get_by_role("cell", name="Lima")).to_be_visible()
    expect(answer.get_by_role("listitem")).to_have_text(["one", "two"])
    link = answer.get_by_role("link", name="the site")
    expect(link).to_have_attribute("href", "https://example.org/")
    expect(link).to_have_attribute("rel", re.compile("noopener"))
    expect(answer.locator("pre .hljs-keyword").first).to_have_text("def")
    expect(answer.locator("math")).to_be_attached()


def test_code_is_copied_as_it_was_written(page: Page) -> None:
    answer = ask(page, "formatted", "All of it.")
    copy(page, answer.get_by_role("button", name="Copy code"))
    page.get_by_role("textbox", name="Message").focus()
    page.keyboard.press("ControlOrMeta+v")
    expect(page.get_by_role("textbox", name="Message")).to_have_value(
        "def add(a, b):\n    return a + b  # sum"
    )


def test_hostile_answers_are_text(page: Page) -> None:
    answer = ask(page, "hostile", "Attack!")
    for source in ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "<svg onload"):
        expect(answer).to_contain_text(source)
    assert answer.locator("script, img, iframe, object, embed, style, svg:not(.icon)").count() == 0
    links = answer.get_by_role("link").evaluate_all("all => all.map(one => one.protocol)")
    assert links == ["https:"]  # of the image, which is not loaded


def test_hostile_messages_and_titles_are_text(page: Page) -> None:
    text = "<img src=x onerror=alert(1)>"
    ask(page, "demo", text)
    expect(questions(page)).to_contain_text(text)
    expect(page.get_by_role("heading", level=1)).to_have_text(text)
    assert page.locator("main img").count() == 0


def red_circle(path: Path) -> Path:
    generator = random.Random(1)
    draw(generator, [Shape("red", "circle", 0)]).save(path)
    return path


def test_an_image_is_attached_shown_and_seen(page: Page, tmp_path: Path) -> None:
    choose(page, "demo")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add images or videos").click()
    chooser.value.set_files(red_circle(tmp_path / "image.png"))
    expect(page.get_by_role("img", name="image.png")).to_be_visible()
    answer = ask(page, "demo", "What is in the picture?")
    expect(answer).to_contain_text("red circle")
    expect(questions(page).get_by_role("img", name="image.png")).to_be_visible()


PUT = """(field, [kind, bytes, name]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], name, {type: "image/png"}));
    const init = {bubbles: true, cancelable: true};
    field.dispatchEvent(kind === "paste"
        ? new ClipboardEvent("paste", {...init, clipboardData: data})
        : new DragEvent("drop", {...init, dataTransfer: data}));
}"""


def test_images_are_pasted_and_dropped(page: Page, tmp_path: Path) -> None:
    content = list(red_circle(tmp_path / "image.png").read_bytes())
    choose(page, "demo")
    field = page.get_by_role("textbox", name="Message")
    attached = page.locator(".composer").get_by_role("img")
    field.evaluate(PUT, ["paste", content, "image.png"])
    expect(attached).to_have_accessible_name("image.png")
    field.evaluate(PUT, ["drop", content, "other.png"])
    expect(attached).to_have_count(2)
    page.get_by_role("navigation").evaluate(PUT, ["drop", content, "third.png"])  # beside it
    expect(attached).to_have_count(3)
    page.get_by_role("button", name="Remove").last.click()
    page.get_by_role("button", name="Remove").first.click()
    expect(attached).to_have_accessible_name("other.png")


def test_images_are_refused_for_models_that_do_not_see(page: Page) -> None:
    choose(page, "formatted")
    expect(page.get_by_role("button", name="Add images or videos")).to_be_hidden()
    page.get_by_role("textbox", name="Message").evaluate(PUT, ["paste", [1], "image.png"])
    expect(page.get_by_role("alert")).to_have_text("formatted:latest cannot see images and videos.")


def test_a_file_that_is_not_an_image_is_refused(page: Page, tmp_path: Path) -> None:
    (tmp_path / "image.svg").write_text("<svg onload=alert(1)></svg>")
    choose(page, "demo")
    page.locator("form input[type=file]").set_input_files(tmp_path / "image.svg")
    expect(page.get_by_role("alert")).to_contain_text("image.svg is not a PNG")


def test_a_damaged_image_is_refused_at_once(page: Page, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 50)
    choose(page, "demo")
    page.locator("form input[type=file]").set_input_files(tmp_path / "image.png")
    expect(page.get_by_role("alert")).to_have_text("image.png is damaged.")
    expect(page.get_by_role("button", name="Remove")).to_have_count(0)


def test_images_of_a_message_are_added_and_removed_while_it_is_edited(
    page: Page, tmp_path: Path
) -> None:
    choose(page, "demo")
    page.locator("form input[type=file]").set_input_files(red_circle(tmp_path / "image.png"))
    expect(page.get_by_role("img", name="image.png")).to_be_visible()
    ask(page, "demo", "What is in the picture?")
    choose(page, "formatted")
    questions(page).hover()
    questions(page).get_by_role("button", name="Edit").click()
    editor = questions(page).locator("form")
    why = "formatted:latest cannot see images and videos."
    expect(editor.get_by_role("alert")).to_have_text(why)
    expect(editor.get_by_role("button", name="Send")).to_be_disabled()
    editor.get_by_role("button", name="Remove").click()
    expect(editor.get_by_role("alert")).to_have_count(0)
    editor.get_by_role("button", name="Send").click()
    expect(questions(page)).to_contain_text("2 of 2")
    expect(questions(page).get_by_role("img", name="image.png")).to_have_count(0)
    expect(answers(page).get_by_role("cell", name="Lima")).to_be_visible()
    choose(page, "demo")
    expect(has_ended(answers(page))).to_be_visible()
    questions(page).get_by_role("button", name="Edit").click()
    editor.locator("input[type=file]").set_input_files(tmp_path / "image.png")
    expect(editor.get_by_role("img", name="image.png")).to_be_visible()
    with page.expect_request("**/api/chat") as request:
        editor.get_by_role("button", name="Send").click()
    assert len(json.loads(request.value.post_data or "")["messages"][-1]["images"]) == 1


def test_an_edited_message_is_a_branch_that_one_can_leave(page: Page) -> None:
    ask(page, "demo", SUM)
    questions(page).hover()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit").fill("What is 10 + 20?")
    page.keyboard.press("Enter")
    expect(answers(page)).to_contain_text("30")
    expect(questions(page)).to_contain_text("2 of 2")
    page.get_by_role("button", name="Earlier version").click()
    expect(questions(page)).to_contain_text(SUM)
    expect(answers(page)).to_contain_text("85")
    page.get_by_role("button", name="Later version").click()
    expect(answers(page)).to_contain_text("30")


def test_an_answer_is_given_again_beside_the_first(page: Page) -> None:
    answer = ask(page, "demo", SUM)
    answer.get_by_role("button", name="Answer again").click()
    expect(answers(page)).to_contain_text("2 of 2")
    counts = statistics(answers(page))
    expect(counts).to_contain_text(re.compile(r"[1-9]\d* of \d+ tokens cached"))
    leave(page)
    page.get_by_role("button", name="Earlier version").click()
    expect(answers(page)).to_contain_text("1 of 2")


def test_parameters_and_system_prompt_reach_the_model(page: Page) -> None:
    choose(page, "endless")
    page.get_by_role("button", name="Parameters").click()
    parameter(page, "num_predict").fill("6")
    page.get_by_label("System prompt").fill("Be brief.")
    with page.expect_request("**/api/chat") as request:
        say(page, "Sing.")
    sent = json.loads(request.value.post_data)
    assert sent["options"] == {"num_predict": 6}
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    expect(answers(page)).to_contain_text("Ended at the limit of 6 tokens.")
    expect(statistics(answers(page))).to_contain_text("6 tokens")
    leave(page)
    page.get_by_role("button", name="Continue").click()
    expect(statistics(answers(page))).to_contain_text("6 more tokens")


def test_a_parameter_out_of_range_is_told_and_nothing_is_sent(page: Page) -> None:
    choose(page, "demo")
    page.get_by_role("button", name="Parameters", exact=True).click()
    field = parameter(page, "top_p")
    field.fill("7")
    message = page.get_by_role("textbox", name="Message")
    message.click()
    page.keyboard.type("important")
    expect(message).to_have_value("important")  # the focus stays where one has put it
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description("top_p must be at most 1.")
    expect(page.get_by_role("alert")).to_have_text("top_p must be at most 1.")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    for text, why in [("x", "is not a number"), ("-1", "must be at least 0")]:
        field.fill(text)
        field.blur()
        expect(page.get_by_role("alert")).to_contain_text(why)
    parameter(page, "seed").fill("1.5")
    field.fill("0,5")
    field.blur()
    expect(page.get_by_role("alert")).to_have_text("seed must be a whole number.")
    parameter(page, "seed").fill("")
    with page.expect_request("**/api/chat") as request:
        message.press("Enter")
    assert json.loads(request.value.post_data or "")["options"] == {"top_p": 0.5}


def test_a_message_without_anything_cannot_be_edited_into_being(page: Page) -> None:
    ask(page, "demo", SUM)
    page.keyboard.press("Escape")
    page.keyboard.press("e")
    page.get_by_role("textbox", name="Edit").fill("  ")
    expect(questions(page).get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("textbox", name="Edit").press("Enter")
    expect(page.get_by_role("textbox", name="Edit")).to_be_visible()


def test_a_double_click_on_send_is_one_click(page: Page) -> None:
    choose(page, "endless")
    page.get_by_role("textbox", name="Message").fill("Sing.")
    page.get_by_role("button", name="Send").dblclick()
    expect(answers(page)).to_contain_text("la li lo")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")


def test_how_many_parameters_are_set_is_seen_and_all_can_be_reset(page: Page) -> None:
    page.get_by_role("button", name="Parameters", exact=True).click()
    parameter(page, "num_predict").fill("6")
    page.get_by_text("Output format", exact=True).click()
    page.get_by_label("Format").select_option("regular expression")
    expect(page.get_by_role("button", name="Parameters (2 set)")).to_be_visible()
    page.get_by_role("button", name="Reset all").click()
    expect(page.get_by_role("button", name="Parameters", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Reset all")).to_be_disabled()


def test_what_is_typed_into_a_parameter_stays_when_an_answer_ends(page: Page) -> None:
    page.get_by_role("button", name="Parameters", exact=True).click()
    choose(page, "endless")
    say(page, "Sing.")
    expect(answers(page)).to_contain_text("la li lo")
    parameter(page, "num_predict").focus()
    page.keyboard.type("77")
    page.get_by_role("button", name="Stop").evaluate("(button) => button.click()")
    expect(answers(page)).to_contain_text("Stopped.")
    page.keyboard.type("7")
    expect(parameter(page, "num_predict")).to_have_value("777")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Parameters (1 set)")).to_be_visible()
    expect(parameter(page, "num_predict")).to_have_value("777")


def test_what_did_not_fit_the_context_is_told(page: Page) -> None:
    page.get_by_role("button", name="Parameters", exact=True).click()
    page.get_by_text("Loading", exact=True).click()
    parameter(page, "num_ctx").fill("256")
    answer = ask(page, "formatted", "word " * 600)
    expect(answer).to_contain_text(
        re.compile(
            r"The context is full \(num_ctx\): [\d,]+ tokens from the beginning were left out"
        )
    )


def test_a_stopped_answer_says_what_did_not_fit_and_so_does_the_one_that_goes_on(
    page: Page,
) -> None:
    page.get_by_role("button", name="Parameters", exact=True).click()
    page.get_by_text("Loading", exact=True).click()
    parameter(page, "num_ctx").fill("8192")  # an answer may have ten times as many tokens
    choose(page, "endless")
    say(page, "word " * 3000)
    for goes_on in (False, True):
        before = ""
        if goes_on:
            before = answers(page).locator(".markdown").inner_text()
            page.get_by_role("button", name="Continue").click()
        expect(answers(page)).to_contain_text(before + " la li lo" * 130)
        page.get_by_role("button", name="Stop").click()
        expect(answers(page)).to_contain_text("Stopped.")
        counts = statistics(answers(page))
        expect(counts).to_contain_text("more tokens" if goes_on else "tokens cached")
        leave(page)
        expect(answers(page)).to_contain_text(
            re.compile(r"The context is full \(num_ctx\): [\d,]+ tokens from the beginning")
        )


def test_every_parameter_of_the_table_has_a_field(page: Page, server: Server) -> None:
    page.get_by_role("button", name="Parameters").click()
    table = httpx.get(f"{server.url}/api/parameters", timeout=PATIENCE_S).json()["parameters"]
    for entry in table:
        expect(parameter(page, entry["name"])).to_be_attached()
    expect(parameter(page, "temperature")).to_have_attribute("placeholder", "0.8")


def test_an_error_of_the_server_is_shown_in_its_place(page: Page) -> None:
    choose(page, "demo")
    page.get_by_role("button", name="Parameters").click()
    parameter(page, "stop").fill("x" * 1100)
    say(page, SUM)
    expect(answers(page).get_by_role("alert")).to_contain_text("at most 16 strings")
