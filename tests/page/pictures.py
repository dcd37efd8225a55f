"""Views beside kept pictures of them: light and dark, wide and narrow.

Pictures are an eighth as wide and high as the screen, so that the smoothing of fonts, which differs
between machines, matters little. Texts are in the font that the set-up brings, since the page takes
the system's; what differs from run to run (times, counts) is hidden. A picture passes if at most
`MOST` of its pixels differ by more than `NEAR` of 255 in a colour. The view from inside shows a
recorded answer of `/api/live`: eight requests with one beginning, in ten frames.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect
from support.serving import Server
from support.waiting import PATIENCE_S

from tests.page.conftest import ask, choose, parameter, watched

KEPT = Path(__file__).parent / "pictures"
RECORDED = KEPT / "live.jsonl"
SCALE = 8
NEAR = 24
MOST = 0.08
SIZES = {"wide": (1280, 800), "narrow": (392, 784)}
STYLE = """
.statistics, .start-memory, .badge, .head .hint { visibility: hidden !important; }
:root { --mono: "DejaVu Sans Mono"; --sans: "DejaVu Sans"; }
"""


def chat(page: Page) -> None:
    ask(page, "formatted", "All of it.")
    expect(page.locator(".katex").first).to_be_visible()


def start(page: Page) -> None:
    choose(page, "demo")
    page.get_by_role("textbox", name="Message").focus()


def parameters(page: Page) -> None:
    page.get_by_role("button", name="Parameters").click()
    expect(parameter(page, "temperature")).to_be_visible()


def models(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/models")
    page.get_by_text("Create from a file", exact=True).click()
    expect(page.get_by_role("list", name="Models").get_by_role("listitem").last).to_be_attached()


def compare(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/compare")
    choose(page, "demo", "Model A")
    choose(page, "formatted", "Model B")
    page.get_by_role("textbox", name="Message").fill("What is 27 + 58?")
    page.get_by_role("textbox", name="Message").press("Enter")
    expect(page.get_by_text("tokens cached")).to_have_count(2)
    expect(page.locator(".katex").first).to_be_visible()


def tokenizer(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/tokens")
    choose(page, "demo")
    page.get_by_role("textbox", name="Text").fill("A text")
    expect(page.get_by_role("status")).to_have_text(re.compile(r"[1-9] tokens, 6 characters"))


def inside(page: Page) -> None:
    frames = "".join(f"data: {line}\n\n" for line in RECORDED.read_text("utf-8").splitlines())
    sent = iter([frames])

    def answer(route: Route) -> None:
        if body := next(sent, None):  # it is asked for again when the answer has ended
            route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/api/live", answer)
    page.goto(f"{page.url.partition('#')[0]}#/inside")
    expect(page.get_by_role("img", name=re.compile("Batches.* 8 requests"))).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("8 / 8")


def settings(page: Page) -> None:
    _open(page, "Settings")


def shortcuts(page: Page) -> None:
    _open(page, "Keyboard")


def _open(page: Page, name: str) -> None:
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    if not page.get_by_role("button", name=name).is_visible():
        page.get_by_role("button", name="Show conversations").click()
    page.get_by_role("button", name=name).click()
    expect(page.get_by_role("dialog")).to_be_visible()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "view", [start, chat, parameters, models, compare, tokenizer, inside, settings, shortcuts]
)
def test_a_view_looks_as_it_was_kept(
    browser: Browser, server: Server, tmp_path: Path, view: Callable[[Page], None], theme: Any,
    size: str
) -> None:  # fmt: skip
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    options: dict[str, Any] = {"color_scheme": theme, "viewport": viewport, "bypass_csp": True}
    with watched(browser, server, **options) as page:
        page.emulate_media(reduced_motion="reduce")
        view(page)
        page.add_style_tag(content=STYLE)
        shot = page.screenshot(animations="disabled")
    small = Image.open(io.BytesIO(shot)).convert("RGB")
    small = small.resize((width // SCALE, height // SCALE), Image.Resampling.BOX)
    name = f"{view.__name__}-{theme}-{size}.png"
    small.save(tmp_path / name)
    kept = KEPT / name
    assert kept.exists(), f"look at {tmp_path / name}, and keep it as {kept}"
    with Image.open(kept) as before:
        far = difference(small, before.convert("RGB"))
    assert far <= MOST, f"{far:.1%} differ: see {tmp_path / name}; keep it if it is right"


def test_the_recorded_answer_has_the_fields_of_the_server(server: Server) -> None:
    body = {"model": "formatted", "prompt": "Hi"}
    httpx.post(f"{server.url}/api/generate", json=body, timeout=PATIENCE_S)
    recorded = json.loads(RECORDED.read_text("utf-8").splitlines()[-1])
    frame = httpx.get(f"{server.url}/api/live", timeout=PATIENCE_S).json()
    [model], now = recorded["models"], frame["models"][0]
    assert recorded.keys() == frame.keys()
    assert model.keys() == now.keys()
    assert model["runner"].keys() == now["runner"].keys()


def difference(one: Image.Image, other: Image.Image) -> float:
    """Return the share of pixels that are not near each other."""
    assert one.size == other.size
    first, second = (np.asarray(image, dtype=np.int16) for image in (one, other))
    return float((np.abs(first - second).max(axis=-1) > NEAR).mean())


@pytest.mark.parametrize(("height", "far"), [(0, 0.0), (5, 0.05)])
def test_a_part_that_is_missing_is_a_difference(height: int, far: float) -> None:
    blank = Image.new("RGB", (100, 100), "white")
    other = blank.copy()
    other.paste("black", (0, 0, 100, height))
    assert difference(blank, other) == pytest.approx(far)
