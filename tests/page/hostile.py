"""Names of models and files that are HTML: what a person sees is the name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect
from support.serving import Server, start_server

from tests.page.conftest import choose, choose_named, watched
from tests.page.models import pull, row

NAME = "<img src=x onerror=alert(1)>"
FILE = "<img src=x onerror=alert(1)>\"'&amp;<svg onload=alert(2)>"
ADDED = "main :is(img, script, iframe, svg[onload])"


def renamed(route: Route) -> None:
    """Let the server say that a model has a hostile name."""
    response = route.fetch()
    body: Any = response.json()
    for model in body["models"]:
        if model["name"] == "demo:latest":
            model["name"] = model["model"] = NAME
            model["details"]["family"] = model["details"]["parameter_size"] = NAME
            model["capabilities"].append(NAME)
            model["origin"] = "store"  # what can be deleted
    route.fulfill(response=response, json=body)


def test_a_hostile_name_of_a_model_is_text_wherever_it_stands(page: Page) -> None:
    page.route("**/api/tags", renamed)
    page.reload()
    choose_named(page, NAME)
    message = page.get_by_role("textbox", name="Message")
    expect(message).to_have_attribute("placeholder", f"Message {NAME}")
    message.fill("Hi")
    page.keyboard.press("Enter")  # the real server knows no such model
    expect(page.get_by_role("alert")).to_contain_text(NAME)
    assert page.locator(ADDED).count() == 0
    page.get_by_role("link", name="Models").click()
    model = row(page, NAME)
    expect(model.get_by_role("heading")).to_have_text(NAME)
    expect(model).to_contain_text(f"{NAME}, {NAME}")
    model.get_by_role("button", name="Details").click()
    expect(model.get_by_role("alert")).to_contain_text(NAME)
    model.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Delete the model {NAME}?")
    assert dialog.locator("img").count() == 0
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name="Compare").click()
    choose_named(page, NAME, "Model A")
    assert page.locator(ADDED).count() == 0


def test_a_hostile_name_that_is_pulled_is_text_in_its_error(page: Page) -> None:
    page.get_by_role("link", name="Models").click()
    pull(page, NAME)
    expect(page.get_by_role("region", name="Pull")).to_contain_text(NAME)
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.locator(ADDED).count() == 0


def file_of(folder: Path, suffix: str) -> Path:
    """Return a file that is not an image, conversation or model."""
    file = folder / f"{FILE}{suffix}"
    file.write_bytes(b"no such thing" * 100)
    return file


def test_hostile_names_of_attached_and_imported_files_are_text(page: Page, tmp_path: Path) -> None:
    choose(page, "demo")
    page.get_by_label("Add images or videos").last.set_input_files(file_of(tmp_path, ".txt"))
    expect(page.get_by_role("alert")).to_contain_text(f"{FILE}.txt is not a PNG")
    page.locator("input[accept='.json,.md']").set_input_files(file_of(tmp_path, ".json"))
    expect(page.get_by_text(f"{FILE}.json: the file is not JSON")).to_be_visible()
    assert page.locator("img, svg[onload]").count() == 0


def test_a_file_with_a_hostile_name_is_refused_by_its_name(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    server: Server = start_server(tmp_path / "models", tmp_path, TAMPU_THREADS="1")
    try:
        with watched(browser, server, "/#/models") as page:
            page.get_by_text("Create from a file", exact=True).click()
            page.get_by_label("GGUF files").set_input_files(file_of(tmp_path, ".gguf"))
            page.get_by_role("button", name="Create", exact=True).click()
            create = page.get_by_role("region", name="Create")
            expect(create.get_by_role("alert")).to_contain_text("gguf")
            assert page.locator(ADDED).count() == 0
    finally:
        server.end()
