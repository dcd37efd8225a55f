"""The view of models: listed, looked at, loaded, pulled, cancelled and resumed, deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.local_http import Answer, Request
from support.registries import RogueRegistry, described, manifest, ranged
from support.scripted import write_scripted
from support.serving import Server, start_server

from tampu.store.manifests import CONFIG_TYPE
from tests.page.conftest import PATIENCE_MS, PLAIN, chosen, watched

CONFIG = b'{"model_format":"gguf"}'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server whose models the test may change."""
    folder = tmp_path / "models"
    folder.mkdir()
    server = start_server(folder, tmp_path, TAMPU_THREADS="1")
    yield server
    server.end()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with watched(browser, server, "/#/models") as page:
        yield page


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RogueRegistry]:
    pieces = [f" {number}" for number in range(500)]  # so many that the file comes in parts
    weights = write_scripted(tmp_path / "m.gguf", pieces, template=PLAIN).read_bytes()
    assert len(weights) > 2 << 20
    content = manifest([described(weights)], described(CONFIG, CONFIG_TYPE))
    with RogueRegistry(content, (weights, CONFIG)) as registry:
        yield registry


def row(page: Page, name: str) -> Locator:
    models = page.get_by_role("list", name="Models")
    return models.get_by_role("listitem").filter(has=page.get_by_role("heading", name=name))


def pull(page: Page, name: str) -> None:
    page.get_by_label("Model to pull").fill(name)
    page.get_by_role("button", name="Pull", exact=True).click()


def test_a_model_is_listed_with_what_it_can_do(page: Page) -> None:
    demo = row(page, "demo:latest")
    expect(demo).to_contain_text("gemma3")
    expect(demo).to_contain_text(re.compile(r"[\d.]+\sMB"))
    expect(demo).to_contain_text("sees images")


def names(page: Page) -> list[str]:
    """The models that are listed, in their order."""
    return page.get_by_role("list", name="Models").locator(".model-name").all_inner_texts()


def test_models_are_searched_by_what_they_are_and_can_do(page: Page, tmp_path: Path) -> None:
    write_scripted(tmp_path / "models" / "another.gguf", ["a"], template=PLAIN)
    page.reload()
    expect(row(page, "another:latest")).to_be_visible()
    count = len(names(page))
    page.keyboard.press("/")
    search = page.get_by_role("searchbox", name="Search models")
    expect(search).to_be_focused()
    page.keyboard.type("gemma3 images")
    expect(page.locator(".model")).to_have_count(1)
    expect(row(page, "demo:latest")).to_be_visible()
    search.fill("no such model")
    expect(page.locator(".model")).to_have_count(0)
    expect(page.get_by_text("No model has these words.")).to_be_visible()
    search.fill("")
    expect(page.locator(".model")).to_have_count(count)


