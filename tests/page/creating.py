"""The view of models: models made from files of this machine, and quantized."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect
from support.scripted import write_scripted
from support.serving import Server

from tests.page.conftest import PLAIN, answers, ask, choose, chosen, say, watched
from tests.page.models import row, server

__all__ = ["server"]  # the fixture

WATCH = """() => {
    window.told = [];
    new MutationObserver(() => {
        for (const one of document.querySelectorAll(".transfer")) window.told.push(one.innerText);
    }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with watched(browser, server, "/#/models") as page:
        expect(page.get_by_text("Create from a file", exact=True)).to_be_visible()
        page.evaluate(WATCH)
        yield page


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_scripted(tmp_path / "Tiny Singer.gguf", [" la", " li", " lo"], template=PLAIN)


def create(page: Page, file: Path, **fields: str) -> Locator:
    """Fill the form in and send it; return what shows the progress."""
    summary = page.get_by_text("Create from a file", exact=True)
    if not page.get_by_label("GGUF files").is_visible():
        summary.click()
    page.get_by_label("GGUF files").set_input_files(file)
    for label, text in fields.items():
        page.get_by_label(label).fill(text)
    page.get_by_role("button", name="Create", exact=True).click()
    return page.get_by_role("region", name="Create")


def told(page: Page) -> str:
    """What was shown of transfers until now."""
    return "\n".join(page.evaluate("() => window.told"))


def test_a_model_is_created_from_a_file_and_answers(page: Page, file: Path) -> None:
    expect(create(page, file)).to_contain_text("Success")
    assert "Reading Tiny Singer.gguf" in told(page)
    assert "Uploading Tiny Singer.gguf" in told(page)
    expect(row(page, "tiny-singer:latest")).to_contain_text("F32")
    page.goto(page.url.partition("#")[0])
    expect(ask(page, "tiny-singer", "Sing.")).to_contain_text("la li lo")


def test_a_file_that_the_server_has_is_not_uploaded_again(page: Page, file: Path) -> None:
    expect(create(page, file)).to_contain_text("Success")
    page.get_by_role("button", name="Dismiss").click()
    uploads: list[Request] = []
    page.on("request", lambda one: uploads.append(one) if _is_upload(one) else None)
    expect(
        create(page, file, **{"Name of the new model": "again", "System prompt": "Be brief."})
    ).to_contain_text("Success")
    assert uploads == []
    row(page, "again:latest").get_by_role("button", name="Details").click()
    row(page, "again:latest").get_by_text("system", exact=True).click()
    expect(row(page, "again:latest")).to_contain_text("Be brief.")


def test_a_file_that_is_no_model_is_refused_and_can_be_tried_again(
    page: Page, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"This is not a model." * 100)
    progress = create(page, damaged)
    expect(progress.get_by_role("alert")).to_contain_text("damaged.gguf")
    expect(progress.get_by_role("button", name="Try again")).to_be_visible()
    progress.get_by_role("button", name="Dismiss").click()
    expect(progress).to_have_count(0)


def test_a_lost_network_is_told_when_a_file_is_uploaded(page: Page, file: Path) -> None:
    page.context.set_offline(True)
    progress = create(page, file)
    expect(progress.get_by_role("alert")).to_contain_text("The server cannot be reached")
    page.context.set_offline(False)
    progress.get_by_role("button", name="Try again").click()
    expect(progress).to_contain_text("Success")


def test_a_model_is_quantized_with_its_progress(page: Page, file: Path) -> None:
    expect(create(page, file)).to_contain_text("Success")
    row(page, "tiny-singer:latest").get_by_role("button", name="Quantize").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Name of the new model")).to_have_value("tiny-singer:q4_k_m")
    dialog.get_by_label("Quantize to").select_option("Q8_0")
    dialog.get_by_role("button", name="Quantize").click()
    expect(page.get_by_role("region", name="Quantize")).to_contain_text("Success")
    expect(row(page, "tiny-singer:q8_0")).to_contain_text("Q8_0")
    expect(row(page, "tiny-singer:q8_0").get_by_role("button", name="Quantize")).to_have_count(
        0
    )  # its errors would add up
    assert re.search(r"Quantizing F32 model to Q8_0, \S+ [KM]?B of \S+ [KM]?B", told(page))


def test_a_new_model_is_chosen_nowhere_by_itself(page: Page, file: Path) -> None:
    def everywhere() -> list[str]:
        found = []
        for view, labels in (
            ("Compare", ("Model A", "Model B")),
            ("Tokenizer", ("Model",)),
            ("New chat", ("Model",)),
        ):
            page.get_by_role("link", name=view).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(view)
            for label in labels:
                expect(chosen(page, label)).to_contain_text(":latest")
                found.append(chosen(page, label).inner_text())
        return found

    before = everywhere()
    assert before == ["demo:latest", "digits:latest", "demo:latest", "demo:latest"]
    page.get_by_role("link", name="Models").click()
    expect(create(page, file)).to_contain_text("Success")
    expect(row(page, "tiny-singer:latest")).to_be_visible()
    assert everywhere() == before
    say(page, "What is 27 + 58?")
    expect(answers(page)).to_contain_text("85")
    page.get_by_role("link", name="Models").click()
    row(page, "tiny-singer:latest").get_by_role("button", name="Chat").click()
    expect(answers(page)).to_have_count(0)  # a conversation of its own
    expect(chosen(page)).to_have_text("tiny-singer:latest")
    page.get_by_role("link", name="What is 27 + 58?").click()
    expect(chosen(page)).to_have_text("demo:latest")


def test_a_bad_name_is_told_before_a_file_is_read_or_sent(page: Page, file: Path) -> None:
    uploads: list[Request] = []
    page.on("request", lambda one: uploads.append(one) if _is_upload(one) else None)
    page.get_by_text("Create from a file", exact=True).click()
    page.get_by_label("GGUF files").set_input_files(file)
    name = page.get_by_label("Name of the new model")
    button = page.get_by_role("button", name="Create", exact=True)
    expect(button).to_be_enabled()
    name.fill("two words")
    expect(name).to_have_accessible_description(re.compile("must not contain spaces"))
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(button).to_be_disabled()
    page.route("**/api/create/check", lambda route: route.abort())  # and if it comes too late
    with page.expect_event("requestfailed", lambda one: one.url.endswith("/api/create/check")):
        name.fill("two  words")
    expect(button).to_be_enabled()
    page.unroute("**/api/create/check")
    button.click()
    told = page.get_by_role("region", name="Create")
    expect(told.get_by_role("alert")).to_contain_text("must not contain spaces")
    assert uploads == []


def test_a_name_that_a_model_has_is_told(page: Page, file: Path) -> None:
    expect(create(page, file)).to_contain_text("Success")
    page.get_by_label("Name of the new model").fill("tiny-singer")
    expect(page.get_by_label("Name of the new model")).to_have_accessible_description(
        "There is a model of this name. It will be replaced."
    )
    page.get_by_label("Name of the new model").fill("demo")
    expect(page.get_by_label("Name of the new model")).to_have_accessible_description(
        re.compile(r"There is a model of this name \(built in\)")
    )
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("region", name="Create")).to_have_count(0)


def delete(page: Page, name: str) -> None:
    """Delete a model as a person does."""
    page.get_by_role("link", name="Models").click()
    row(page, name).get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row(page, name)).to_have_count(0)


