"""Draws docs/page-chat.png and docs/page-inside.png: `python -m tools.draw_page docs`.

It starts a server that has the built-in model alone, uses its page in Chromium, and takes
screenshots: all numbers in them are real. Needs playwright and Chromium, which `make page-test`
sets up.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "picture.png"
UNPACKED = ROOT / ".venv" / "chromium" / "chromium"
WIDTH, HEIGHT = 1280, 1060
PATIENCE_MS = 60_000
REQUESTS, MAX_TOKENS = 8, 1600
SHOWN_MS = 4_000
SHARED = "A long beginning that all requests share: " + ", ".join(map(str, range(100, 160)))


def main() -> None:
    """Start a server, chat, look inside, and keep the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    executable = shutil.which("chromium") or str(UNPACKED)
    expect.set_options(timeout=PATIENCE_MS)
    with served() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        complete(url, "This loads the model.", 1)
        with opened(browser, url, dark=False) as page:
            chat(page)
            page.screenshot(path=folder / "page-chat.png")
        with opened(browser, f"{url}/#/inside", dark=True) as page:
            look_inside(page, url)
            page.screenshot(path=folder / "page-inside.png")
        browser.close()


@contextmanager
def served() -> Iterator[str]:
    """Run `tampu serve` with folders of its own; the URL of its page."""
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [sys.executable, "-m", "tampu.cli.entry", "serve", "--port", "0"],
            env={"PATH": os.defpath, "HOME": home, "PYTHONPATH": str(ROOT)}
            | {"TAMPU_NUM_PARALLEL": str(REQUESTS)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            lines = process.stdout or ()
            yield next(found[1] for line in lines if (found := re.search(r"Page: (\S+)/", line)))
        finally:
            process.terminate()
            process.communicate()


@contextmanager
def opened(browser: Browser, url: str, *, dark: bool) -> Iterator[Page]:
    """A new window on an address."""
    viewport = {"width": WIDTH, "height": HEIGHT}
    scheme = "dark" if dark else "light"
    with browser.new_context(viewport=viewport, color_scheme=scheme) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        yield page


def chat(page: Page) -> None:
    """Ask about an image, for JSON, and for a sum; show the counts of the last answer."""
    page.locator("form input[type=file]").set_input_files(PICTURE)
    ask(page, "What color is the shape?", 1)
    ask(page, "Extract name, age and city as JSON: Ann, who is 31, lives in Lima.", 2)
    ask(page, "What is 27 + 58?", 3)
    page.get_by_role("button", name="Statistics").last.click()
    expect(page.get_by_role("dialog", name="Statistics")).to_be_visible()
    page.mouse.move(0, HEIGHT)


def ask(page: Page, text: str, count: int) -> None:
    """Send a message, and wait for the end of its answer, the `count`th."""
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Statistics")).to_have_count(count)


def look_inside(page: Page, url: str) -> None:
    """Run requests that begin alike, and pause the view after some seconds of them."""
    ended = threading.Event()
    threads = [threading.Thread(target=keep_asking, args=(url, n, ended)) for n in range(REQUESTS)]
    for thread in threads:
        thread.start()
    try:
        expect(page.get_by_role("main")).to_contain_text(f"{REQUESTS} / {REQUESTS}")
        page.wait_for_timeout(SHOWN_MS)
        page.get_by_role("button", name="Pause").click()
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def keep_asking(url: str, number: int, ended: threading.Event) -> None:
    """Ask for long answers, one after the other."""
    turn = 0
    while not ended.is_set():
        complete(url, f"{SHARED} {number} {turn}", MAX_TOKENS)
        turn += 1


def complete(url: str, prompt: str, max_tokens: int) -> None:
    """Have the built-in model write that many tokens."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    request = urllib.request.Request(f"{url}/v1/completions", msgspec.json.encode(body))
    urllib.request.urlopen(request).read()


if __name__ == "__main__":
    main()
