"""Lighthouse's categories, for each view: at least 95 of 100."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import Server

from tests.page.conftest import chromium

LIGHTHOUSE = Path(__file__).parents[2] / "web" / "node_modules" / ".bin" / "lighthouse"
CATEGORIES = {"performance", "accessibility", "best-practices", "seo"}
LEAST = 0.95


@pytest.mark.parametrize("view", ["", "#/models", "#/compare", "#/tokens", "#/inside"])
def test_lighthouse_gives_at_least_95_in_each_category(
    server: Server, tmp_path: Path, view: str
) -> None:
    told = tmp_path / "told.json"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    done = subprocess.run(
        [
            LIGHTHOUSE, f"{server.url}/{view}", "--quiet", "--output=json", f"--output-path={told}",
            "--preset=desktop", "--no-enable-error-reporting", "--throttling-method=provided",
            f"--only-categories={','.join(sorted(CATEGORIES))}",
            "--chrome-flags=--headless --no-sandbox --disable-gpu",
        ],
        env={"PATH": path, "HOME": str(tmp_path), "CHROME_PATH": chromium()},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(told.read_text("utf-8"))
    scores = {name: one["score"] for name, one in report["categories"].items()}
    print(view or "chat", scores)  # noqa: T201 - `pytest -s` shows the figures
    bad = [audit["id"] for audit in report["audits"].values() if (audit["score"] or 1) < 1]
    assert set(scores) == CATEGORIES
    assert min(scores.values()) >= LEAST, (scores, bad)