def test_models_in_memory_are_listed_first_and_none_moves_while_it_is_loaded(
    page: Page, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        write_scripted(tmp_path / "models" / f"{name}.gguf", ["a"], template=PLAIN)
    page.reload()
    expect(row(page, "second:latest")).to_be_visible()
    last = names(page)[-1]
    row(page, last).get_by_role("button", name="Load", exact=True).click()
    expect(row(page, last)).to_contain_text("In memory")
    assert names(page)[-1] == last
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    page.get_by_role("link", name="Models").click()
    expect(row(page, last)).to_be_visible()
    assert names(page)[0] == last
    page.get_by_role("link", name="New chat").click()
    chosen(page).click()
    options = page.get_by_role("dialog").get_by_role("option").locator(".model-name")
    expect(options.first).to_have_text(last)


def test_details_are_those_of_show(page: Page) -> None:
    demo = row(page, "demo:latest")
    demo.get_by_role("button", name="Details").click()
    expect(demo).to_contain_text("native")
    expect(demo).to_contain_text("gemma3.block_count")
    demo.get_by_text("template", exact=True).click()
    expect(demo).to_contain_text("<start_of_turn>")


def test_where_a_model_in_memory_is_stands_in_its_row_with_the_reason(
    page: Page, server: Server
) -> None:
    demo = row(page, "demo:latest")
    body = {"model": "demo", "options": {"num_gpu": 2}}
    assert page.request.post(f"{server.url}/api/generate", data=body).ok
    demo.get_by_text("All is on the CPU: no GPU was found").click()
    share = demo.get_by_role("row").filter(has=page.get_by_role("rowheader", name="CPU.0"))
    expect(share).to_contain_text(re.compile(r"0-\d+.*MB.*token embeddings"))


def test_details_draw_the_layers_and_have_them_as_a_table(page: Page) -> None:
    demo = row(page, "demo:latest")
    demo.get_by_role("button", name="Details").click()
    figure = demo.get_by_role("figure").filter(has=page.get_by_role("heading", name="Layers"))
    expect(figure.get_by_role("img")).to_have_accessible_name(
        re.compile(r"\d+ layers, \d+ tensors, [\d.]+ MB: .*\w+ [\d.]+ MB")
    )
    expect(figure.get_by_role("list")).to_contain_text(re.compile(r"attention .*feed-forward "))
    layers = int(figure.get_by_role("img").get_attribute("aria-label").split()[0])
    expect(figure.locator("svg g")).to_have_count(layers + 1)  # and what is in no layer
    for part in ("embeddings and output", "vision encoder"):
        expect(figure.get_by_role("list")).to_contain_text(re.compile(rf"{part} [\d.]+ [KM]B"))
    figure.get_by_text("As a table").click()
    rows = figure.get_by_role("row")
    expect(rows).to_have_count(layers + 2)  # the head, too
    expect(rows.last).to_contain_text(re.compile(rf"{layers - 1}\s*attention .* MB|KB"))


def test_details_say_what_a_model_would_take_until_it_is_loaded(page: Page) -> None:
    demo = row(page, "demo:latest")
    demo.get_by_role("button", name="Details").click()
    expect(demo).to_contain_text(re.compile(r"Would take about [\d.]+ MB of memory"))
    expect(demo.get_by_role("img", name="CPU.0: weights ")).to_have_accessible_name(
        re.compile(
            r"weights [\d.]+ [KM]B, cache [\d.]+ MB, graphs [\d.]+ MB; [\d.]+ [GM]B available"
        )
    )
    expect(demo).to_contain_text("It fits, with a context of 2,048 tokens in 8 slots.")
    expect(demo).to_contain_text("In memory its process is larger: it has Python and libraries")
    expect(page.get_by_text("all that a model's process had")).to_have_count(0)
    demo.get_by_role("button", name="Load", exact=True).click()
    expect(demo).to_contain_text("In memory")
    expect(demo).not_to_contain_text("Would take")
    expect(page.get_by_text("all that a model's process had")).to_be_visible()


def test_why_a_model_does_not_fit_is_said_until_it_is_dismissed(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    write_scripted(folder / "huge.gguf", [" la"], template=PLAIN, context=1 << 30)
    server = start_server(folder, tmp_path, TAMPU_THREADS="1", TAMPU_CONTEXT_LENGTH=str(1 << 30))
    try:
        with watched(browser, server, "/#/models") as page:
            huge = row(page, "huge:latest")
            huge.get_by_role("button", name="Details").click()
            expect(huge).to_contain_text("It does not fit beside what is in memory now.")
            expect(huge).to_contain_text("Choose a context of at most")
            huge.get_by_role("button", name="Details").click()
            huge.get_by_role("button", name="Load", exact=True).click()
            why = huge.get_by_role("alert")
            expect(why).to_contain_text("huge:latest could not be loaded")
            for part in ("does not fit on CPU", "weights ", "cache ", "graphs about ", "available"):
                expect(why).to_contain_text(part)
            expect(why).to_contain_text("Choose a context of at most")
            why.get_by_role("button", name="Dismiss").click()
            expect(why).to_have_count(0)
    finally:
        server.end()


def test_a_model_is_loaded_and_unloaded_and_tells_its_memory(page: Page) -> None:
    demo = row(page, "demo:latest")
    demo.get_by_role("button", name="Load", exact=True).click()
    expect(demo).to_contain_text(re.compile(r"In memory: \d+ MB"))
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"\d+ MB of memory"))
    demo.get_by_role("button", name="Unload").click()
    expect(demo).not_to_contain_text("In memory")


def test_a_model_that_is_being_loaded_has_no_memory_yet(page: Page, server: Server) -> None:
    demo = row(page, "demo:latest")
    expect(demo).to_be_visible()
    assert page.request.post(f"{server.url}/api/generate", data={"model": "demo"}).ok
    [loaded] = page.request.get(f"{server.url}/api/ps").json()["models"]
    pending = {**loaded, "loading": True, "size": 1_800_000}
    page.route("**/api/ps", lambda route: route.fulfill(json={"models": [pending]}))
    expect(demo).to_contain_text("Loading…")
    expect(demo).not_to_contain_text("In memory")
    expect(page.get_by_text("of memory taken")).to_have_count(0)
    page.unroute("**/api/ps")
    expect(demo).to_contain_text("In memory")


def test_only_a_model_of_the_store_can_be_deleted(page: Page) -> None:
    demo = row(page, "demo:latest")
    expect(demo).to_contain_text("built in")
    expect(demo.get_by_role("button", name="Details")).to_be_visible()
    expect(demo.get_by_role("button", name="Delete")).to_have_count(0)


def test_what_could_not_be_done_stays_in_its_row_until_it_is(page: Page) -> None:
    message = "no room; run `tampu verify-store --repair`, then try again"
    refusal = {"status": 500, "json": {"error": message}}
    page.route("**/api/generate", lambda route: route.fulfill(**refusal))
    demo = row(page, "demo:latest")
    demo.get_by_role("button", name="Load", exact=True).click()
    why = demo.get_by_role("alert")
    expect(why).to_contain_text("demo:latest could not be loaded")
    expect(why.locator("code")).to_have_text("tampu verify-store --repair")
    with page.expect_response("**/api/tags"):  # the lists are read again and again
        pass
    expect(why).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(1)
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("link", name="Models").click()
    expect(why).to_be_visible()
    page.unroute("**/api/generate")
    demo.get_by_role("button", name="Load", exact=True).click()
    expect(demo).to_contain_text("In memory")
    expect(why).to_have_count(0)