def test_a_conversation_whose_model_is_gone_asks_which_one_answers(page: Page, file: Path) -> None:
    expect(create(page, file)).to_contain_text("Success")
    row(page, "tiny-singer:latest").get_by_role("button", name="Chat").click()
    say(page, "Sing.")
    expect(answers(page)).to_contain_text("la li lo")
    delete(page, "tiny-singer:latest")
    page.get_by_role("link", name="Sing.").click()
    why = page.get_by_role("main").get_by_role("alert")
    expect(why).to_contain_text("This server has no model tiny-singer:latest any more.")
    choice = chosen(page)
    expect(choice).to_have_text("Gone: tiny-singer:latest")
    say(page, "What is 27 + 58?")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    expect(answers(page)).to_have_count(1)  # nothing was sent
    page.get_by_role("button", name="Go on with demo:latest").click()
    expect(why).to_have_count(0)
    expect(choice).to_have_text("demo:latest")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.press("Enter")
    expect(answers(page).last).to_contain_text("85")


def test_a_side_whose_model_is_gone_asks_for_another_one(page: Page, file: Path) -> None:
    expect(create(page, file)).to_contain_text("Success")
    page.get_by_role("link", name="Compare").click()
    choose(page, "tiny-singer", "Model B")
    delete(page, "tiny-singer:latest")
    page.get_by_role("link", name="Compare").click()
    page.get_by_role("textbox", name="Message").fill("What is 27 + 58?")
    why = page.get_by_role("main").get_by_role("alert")
    expect(why).to_contain_text("This server has no model tiny-singer:latest any more.")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    choose(page, "demo", "Model B")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("tokens cached")).to_have_count(2)


def replace_loaded_demo(page: Page, file: Path) -> Locator:
    """Create a model of the name of one that is in memory; return its row."""
    demo = row(page, "demo:latest")
    demo.get_by_role("button", name="Load", exact=True).click()
    expect(demo).to_contain_text("In memory: ")
    expect(create(page, file, **{"Name of the new model": "demo"})).to_contain_text("Success")
    return demo


def test_a_new_model_of_a_name_is_not_the_one_in_memory(page: Page, file: Path) -> None:
    demo = replace_loaded_demo(page, file)
    expect(demo).to_contain_text("llama")
    earlier = re.compile(r"An earlier model of this name is in memory \(\d+ MB\)")
    expect(demo).to_contain_text(earlier)
    expect(demo).not_to_contain_text("In memory: ")
    demo.get_by_role("button", name="Details").click()
    expect(demo).to_contain_text("Would take about")
    demo.get_by_role("button", name="Load", exact=True).click()
    expect(demo).to_contain_text("In memory: ")
    expect(demo).not_to_contain_text(earlier)
    demo.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(demo).to_contain_text("built in")
    expect(demo).to_contain_text("gemma3.block_count")  # the details are its own, too
    expect(demo).not_to_contain_text("In memory: ")


def test_a_model_that_a_new_one_replaces_can_be_unloaded(page: Page, file: Path) -> None:
    demo = replace_loaded_demo(page, file)
    expect(demo).to_contain_text("An earlier model of this name")
    demo.get_by_role("button", name="Unload").click()
    expect(demo).not_to_contain_text("An earlier model of this name")
    expect(page.get_by_text("of memory taken")).to_have_count(0)


def _is_upload(request: Request) -> bool:
    return "/api/blobs/" in request.url and request.method == "POST"
