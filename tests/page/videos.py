"""A video in the chat: sent to a model that takes videos, and refused by one that takes none."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.checkpoints import make_checkpoint
from support.serving import Server, start_server
from support.videos import scene, video

from tampu.convert import convert
from tests.page.conftest import answers, choose, has_ended, questions, say

INPUT = "form input[type=file]"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    checkpoint = make_checkpoint("qwen3vl", tmp_path_factory.mktemp("checkpoints") / "qwen3vl")
    convert(checkpoint, folder / "qwen3vl.gguf", "F32")
    server = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield server
    server.end()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scene.mp4"
    path.write_bytes(video(scene(25), "mp4"))
    return path


def attach(page: Page, model: str, file: Path) -> None:
    choose(page, model)
    page.locator(INPUT).set_input_files(file)
    expect(page.get_by_role("button", name="Remove")).to_be_visible()
    expect(page.locator(".composer .video")).to_contain_text("scene.mp4, ")


def test_a_video_is_sent_and_its_frames_are_part_of_the_prompt(page: Page, file: Path) -> None:
    attach(page, "qwen3vl", file)
    with page.expect_request("**/api/chat") as request:
        say(page, "What is this?")
    [sent] = json.loads(request.value.post_data or "")["messages"][-1]["images"]
    assert base64.b64decode(sent) == file.read_bytes()
    expect(questions(page)).to_contain_text("scene.mp4, ")
    expect(has_ended(answers(page))).to_be_visible()
    expect(answers(page).get_by_role("alert")).to_have_count(0)
    page.reload()  # it is kept in the browser
    expect(questions(page)).to_contain_text("scene.mp4, ")


def test_a_model_that_takes_no_videos_says_so(page: Page, file: Path) -> None:
    attach(page, "demo", file)
    say(page, "What is this?")
    expect(answers(page).get_by_role("alert")).to_have_text(
        "scene.mp4: demo:latest takes no videos, only images"
    )


def test_a_file_of_another_kind_is_refused(page: Page, tmp_path: Path) -> None:
    choose(page, "demo")
    (tmp_path / "notes.txt").write_bytes(b"ID3")
    page.locator(INPUT).set_input_files(tmp_path / "notes.txt")
    expect(page.get_by_role("alert")).to_contain_text("notes.txt is not a PNG")
