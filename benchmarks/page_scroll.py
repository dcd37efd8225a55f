"""Scrolling a long conversation on the page: `python -m benchmarks.page_scroll [--messages 2000]`.

A server of the built-in model is started, and its page opened in headless Chromium, which draws in
software (`make page-test` puts it into the virtual environment). A conversation whose answers have
code, a table and a formula each is imported, and scrolled up by 40 pixels in each frame, then down.
Printed are the times between frames, how many came late, tasks of the page's thread of more than
50 ms, its busy time, and the nodes in the document.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

UNPACKED = Path(sys.prefix) / "chromium" / "chromium"
ANSWER = (
    "# Title\n\nSome **bold** and `code`, see [the site](https://example.org/).\n\n"
    "```python\ndef add(a, b):\n    return a + b  # sum\n```\n\n"
    "| city | people |\n|---|---:|\n| Lima | 10 |\n\n- one\n- two\n\nEuler: $e^{i\\pi} = -1$.\n"
)
SCROLL = """async ([count, step]) => {
    const place = document.querySelector(".turns"), times = [];
    let long = 0;
    const tasks = new PerformanceObserver((list) => { long += list.getEntries().length; });
    tasks.observe({ type: "longtask" });
    const next = () => new Promise((resolve) => requestAnimationFrame(resolve));
    let last = await next();
    const start = place.scrollTop;
    for (let frame = 0; frame < count; frame++) {
        place.scrollTop += step;
        const now = await next();
        times.push(now - last);
        last = now;
    }
    tasks.disconnect();
    times.sort((a, b) => a - b);
    const at = (share) => times[Math.floor(share * (times.length - 1))];
    return { median_ms: at(0.5), p95_ms: at(0.95), longest_ms: at(1),
        late: times.filter((ms) => ms > 25).length, long_tasks: long,
        screens: Math.abs(start - place.scrollTop) / place.clientHeight };
}"""
COUNTED = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration", "Nodes")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a server of the built-in model; yield its address."""
    log = folder / "server.log"
    (folder / "models").mkdir()
    command = [sys.executable, "-m", "tampu.cli.entry", "serve", "--port", "0"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--models", str(folder / "models")],
            stdout=output, stderr=output, env={"PATH": os.defpath, "HOME": str(folder)},
        )  # fmt: skip
        try:
            while not (found := re.search(r"Listening on (http\S+)", log.read_text())):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


def conversation(messages: int) -> dict[str, Any]:
    """Return a conversation as the page exports it."""
    turns, parent = {}, ""
    for number in range(messages):
        is_answer = number % 2 == 1
        turns[f"t{number}"] = {
            "id": f"t{number}", "parent": parent, "role": "assistant" if is_answer else "user",
            "content": f"{number}\n\n{ANSWER}" if is_answer else f"Question {number}",
            "created": number, "state": "done",
        }  # fmt: skip
        parent = f"t{number}"
    chosen = {turn["parent"]: name for name, turn in turns.items()}
    whole = {
        "id": "long", "title": "Long", "created": 1, "updated": 2, "model": "", "system": "",
        "options": {}, "think": True, "turns": turns, "chosen": chosen,
    }  # fmt: skip
    return {"format": "tampu-conversations", "version": 1, "conversations": [whole]}


def counted(session: CDPSession) -> dict[str, float]:
    """Return the seconds and nodes that the browser has counted."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return {one["name"]: one["value"] for one in metrics if one["name"] in COUNTED}


def scrolled(page: Page, session: CDPSession, frames: int, step: int) -> dict[str, Any]:
    """Scroll, and return what was measured."""
    before = counted(session)
    told: dict[str, Any] = page.evaluate(SCROLL, [frames, step])
    after = counted(session)
    seconds = {name: after[name] - before[name] for name in COUNTED if name != "Nodes"}
    return told | seconds | {"Nodes": after["Nodes"]}


def main() -> None:
    """Measure, and print a line for each direction."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    path = shutil.which("chromium") or str(UNPACKED)
    with tempfile.TemporaryDirectory() as name, server(Path(name)) as url:
        file = Path(name) / "long.json"
        file.write_text(json.dumps(conversation(given.messages)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(url)
            page.locator("nav input[type=file]").set_input_files(file)
            page.get_by_role("link", name="Long").click()
            page.locator(".turns li").last.wait_for()
            page.wait_for_load_state("networkidle")  # what draws code and formulas is loaded
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            for _ in range(given.runs):
                for step in (-40, 40):
                    told = scrolled(page, session, given.frames, step)
                    print("up" if step < 0 else "down", json.dumps(told))
            browser.close()


if __name__ == "__main__":
    main()
