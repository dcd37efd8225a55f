"""The engine seen live: batches, the cache and the tree, and the trace that is saved."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.scripted import write_scripted
from support.serving import Server, start_server
from support.waiting import PATIENCE_S

from tests.page.conftest import PLAIN, violations, watched
from tests.page.looks import OVERFLOW

SECRET = "xylophone"
CONTEXT = 32_768
RECORDED = Path(__file__).parent / "pictures" / "live.jsonl"
OPTIONS = {"num_ctx": CONTEXT, "num_predict": CONTEXT - 1000, "repeat_last_n": 0}
BEGINNING = f"{SECRET} " * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose answers last as long as a test."""
    home, models = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("models")
    pieces = [" la", " li", " lo"]
    write_scripted(models / "long.gguf", pieces, repeats=3, template=PLAIN, context=CONTEXT)
    settings = {"TAMPU_NUM_PARALLEL": "8", "TAMPU_MAX_CAPTURE_SIZE": "16MB"}
    server = start_server(models, home, TAMPU_THREADS="1", **settings)
    yield server
    server.end()


def chat(server: Server, number: int, ended: threading.Event) -> None:
    """Read an answer until it is enough; ask again if it has ended before."""
    url = f"{server.url}/api/chat"
    body: dict[str, Any] = {"model": "long", "messages": [], "options": OPTIONS}
    body["messages"] = [{"role": "user", "content": f"{BEGINNING}{number}"}]
    while not ended.is_set():
        with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as answer:
            for _ in answer.iter_lines():
                if ended.is_set():
                    return


