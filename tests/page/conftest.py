"""The page in Debian's Chromium, against servers as users start them."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)
from support.chat_templates import CHATML
from support.scripted import write_scripted
from support.serving import Server, start_server
from support.sounds import babble, wav
from support.waiting import wait_until

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
UNPACKED = Path(__file__).parents[2] / ".venv" / "chromium" / "chromium"
PATIENCE_MS = 60_000
LONG_CONTEXT = 32_768
# Under this name the page is what other machines get: HTTP that is not of this machine.
OTHER_NAME = socket.gethostname()

_EXPECTED = (
    "Failed to load resource",  # what the server refuses is shown, and tested as such
    "The Cross-Origin-Opener-Policy header has been ignored",  # without TLS, except on this machine
)

PLAIN = "{{ messages[-1].content }}z"
HOSTILE = (
    "<script>alert(1)</script>\n\n<img src=x onerror=alert(2)>\n\n"
    "<svg onload=alert(3)><circle/></svg>\n\n[a](javascript:alert(4)) "
    "[b](data:text/html,<script>alert(5)</script>) ![c](https://tracker.example/pixel.png)\n\n"
    "<iframe srcdoc='<script>alert(6)</script>'></iframe> <a href=javascript:alert(7)>d</a>\n"
)
FORMATTED = (
    "# Title\n\nSome **bold** and `code`, see [the site](https://example.org/).\n\n"
    "```python\ndef add(a, b):\n    return a + b  # sum\n```\n\n"
    "| city | people |\n|---|---:|\n| Lima | 10 |\n\n- one\n- two\n\nEuler: $e^{i\\pi} = -1$.\n"
)

T = TypeVar("T")


@dataclass
class Watcher:
    """What a page must not do: errors, dialogs, requests to other hosts."""

    url: str
    faults: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("dialog", lambda dialog: (self._note(dialog.message), dialog.dismiss()))
        page.on("request", self._request)

    def _console(self, said: ConsoleMessage) -> None:
        if said.type == "error" and not said.text.startswith(_EXPECTED):
            self._note(said.text)

    def _note(self, text: str) -> None:
        self.faults.append(text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self._note(f"asked for {request.url}")


def chromium() -> str:
    """Where Chromium is."""
    path = shutil.which("chromium") or (str(UNPACKED) if UNPACKED.exists() else None)
    if path is None:
        pytest.fail("there is no Chromium; on Debian: apt-get install chromium")
    return path


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; its microphone is a file, which it plays again and again."""
    path = chromium()
    microphone = tmp_path_factory.mktemp("microphone") / "speech.wav"
    microphone.write_bytes(wav(babble(5)))
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        rule = f"MAP {OTHER_NAME} 127.0.0.1"
        flags = ["--no-sandbox", "--disable-dev-shm-usage", f"--host-resolver-rules={rule}"]
        flags += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        flags += [f"--use-file-for-fake-audio-capture={microphone}"]
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models that say what they are told to; the built-in one is there too."""
    folder = tmp_path_factory.mktemp("models")
    endless = folder / "endless.gguf"  # an answer ends after ten times the context at the latest
    write_scripted(endless, [" la", " li", " lo"], repeats=3, template=PLAIN, context=LONG_CONTEXT)
    write_scripted(folder / "hostile.gguf", [HOSTILE], template=PLAIN)
    write_scripted(folder / "formatted.gguf", [FORMATTED], template=PLAIN)
    write_scripted(
        folder / "thinker.gguf",
        ["<think>", "First I", " reason.", "</think>", "Then I", " answer."],
        template=CHATML,
    )
    return folder


def linked(models: Path, folder: Path) -> Path:
    """Put links to the models into a folder, to which a test adds its own; return it."""
    for model in models.glob("*.gguf"):
        (folder / model.name).symlink_to(model)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": str(LONG_CONTEXT)}
    server = start_server(models, tmp_path_factory.mktemp("home"), **settings)
    yield server
    server.end()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page of the server."""
    with watched(browser, server) as page:
        yield page


@contextmanager
def watched(browser: Browser, server: Server, path: str = "/", **options: Any) -> Iterator[Page]:
    """The page in a new browser; nothing may have gone wrong in it at the end."""
    permissions = ["clipboard-read", "clipboard-write"]
    with browser.new_context(permissions=permissions, **options) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        watcher = Watcher(server.url)
        watcher.watch(page)
        page.goto(server.url + path)
        yield page
        page.unroute_all(behavior="ignoreErrors")  # what is asked for meanwhile fails with the page
    assert watcher.faults == []


