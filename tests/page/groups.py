"""The list of conversations by days: with the browser's clock, its time zone and its language."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect
from support.serving import Server

from tests.page.conftest import ask, watched

ZONE = "America/New_York"
NOON = datetime(2026, 11, 28, 17, tzinfo=UTC)
UPDATED = {
    "Past midnight": datetime(2026, 11, 28, 5, 30, tzinfo=UTC),
    "Before midnight": datetime(2026, 11, 28, 4, 30, tzinfo=UTC),
    "Last Sunday": datetime(2026, 11, 22, 17, tzinfo=UTC),
    "Weeks ago": datetime(2026, 11, 5, 17, tzinfo=UTC),
    "In autumn": datetime(2026, 10, 3, 17, tzinfo=UTC),
    "Last year": datetime(2025, 12, 24, 17, tzinfo=UTC),
}


def kept(folder: Path) -> Path:
    """Write a file of conversations that were changed then."""
    conversations = [
        {
            "title": title, "model": "demo:latest", "system": "", "options": {}, "turns": {},
            "chosen": {}, "created": time.timestamp() * 1000, "updated": time.timestamp() * 1000,
        }
        for title, time in UPDATED.items()
    ]  # fmt: skip
    path = folder / "conversations.json"
    file = {"format": "tampu-conversations", "version": 1, "conversations": conversations}
    path.write_text(json.dumps(file), "utf-8")
    return path


def listed(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Conversations")


def groups(page: Page) -> dict[str, list[str]]:
    """The titles of conversations by those of their groups."""
    found: dict[str, list[str]] = {}
    for section in listed(page).locator("section").all():
        title = section.get_by_role("heading").inner_text()
        entries = section.get_by_role("list", name=title).get_by_role("listitem")
        found[title] = entries.all_inner_texts()
    return found


def test_conversations_are_grouped_by_the_days_and_months_of_the_browser(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    with watched(browser, server, timezone_id=ZONE, locale="de-DE") as page:
        page.clock.install(time=NOON)
        page.reload()
        page.locator("nav input[type=file]").set_input_files(kept(tmp_path))
        expect(listed(page).get_by_role("listitem")).to_have_count(len(UPDATED))
        assert groups(page) == {
            "Today": ["Past midnight"],
            "Yesterday": ["Before midnight"],
            "Previous 7 days": ["Last Sunday"],
            "Previous 30 days": ["Weeks ago"],
            "Oktober": ["In autumn"],
            "Dezember 2025": ["Last year"],
        }
        expect(listed(page).get_by_role("heading", name="Oktober")).to_have_attribute(
            "lang", "de-DE"
        )
        page.get_by_role("searchbox").fill("midnight")
        expect(listed(page).get_by_role("listitem")).to_have_count(2)
        assert list(groups(page)) == ["Today", "Yesterday"]


def test_a_new_day_begins_while_the_page_is_open_and_a_message_is_of_today(
    browser: Browser, server: Server
) -> None:
    with watched(browser, server, timezone_id=ZONE) as page:
        page.clock.install(time=datetime(2026, 11, 28, 4, 59, tzinfo=UTC))
        page.reload()
        ask(page, "demo", "What is 27 + 58?")
        assert groups(page) == {"Today": ["What is 27 + 58?"]}
        page.clock.fast_forward("02:00")
        expect(listed(page).get_by_role("heading", name="Yesterday")).to_be_visible()
        assert groups(page) == {"Yesterday": ["What is 27 + 58?"]}
        ask(page, "demo", "What is 10 + 20?")
        expect(listed(page).get_by_role("heading", name="Today")).to_be_visible()
        assert groups(page) == {"Today": ["What is 27 + 58?"]}
