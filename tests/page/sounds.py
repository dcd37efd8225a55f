"""Sounds in the chat: a file and the microphone, played and sent to a model that hears.

Chromium's microphone is a file of noise that rises and falls as speech does.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from support.checkpoints import make_checkpoint
from support.serving import Server, start_server
from support.sounds import babble, wav

from tampu.audio.wav import decode_wav
from tampu.convert import convert
from tests.page.conftest import (
    answers,
    choose,
    has_ended,
    questions,
    say,
    violations,
    wait_in,
    watched,
)

INPUT = "form input[type=file]"
HEARING = "hears"
RATE = 16_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, checkpoint = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("c") / "c"
    made = make_checkpoint("gemma4_unified_hearing", checkpoint)
    convert(made, folder / f"{HEARING}.gguf", "F32")
    server = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield server
    server.end()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "speech.wav"
    path.write_bytes(wav(babble(2)))
    return path


def sent_of(page: Page) -> bytes:
    """Send a message and return the sound that went with it."""
    with page.expect_request("**/api/chat") as request:
        say(page, "What is said?")
    [sent] = json.loads(request.value.post_data or "")["messages"][-1]["images"]
    expect(has_ended(answers(page))).to_be_visible()
    expect(answers(page).get_by_role("alert")).to_have_count(0)
    return base64.b64decode(sent)


def is_named(place: Locator, name: str, length: str) -> None:
    """A sound has its name and its length, which the player has too."""
    sound = place.get_by_role("figure")
    expect(sound.locator("bdi")).to_have_text(name)
    expect(sound.locator(".sound-length")).to_have_text(length)
    expect(sound.locator("audio")).to_have_accessible_name(name)


def is_played(page: Page, sound: Locator) -> None:
    """Play a sound a little: its time goes on."""
    sound.evaluate("(sound) => sound.play()")
    wait_in(page, lambda: sound.evaluate("(sound) => sound.currentTime") > 0, "it is played")
    sound.evaluate("(sound) => sound.pause()")


def test_a_file_is_sent_and_played(page: Page, file: Path) -> None:
    choose(page, HEARING)
    page.locator(INPUT).set_input_files(file)
    is_played(page, page.locator(".composer audio"))
    assert sent_of(page) == file.read_bytes()
    is_played(page, questions(page).locator("audio"))
    page.reload()  # it is kept in the browser
    expect(questions(page).locator("audio")).to_have_attribute(
        "src",
        "data:audio/wav;name=speech.wav;base64," + base64.b64encode(file.read_bytes()).decode(),
    )
    is_named(questions(page), "speech.wav", "0:02")


def test_a_model_that_hears_is_offered_a_sound_which_opens_the_choice_of_a_file(
    page: Page, file: Path
) -> None:
    choose(page, "digits")
    offered = page.locator(".start-trials").get_by_role("button")
    expect(offered.locator("strong")).to_have_text(["Transcribe a sound"])
    with page.expect_file_chooser() as chooser:
        offered.click()
    chooser.value.set_files(file)
    is_named(page.locator(".composer"), "speech.wav", "0:02")
    expect(answers(page)).to_have_count(0)


def test_the_microphone_is_recorded_until_it_is_stopped(page: Page) -> None:
    page.context.grant_permissions(["microphone"])
    choose(page, HEARING)
    page.get_by_role("button", name="Record with the microphone").click()
    level = page.get_by_role("meter", name="Level of the microphone")
    wait_in(page, lambda: level.evaluate("(meter) => meter.value") > 0.2, "a level")
    expect(page.locator(".recording")).to_contain_text("Recording, 0:02")
    page.get_by_role("button", name="Stop recording").click()
    is_played(page, page.locator(".composer audio"))
    expect(page.locator(".recording")).to_have_count(0)
    samples = decode_wav(sent_of(page))
    assert 1.5 < len(samples) / RATE < 60
    assert np.abs(samples).max() > 0.05
    is_played(page, questions(page).locator("audio"))


def test_recording_and_sounds_are_accessible(browser: Browser, server: Server, file: Path) -> None:
    with watched(browser, server, bypass_csp=True) as page:
        page.context.grant_permissions(["microphone"])
        choose(page, HEARING)
        page.locator(INPUT).set_input_files(file)
        expect(page.locator(".composer audio")).to_be_visible()
        page.get_by_role("button", name="Record with the microphone").click()
        expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
        assert violations(page) == []


def test_a_microphone_that_is_refused_is_an_error(page: Page) -> None:
    refused = "() => Promise.reject(new DOMException('Permission denied', 'NotAllowedError'))"
    page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = {refused}; }}")
    choose(page, HEARING)
    page.get_by_role("button", name="Record with the microphone").click()
    expect(page.get_by_role("alert")).to_have_text(
        "The microphone cannot be used: Permission denied"
    )
    expect(page.get_by_role("button", name="Record with the microphone")).to_be_visible()


def test_an_error_about_a_file_has_its_name(page: Page, file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "my speech (1).wav"
    damaged.write_bytes(wav(babble(2))[:30])
    choose(page, HEARING)
    page.get_by_role("button", name="Parameters", exact=True).click()
    page.get_by_role("textbox", name="System prompt").fill("You listen.")
    page.locator(INPUT).set_input_files([file, damaged])
    expect(page.get_by_role("button", name="Remove")).to_have_count(2)
    with page.expect_response("**/api/chat") as response:
        say(page, "What is said?")
    assert response.value.json()["error"].startswith("messages[1].images[1]: ")
    expect(answers(page).get_by_role("alert")).to_have_text(re.compile(r"^my speech \(1\)\.wav: "))


def test_a_model_that_does_not_hear_takes_no_sounds(page: Page, file: Path) -> None:
    choose(page, "demo")
    expect(page.get_by_role("button", name="Record with the microphone")).to_have_count(0)
    page.locator(INPUT).set_input_files(file)
    expect(page.get_by_role("alert")).to_have_text("demo:latest cannot hear sounds.")
    expect(page.locator(".composer audio")).to_have_count(0)
    choose(page, HEARING)
    page.locator(INPUT).set_input_files(file)
    choose(page, "demo")
    expect(page.get_by_role("alert")).to_have_text("demo:latest cannot hear sounds.")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