def violations(page: Page) -> list[tuple[str, str, str]]:
    """What axe finds on a page whose policy lets it run: rules, elements and explanations."""
    page.add_script_tag(content=AXE.read_text("utf-8"))
    found = page.evaluate("() => axe.run().then((found) => found.violations)")
    return [
        (one["id"], node["html"], node["failureSummary"]) for one in found for node in one["nodes"]
    ]


def wait_in(page: Page, holds: Callable[[], T], what: str) -> T:
    """Wait for what handlers of events and routes note: they run while the page is asked."""

    def asked() -> T:
        page.evaluate("0")
        return holds()

    return wait_until(asked, what)


# Sets `wasShown` once an element is in the document, however short it is there.
NOTE_SHOWN = """(selector) => {
    window.wasShown = false;
    const note = () => (window.wasShown ||= document.querySelector(selector) !== null);
    const all = { subtree: true, childList: true, attributes: true };
    new MutationObserver(note).observe(document.body, all);
}"""


def copy(page: Page, button: Locator) -> None:
    """Click a button that copies, and wait until it has said so, which it does for a moment."""
    page.evaluate(NOTE_SHOWN, "button[aria-label=Copied]")
    button.click()
    page.wait_for_function("() => window.wasShown")


def chosen(page: Page, label: str = "Model") -> Locator:
    """The button that says which model is chosen, and opens the menu of them."""
    return page.get_by_role("main").get_by_role("button", name=re.compile(f"^{label}: "))


def choose(page: Page, model: str, label: str = "Model") -> None:
    """Choose a model in its menu: to chat with, or for one side of a comparison."""
    choose_named(page, f"{model}:latest", label)


def choose_named(page: Page, name: str, label: str = "Model") -> None:
    """Choose a model of any tag."""
    chosen(page, label).click()
    menu = page.get_by_role("dialog", name=re.compile(f"^{label}: "))
    named = page.locator(".model-name", has_text=re.compile(f"^{re.escape(name)}$"))
    menu.get_by_role("option").filter(has=named).click()
    expect(chosen(page, label)).to_have_text(name)


def set_option(
    page: Page, name: str, role: Literal["checkbox", "radio"] = "checkbox", *, to: bool = True
) -> None:
    """Set one of the options of the next answers, which a button beside the message shows."""
    page.get_by_role("button", name="Answer options").click()
    options = page.get_by_role("dialog", name="Answer options")
    options.get_by_role(role, name=name, exact=True).set_checked(to)
    leave(page)


def leave(page: Page) -> None:
    """Close what a button has shown over the page."""
    page.keyboard.press("Escape")
    expect(page.locator(".popover:popover-open")).to_have_count(0)


def parameter(within: Page | Locator, name: str) -> Locator:
    """The field of a sampling parameter: its label begins with its name."""
    page = within if isinstance(within, Page) else within.page
    named = page.locator("span > code", has_text=re.compile(rf"^{name}$"))
    return within.locator("label", has=named).locator("input, select, textarea")


def say(page: Page, text: str) -> None:
    """Send a message; the answer may still be streamed."""
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def ask(page: Page, model: str, text: str) -> Locator:
    """Send a message to a model, and return its answer when it is whole."""
    choose(page, model)
    count = answers(page).count()
    say(page, text)
    answer = answers(page).nth(count)
    expect(has_ended(answer)).to_be_visible()
    return answer


def has_ended(answers: Page | Locator) -> Locator:
    """What answers have once they are whole: the buttons that show their statistics."""
    return answers.get_by_role("button", name="Statistics")


def statistics(answer: Locator) -> Locator:
    """What was counted of an answer, as its button shows it."""
    shown = answer.get_by_role("dialog", name="Statistics")
    if not shown.is_visible():
        has_ended(answer).click()
    return shown


def answers(page: Page) -> Locator:
    """The answers that are shown."""
    return page.locator("li").filter(has=page.get_by_role("heading", name="Assistant"))


def questions(page: Page) -> Locator:
    """The messages of the user that are shown."""
    return page.locator("li").filter(has=page.get_by_role("heading", name="You", exact=True))