@contextmanager
def requests(server: Server, count: int = 8) -> Iterator[None]:
    """Run requests with one beginning; eight have slots."""
    ended = threading.Event()
    threads = [threading.Thread(target=chat, args=(server, n, ended)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def busy(server: Server) -> Iterator[None]:
    with requests(server):
        yield


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with watched(browser, server, "/#/inside") as page:
        yield page


@pytest.mark.usefixtures("busy")
def test_eight_requests_that_share_a_beginning_are_seen_as_such(page: Page) -> None:
    tree = page.get_by_role("figure").filter(has=page.get_by_role("heading", name="Prefix tree"))
    expect(tree).to_contain_text(re.compile(r"8 requests share their first \d+ tokens"))
    expect(tree.locator(".shared-box").first).to_contain_text("×8")
    expect(tree).to_contain_text("A number counts tokens.")
    expect(tree).to_contain_text(re.compile(r"Prefix tree(now|[\d.]+ s ago)"))
    expect(tree.locator(".request-box").nth(7)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Batches.* 8 requests"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"in use"))).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("8 / 8")
    for fact in ("answer tokens/s", "requests/batch", "Python's share", "graphs reused"):
        expect(page.get_by_role("main").locator(".facts")).to_contain_text(fact)
    for title, text in {
        "Tokens per second": r"up to [\d,]+ tokens/s.*Now [\d,]+ prompt and [\d,]+ answer",
        "Time to first token": r"[\d,]+ measured; half under [\d.]+ m?s",
        "Time between tokens": r"[\d,]+ measured; half under [\d.]+ m?s",
        "Memory": r"server.* MB.*long:latest.* MB",
    }.items():
        figure = page.get_by_role("figure").filter(has=page.get_by_role("heading", name=title))
        expect(figure).to_contain_text(re.compile(text, re.DOTALL))
    page.get_by_role("combobox", name="Colour").select_option("By age")
    expect(page.get_by_text("freed just now")).to_be_visible()
    assert SECRET not in page.content()
    tree.get_by_text("As a table").click()
    expect(tree.get_by_role("table")).to_contain_text("8")


def test_requests_that_wait_for_a_slot_are_seen_to_wait(server: Server, page: Page) -> None:
    with requests(server, 10):
        timeline = page.get_by_role("img", name=re.compile("Batches"))
        expect(timeline).to_have_accessible_name(re.compile(r"2 requests wait\."))
        expect(page.get_by_role("main")).to_contain_text("8 / 8")
        # A lane for the device, for each of the eight, and for each that waits; then the axis.
        expect(timeline).to_have_css("height", f"{(1 + 8 + 2) * 20 + 20}px")


@pytest.mark.usefixtures("busy")
def test_a_pause_stops_the_view_and_the_trace_is_saved(page: Page) -> None:
    timeline = page.get_by_role("img", name=re.compile("Batches"))
    expect(timeline).to_have_accessible_name(re.compile(" 8 requests"))
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"and [1-9][\d,]* answer"))
    page.get_by_role("button", name="Pause").click()
    before = timeline.get_attribute("aria-label")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    events = json.loads(download.value.path().read_text("utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "M"}
    assert {"batch", "answer"} <= {event["name"] for event in events}
    assert_lanes_are_whole(events)
    assert SECRET not in json.dumps(events)
    assert timeline.get_attribute("aria-label") == before
    page.get_by_role("button", name="Zoom in").click()
    expect(timeline).to_have_accessible_name(re.compile("Last 5.0 s"))
    timeline.press("+")
    expect(timeline).to_have_accessible_name(re.compile("Last 2.0 s"))
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_accepted_and_refused_drafts_are_seen_in_the_time_line(page: Page) -> None:
    lines = RECORDED.read_text("utf-8").splitlines()
    frame = json.loads(lines[-1])
    steps = frame["models"][0]["runner"]["steps"]
    for step in steps:
        step["parts"] = [[*part[:4], 4, 3] for part in step["parts"]]
    body = f"data: {json.dumps(frame)}\n\n"
    page.route(
        "**/api/live", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    page.reload()
    guesses = 4 * sum(len(step["parts"]) for step in steps)
    timeline = page.get_by_role("figure").filter(has=page.get_by_role("heading", name="Batches"))
    expect(timeline).to_contain_text(f"{guesses * 3 // 4} of {guesses} drafts accepted.")
    expect(timeline.locator(".legend")).to_contain_text("drafts accepteddrafts refused")


def layers_of(page: Page) -> Locator:
    """The figure of the layers."""
    return page.get_by_role("figure").filter(has=page.get_by_role("heading", name="Layers"))


@pytest.mark.usefixtures("busy")
def test_layers_are_looked_at_once_they_are_asked_for(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    layers = layers_of(page)
    expect(layers).to_contain_text("Nothing of it is computed until you watch.")
    expect(page.get_by_role("main")).to_contain_text("8 / 8")
    assert not any("/api/live/layers" in url for url in asked)
    button = layers.get_by_role("button", name="Watch layers")
    button.focus()
    page.keyboard.press("Enter")
    expect(layers.get_by_role("columnheader")).to_have_text(
        ["Layer", "Norm", "Next token if the model ended here"]
    )
    rows = layers.get_by_role("rowheader")
    expect(rows.first).to_have_text("0")
    last = layers.get_by_role("row").last
    # The model says " la li lo" again and again: its last layer knows what comes next.
    expect(last).to_contain_text(re.compile(r"␣l[aio](9\d|100)\.\d"))
    expect(layers).to_contain_text(re.compile(r"Request \d+, token [\d,]+: ␣l[aio]"))
    expect(layers.locator(".legend")).to_contain_text("the token of the last layer")
    before = layers.locator("figcaption").text_content()
    expect(layers.locator("figcaption")).not_to_have_text(before or "")  # it is live
    layers.get_by_role("button", name="Stop watching").click()
    expect(button).to_be_visible()
    expect(last).to_be_visible()  # what was seen last stays


def test_a_server_that_shows_no_layers_says_how_to_change_that(
    browser: Browser, tmp_path: Path
) -> None:
    server = start_server(tmp_path / "models", tmp_path, TAMPU_THREADS="1")
    try:
        httpx.post(f"{server.url}/api/generate", json={"model": "demo"}, timeout=PATIENCE_S)
        with watched(browser, server, "/#/inside") as page:
            layers_of(page).get_by_role("button", name="Watch layers").click()
            expect(page.get_by_role("alert")).to_contain_text("set TAMPU_MAX_CAPTURE_SIZE")
            expect(layers_of(page).get_by_role("button", name="Watch layers")).to_be_visible()
    finally:
        server.end()


def assert_lanes_are_whole(events: list[dict[str, Any]]) -> None:
    """Each lane has a name, and each of its slices ends before the next one begins."""
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        assert event.keys() >= {"ph", "name", "pid", "tid", "args"}
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    named = [event for event in events if event["name"] == "thread_name"]
    assert {(event["pid"], event["tid"]) for event in named} >= lanes.keys()
    assert min(event["ts"] for lane in lanes.values() for event in lane) == 0
    for lane in lanes.values():
        lane.sort(key=lambda event: event["ts"])
        assert all(event["dur"] >= 0 for event in lane)
        ends = [event["ts"] + event["dur"] for event in lane]
        assert all(end <= event["ts"] for end, event in zip(ends, lane[1:], strict=False))


def test_it_is_one_key_away_and_says_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    server = start_server(tmp_path / "models", tmp_path, TAMPU_THREADS="1")
    try:
        with watched(browser, server) as page:
            page.get_by_role("textbox", name="Message").press("Escape")
            page.keyboard.press("l")
            expect(page.get_by_role("heading", level=1)).to_have_text("Inside")
            expect(page.get_by_role("main")).to_contain_text("No model is in memory")
            server.stop()
            expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    finally:
        server.end()


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("width", [320, 1280, 2560])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_too_wide(
    browser: Browser, server: Server, theme: Any, width: int
) -> None:
    size = {"width": width, "height": 800}
    options: dict[str, Any] = {"bypass_csp": True, "color_scheme": theme, "viewport": size}
    with watched(browser, server, "/#/inside", **options) as page:
        expect(page.get_by_role("img", name=re.compile("Batches.* 8 requests"))).to_be_visible()
        layers_of(page).get_by_role("button", name="Watch layers").click()
        expect(layers_of(page).get_by_role("rowheader").first).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        assert page.evaluate(OVERFLOW) == 0
        assert violations(page) == []
