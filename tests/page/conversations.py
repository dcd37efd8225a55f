"""The list of conversations: kept, found, renamed, deleted, exported and imported."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect
from support.waiting import wait_until

from tests.page.conftest import (
    FORMATTED,
    answers,
    ask,
    choose,
    chosen,
    has_ended,
    questions,
    say,
)

SUM = "What is 27 + 58?"


KEPT = """() => new Promise((resolve) => {
    const opening = indexedDB.open("tampu");
    opening.onsuccess = () => {
        const store = opening.result.transaction("conversations").objectStore("conversations");
        const reading = store.getAll();
        reading.onsuccess = () => {
            opening.result.close();
            resolve(JSON.stringify(reading.result));
        };
    };
})"""

LONG = 2000
FRAMES = 300
# Scrolls up by 40 pixels each frame. Returns the times of frames in ms, how far the turn in the
# middle moved beside that, how often nothing was there, and how many turns one frame brought.
SCROLL = """async (count) => {
    const place = document.querySelector(".turns"), times = [], strays = [];
    const next = () => new Promise((resolve) => requestAnimationFrame(resolve));
    const { left, top, width, height } = place.getBoundingClientRect();
    const inSight = () => document.elementsFromPoint(left + width / 2, top + height / 2)
        .find((one) => one.matches("li.turn"));
    const start = place.scrollTop;
    let brought = 0, most = 0, blank = 0;
    const observer = new MutationObserver((changes) => {
        for (const change of changes) {
            for (const node of change.addedNodes) brought += node.matches?.("li.turn") ? 1 : 0;
        }
    });
    observer.observe(place.querySelector("ol"), { childList: true });
    let last = await next();
    for (let frame = 0; frame < count; frame++) {
        const turn = inSight(), before = turn?.getBoundingClientRect().top;
        brought = 0;
        place.scrollTop -= 40;
        const now = await next();
        times.push(now - last);
        last = now;
        await next();
        last = await next();
        most = Math.max(most, brought);
        if (turn) strays.push(Math.abs(turn.getBoundingClientRect().top - before - 40));
        else blank++;
    }
    const inOrder = [...times].sort((a, b) => a - b);
    const at = (share) => inOrder[Math.floor(share * (inOrder.length - 1))];
    return { frames: times.length, median_ms: at(0.5), p95_ms: at(0.95), longest_ms: at(1),
        late: times.filter((ms) => ms > 25).length,
        screens: Math.abs(start - place.scrollTop) / place.clientHeight,
        blank, most, stray: Math.max(...strays) };
}"""


def expect_entries(page: Page, *titles: str) -> None:
    """The list of conversations has these titles."""
    found = page.get_by_role("navigation", name="Conversations").get_by_role("listitem")
    expect(found).to_have_text([*titles])


def test_conversations_of_one_title_are_told_apart_by_their_times(page: Page) -> None:
    entries = page.get_by_role("navigation", name="Conversations").get_by_role("listitem")
    ask(page, "demo", SUM)
    expect(entries.locator("time")).to_have_count(0)
    page.get_by_role("link", name="New chat").click()
    ask(page, "demo", SUM)
    expect(entries.locator("time")).to_have_text([re.compile(r"^\d\d:\d\d:\d\d$")] * 2)


def test_conversations_are_there_after_a_reload(page: Page) -> None:
    ask(page, "demo", SUM)
    page.get_by_role("link", name="New chat").click()
    ask(page, "demo", "Hello")
    page.reload()
    expect(answers(page)).to_have_count(1)
    expect_entries(page, "Hello", SUM)
    page.get_by_role("link", name=SUM).click()
    expect(answers(page)).to_contain_text("85")


def test_an_answer_that_a_reload_interrupts_is_kept_and_can_go_on(page: Page) -> None:
    choose(page, "endless")
    say(page, "Sing.")
    expect(answers(page)).to_contain_text("la li lo " * 20)
    wait_until(lambda: "la li lo" in page.evaluate(KEPT), "the answer is in the database")
    page.reload()
    expect(answers(page)).to_contain_text("Interrupted")
    expect(answers(page)).to_contain_text("la li lo")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")


def test_conversations_are_found_by_their_words(page: Page) -> None:
    ask(page, "demo", SUM)
    page.get_by_role("link", name="New chat").click()
    ask(page, "demo", "Hello")
    page.get_by_role("searchbox").fill("27 85")
    expect(page.get_by_role("link", name="Hello")).to_be_hidden()
    expect_entries(page, SUM)
    page.get_by_role("searchbox").fill("nothing")
    expect(page.get_by_text("No conversation has these words.")).to_be_visible()


def menu(page: Page, action: str) -> None:
    page.get_by_role("main").get_by_label("Conversation menu").click()
    page.get_by_role("button", name=action).click()


def test_a_conversation_is_renamed(page: Page) -> None:
    ask(page, "demo", SUM)
    menu(page, "Rename")
    page.get_by_label("Title").fill(" ")
    expect(page.get_by_role("dialog").get_by_role("button", name="Save")).to_be_disabled()
    page.get_by_label("Title").fill("Sums")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sums")
    expect_entries(page, "Sums")


def test_a_conversation_is_deleted_after_a_question(page: Page) -> None:
    ask(page, "demo", SUM)
    menu(page, "Delete")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Delete the conversation “{SUM}”?")
    dialog.get_by_role("button", name="Cancel").click()
    expect_entries(page, SUM)
    menu(page, "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(answers(page)).to_have_count(0)
    page.reload()
    expect(page.get_by_text("Your conversations are kept in this browser")).to_be_visible()


def test_json_brings_a_conversation_back_with_its_branches(page: Page, tmp_path: Path) -> None:
    ask(page, "demo", SUM).get_by_role("button", name="Answer again").click()
    expect(answers(page)).to_contain_text("2 of 2")
    expect(has_ended(answers(page))).to_be_visible()
    with page.expect_download() as download:
        menu(page, "Export as JSON")
    file = tmp_path / download.value.suggested_filename
    assert file.name == "What is 27 58.json"
    download.value.save_as(file)
    menu(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(answers(page)).to_have_count(0)
    page.locator("nav input[type=file]").set_input_files(file)
    page.get_by_role("link", name=SUM).click()
    expect(answers(page)).to_contain_text("2 of 2")


def test_markdown_is_what_is_shown_and_can_be_read_again(page: Page, tmp_path: Path) -> None:
    ask(page, "formatted", "All of it.")
    with page.expect_download() as download:
        menu(page, "Export as Markdown")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    text = file.read_text("utf-8")
    assert text.startswith(
        "# All of it.\n\n<!-- user -->\n\nAll of it.\n\n<!-- assistant -->\n\n# Title"
    )
    file.write_text(text.replace("# All of it.", "# Read again", 1), "utf-8")
    page.locator("nav input[type=file]").set_input_files(file)
    page.get_by_role("link", name="Read again").click()
    expect(answers(page).get_by_role("cell", name="Lima")).to_be_visible()


def test_what_is_imported_is_counted_and_each_file_that_cannot_be_is_named(
    page: Page, tmp_path: Path
) -> None:
    ask(page, "demo", SUM)
    files = [tmp_path / name for name in ("good.json", "bad.md", "bad.json")]
    with page.expect_download() as download:
        menu(page, "Export as JSON")
    download.value.save_as(files[0])
    files[1].write_text("no conversation", "utf-8")
    files[2].write_text("{", "utf-8")
    page.locator("nav input[type=file]").set_input_files(files)
    conversations = page.get_by_role("navigation", name="Conversations")
    expect(conversations.get_by_role("status")).to_have_text("1 conversation was here already.")
    menu(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.locator("nav input[type=file]").set_input_files(files)
    expect(conversations.get_by_role("status")).to_have_text("1 conversation is imported.")
    expect(conversations.get_by_role("alert")).to_have_text(
        ["bad.md: the file has no conversations of tampu", "bad.json: the file is not JSON"]
    )
    page.get_by_role("link", name=SUM).first.click()
    expect(conversations.get_by_role("alert")).to_have_count(0)


def test_a_new_chat_has_the_model_of_the_open_one_and_no_other_settings(page: Page) -> None:
    choose(page, "demo")
    page.get_by_role("button", name="Parameters", exact=True).click()
    page.get_by_role("textbox", name="System prompt").fill("You are a pirate.")
    ask(page, "demo", SUM)
    page.get_by_role("link", name="New chat").click()
    expect(chosen(page)).to_have_text("demo:latest")
    expect(page.get_by_role("textbox", name="System prompt")).to_have_value("")
    page.get_by_role("link", name=SUM).click()
    expect(page.get_by_role("textbox", name="System prompt")).to_have_value("You are a pirate.")


def test_what_is_written_is_there_after_a_look_elsewhere_and_a_reload(page: Page) -> None:
    ask(page, "demo", SUM)
    message = page.get_by_role("textbox", name="Message")
    message.fill("Half of a mess")
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name=SUM).click()
    expect(message).to_have_value("Half of a mess")
    page.reload()
    expect(message).to_have_value("Half of a mess")
    page.get_by_role("link", name="New chat").click()
    expect(message).to_have_value("")
    page.get_by_role("link", name=SUM).click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    message.press("Enter")
    expect(questions(page).last).to_contain_text("Half of a mess")
    expect(message).to_have_value("")
    page.reload()
    expect(questions(page).last).to_contain_text("Half of a mess")
    expect(message).to_have_value("")


def test_two_tabs_show_the_same_conversations(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.get_by_role("textbox", name="Message")).to_be_visible()
    ask(page, "demo", SUM)
    other.get_by_role("link", name=SUM).click()
    expect(answers(other)).to_contain_text("85")
    ask(other, "demo", "What is 10 + 20?")
    expect(answers(page).last).to_contain_text("30")
    menu(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(answers(other)).to_have_count(0)


def test_a_tab_shows_what_another_one_streams_until_that_is_closed(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    choose(other, "endless")
    say(other, "Sing.")
    expect(answers(other)).to_contain_text("la li lo")
    page.get_by_role("link", name="Sing.").click()
    expect(answers(page)).to_contain_text("la li lo la li lo")
    third = page.context.new_page()
    third.goto(page.url)  # and one that is opened meanwhile
    third.get_by_role("link", name="Sing.").click()
    expect(third.get_by_role("button", name="Stop")).to_be_visible()
    third.close()
    other.close()
    expect(answers(page)).to_contain_text("Interrupted")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")


def test_a_tab_stops_what_another_one_streams(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    choose(other, "endless")
    say(other, "Sing.")
    page.get_by_role("link", name="Sing.").click()
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")
    expect(answers(other)).to_contain_text("Stopped.")


def test_a_file_of_another_kind_is_refused(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"format": "something"}))
    page.locator("nav input[type=file]").set_input_files(file)
    expect(page.get_by_role("alert")).to_contain_text(re.compile("other.json: .*no conversations"))


def test_of_thousands_of_messages_those_near_the_last_one_are_in_the_document(
    page: Page, tmp_path: Path
) -> None:
    show_long(page, tmp_path / "long.json")
    expect(answers(page).last).to_be_in_viewport()
    expect(answers(page).last).to_have_attribute("aria-posinset", str(LONG))
    assert len(answers(page).all()) < LONG / 20
    assert page.evaluate("() => document.querySelectorAll('*').length") < LONG
    page.locator(".turns").evaluate("(place) => place.scrollTo({ top: 0 })")
    expect(questions(page).first).to_be_in_viewport()
    expect(questions(page).first).to_contain_text("Question 0")
    expect(answers(page).last).to_have_attribute("aria-posinset", str(LONG))  # it is kept
    page.locator(".turns").evaluate("(place) => place.scrollTo({ top: place.scrollHeight / 2 })")
    expect(questions(page).first).not_to_contain_text("Question 0")
    assert len(answers(page).all()) < LONG / 20


def test_a_message_that_is_sent_is_in_sight(page: Page, tmp_path: Path) -> None:
    show_long(page, tmp_path / "long.json")
    expect(answers(page).last).to_be_in_viewport()
    page.locator(".turns").evaluate("(place) => place.scrollTo({ top: place.scrollHeight / 2 })")
    expect(answers(page).last).not_to_be_in_viewport()
    choose(page, "thinker")
    expect(answers(page).last).not_to_be_in_viewport()
    say(page, "Why?")
    expect(questions(page).last).to_contain_text("Why?")
    expect(questions(page).last).to_be_in_viewport()


def test_a_message_that_is_edited_stays_when_it_is_scrolled_away(
    page: Page, tmp_path: Path
) -> None:
    show_long(page, tmp_path / "long.json")
    expect(questions(page).last).to_be_in_viewport()
    questions(page).last.hover()
    questions(page).last.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit").fill("Half of a")
    page.locator(".turns").evaluate("(place) => place.scrollTo({ top: 0 })")
    expect(questions(page).first).to_contain_text("Question 0")
    expect(page.get_by_role("textbox", name="Edit")).not_to_be_in_viewport()
    page.keyboard.type(" question")
    expect(page.get_by_role("textbox", name="Edit")).to_have_value("Half of a question")


def test_a_button_goes_to_the_end_while_that_is_not_in_sight(page: Page) -> None:
    page.set_viewport_size({"width": 800, "height": 500})
    button = page.get_by_role("button", name="To the end")
    ask(page, "formatted", "All of it.")
    expect(button).to_have_count(0)
    page.locator(".turns").evaluate("(place) => place.scrollTo({ top: 0 })")
    expect(has_ended(answers(page))).not_to_be_in_viewport()
    button.click()
    expect(has_ended(answers(page))).to_be_in_viewport()
    expect(button).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_a_long_conversation_is_scrolled_without_gaps_and_jumps(page: Page, tmp_path: Path) -> None:
    show_long(page, tmp_path / "long.json", FORMATTED)
    expect(answers(page).last).to_be_in_viewport()
    page.wait_for_load_state("networkidle")  # what draws code and formulas is loaded
    before = page.evaluate("() => document.querySelector('.turns').scrollHeight")
    told = page.evaluate(SCROLL, FRAMES)
    print(told)  # noqa: T201 - `pytest -s` shows the figures
    assert told["frames"] == FRAMES
    assert told["screens"] > 5
    assert told["blank"] == 0
    assert told["stray"] < 3  # pixels, in every frame
    assert told["most"] <= 3  # turns that one frame draws
    after = page.evaluate("() => document.querySelector('.turns').scrollHeight")
    assert 0.97 < after / before < 1.03


def show_long(page: Page, file: Path, answer: str = "**text**") -> None:
    """Import a conversation of 2,000 messages and open it."""
    turns, parent = {}, ""
    for number in range(LONG):
        is_answer = number % 2 == 1
        turns[f"t{number}"] = {
            "id": f"t{number}", "parent": parent, "role": "assistant" if is_answer else "user",
            "content": f"{number}\n\n{answer}" if is_answer else f"Question {number}",
            "created": number, "state": "done",
        }  # fmt: skip
        parent = f"t{number}"
    chosen = {turn["parent"]: name for name, turn in turns.items()}
    whole = {
        "id": "long", "title": "Long", "created": 1, "updated": 2, "model": "", "system": "",
        "options": {}, "think": True, "turns": turns, "chosen": chosen,
    }  # fmt: skip
    content = {"format": "tampu-conversations", "version": 1, "conversations": [whole]}
    file.write_text(json.dumps(content))
    page.locator("nav input[type=file]").set_input_files(file)
    page.get_by_role("link", name="Long").click()