def test_one_can_chat_with_a_model_of_the_list(page: Page) -> None:
    row(page, "demo:latest").get_by_role("button", name="Chat").click()
    expect(chosen(page)).to_have_text("demo:latest")
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()


def test_a_model_is_pulled_and_deleted_after_a_question(
    page: Page, registry: RogueRegistry
) -> None:
    name = f"{registry.host}/a/m:latest"
    pull(page, f"http://{registry.host}/a/m")
    expect(page.get_by_role("region", name="Pull")).to_contain_text("Success")
    expect(row(page, name)).to_be_visible()
    row(page, name).get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Delete the model {name}?")
    dialog.get_by_role("button", name="Delete").click()
    expect(row(page, name)).to_have_count(0)


def test_a_pull_shows_its_progress_and_goes_on_after_it_was_cancelled(
    page: Page, registry: RogueRegistry
) -> None:
    def half(request: Request) -> Answer | None:
        blob = registry.blobs.get(request.path.rpartition("/")[2], b"")
        if len(blob) < 100:
            return None
        answer = ranged(request, blob)
        start = request.range[0] if request.range else 0
        answer.stall_after = max(0, len(blob) // 2 - start)  # whichever connection asks
        return answer

    registry.before = half
    pull(page, f"http://{registry.host}/a/m")
    progress = page.get_by_role("region", name="Pull")
    expect(progress.get_by_role("progressbar")).to_be_visible()
    expect(progress).to_contain_text(re.compile(r"[1-9][\d.]* [KM]?B of [\d.]+ [KM]?B"))
    progress.get_by_role("button", name="Cancel").click()
    expect(progress).to_contain_text("Cancelled")
    registry.ended.set()
    page.reload()  # it is known there, too
    expect(progress).to_contain_text("Not finished. Resume goes on where it was.")
    bar = progress.get_by_role("progressbar")
    assert 0 < float(bar.get_attribute("value") or 0) < float(bar.get_attribute("max") or 0)
    expect(progress).to_contain_text(re.compile(r" of [\d.]+ [KM]?B"))
    registry.before = lambda _: None
    registry.requests.clear()
    progress.get_by_role("button", name="Resume").click()
    expect(progress).to_contain_text("Success")
    asked = [request.range for request in registry.requests if request.range]
    assert asked
    assert min(start for start, _ in asked) > 0  # what was there is not pulled again
    expect(row(page, f"{registry.host}/a/m:latest")).to_be_visible()
    page.reload()
    expect(row(page, f"{registry.host}/a/m:latest")).to_be_visible()
    expect(progress).to_have_count(0)


def test_a_pull_that_fails_says_why(page: Page) -> None:
    pull(page, "http://127.0.0.1:1/a/m")
    expect(page.get_by_role("alert")).to_contain_text(
        "Cannot reach 127.0.0.1:1: connection refused", timeout=PATIENCE_MS
    )
    page.get_by_role("button", name="Dismiss").click()
    pull(page, "127.0.0.1:1/a/m")
    expect(page.get_by_role("alert")).to_contain_text("begin the name with http:// to allow it")
    page.get_by_label("Model to pull").fill("http://")
    expect(page.get_by_role("button", name="Pull", exact=True)).to_be_disabled()


def test_a_registry_without_the_model_is_told_in_plain_words(
    page: Page, registry: RogueRegistry
) -> None:
    registry.before = lambda _: Answer(404)
    pull(page, f"http://{registry.host}/a/m")
    expect(page.get_by_role("alert")).to_contain_text("The registry has no model of this name.")


def test_a_lost_server_is_told_once_and_no_longer_when_it_is_back(
    page: Page, server: Server, tmp_path: Path
) -> None:
    demo = row(page, "demo:latest")
    demo.get_by_role("button", name="Load", exact=True).click()
    expect(demo).to_contain_text("In memory")
    server.stop()
    expect(page.get_by_role("alert")).to_have_text("The server cannot be reached. Is it running?")
    expect(demo).not_to_contain_text("In memory")
    demo.get_by_role("button", name="Details").click()
    demo.get_by_role("button", name="Load", exact=True).click()
    expect(demo.get_by_role("button", name="Load", exact=True)).to_be_enabled()
    expect(page.get_by_role("alert")).to_have_count(1)
    port = server.url.rpartition(":")[2]
    other = start_server(tmp_path / "models", tmp_path, "--port", port, TAMPU_THREADS="1")
    try:
        expect(demo).to_contain_text("gemma3.block_count")
        expect(page.get_by_role("alert")).to_have_count(0)
    finally:
        other.end()
