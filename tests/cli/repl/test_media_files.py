"""Paths of images and sounds in messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.sounds import sound, wav

from tampu.cli.repl.media_files import MediaFile, mentions, take_files
from tampu.cli.repl.printing import files_of
from tampu.cli.repl.session import Session
from tampu.cli.server_client import ServerError
from tampu.errors import RequestError, TampuError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images and a sound, where the program is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("a.png", "b c.jpg", "sub/d.webp", "it's.PNG", "(e).png"):
        Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(tmp_path / name)
    (tmp_path / "f.wav").write_bytes(wav(sound(0.1)))
    return tmp_path


def needs_none(*, is_sound: bool) -> bool:  # noqa: ARG001 - as the protocol says
    return False


take = partial(take_files, can_see=True, can_hear=True, needs_projector=needs_none)


@pytest.mark.parametrize(
    ("text", "rest", "names"),
    [
        ("what is in ./a.png?", "what is in ?", ["a.png"]),
        ("./a.png", "", ["a.png"]),
        (
            "what is said in ./f.wav, and where? ./a.png",
            "what is said in , and where?",
            ["f.wav", "a.png"],
        ),
        ("'./b c.jpg' what?", "what?", ["b c.jpg"]),
        ('"b c.jpg" what?', "what?", ["b c.jpg"]),
        (r"look: ./b\ c.jpg", "look:", ["b c.jpg"]),
        ("look: ./b c.jpg now", "look:  now", ["b c.jpg"]),
        ("compare ./a.png and ./sub/d.webp", "compare  and ", ["a.png", "sub/d.webp"]),
        ("./a.png ./a.png", "", ["a.png", "a.png"]),
        ("./sub/../a.png", "", ["a.png"]),
        ("../{folder}/a.png", "", ["a.png"]),
        ("{here}/a.png", "", ["a.png"]),
        (r"./it\'s.PNG", "", ["it's.PNG"]),
        (r"./\(e\).png!", "!", ["(e).png"]),
        ("first\n./a.png\nlast", "first\n\nlast", ["a.png"]),
    ],
)
def test_paths_are_removed_from_the_text(
    here: Path, text: str, rest: str, names: list[str]
) -> None:
    text = text.replace("{here}", str(here)).replace("{folder}", here.name)
    found, files, left = take(text)
    assert found == rest.strip()
    assert [file.path.resolve() for file in files] == [here / name for name in names]
    assert all(file.content == file.path.read_bytes() for file in files)
    assert [file.is_sound for file in files] == [name.endswith("wav") for name in names]
    assert left == []


@pytest.mark.parametrize(
    "text",
    [
        "what is a.png?", "it costs 3/4 of .png", "https://example.org/a.png", "'quoted' words",
        "./a.png.txt", "./a.pngs", "and/or", "./a.txt",
    ],
)  # fmt: skip
def test_other_text_is_unchanged(here: Path, text: str) -> None:
    assert here.is_dir()
    assert take(text) == (text, [], [])


def test_missing_image_path_stays_in_the_text(here: Path) -> None:
    text = f"see ./none.png and {here}/a.png"
    rest, files, left = take(text)
    assert rest == "see ./none.png and"
    assert len(files) == 1
    assert [path for path, _ in left] == [Path("none.png")]


def test_an_invalid_file_is_refused_with_its_name(here: Path) -> None:
    (here / "no.png").write_text("text")
    (here / "big.png").write_bytes(b"")
    with (here / "big.png").open("r+b") as file:
        file.truncate(1 << 30)
    (here / "no.mp3").write_text("text")
    for name in ("no.png", "big.png", "no.mp3"):
        with pytest.raises(RequestError, match=f"^{name}: "):
            take(f"./{name}")


def test_tilde_is_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert take("~/a.png")[1][0].path == here / "a.png"


@given(st.text("./ ~'\"\\apngj\n\0"))
def test_mentions_of_any_text_are_in_order(text: str) -> None:
    found = list(mentions(text))
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert all(0 <= each.start < each.end <= len(text) for each in found)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("can_see", "text", "printed"),
    [
        (False, "./a.png what is it", "a.png: the model takes no images; it gets the name only"),
        (False, "what is said? ./f.wav", "f.wav: the model takes no sounds; it gets the name only"),
        (True, "what is said? ./f.wav", "f.wav: the model takes no sounds; it gets the name only"),
        (
            True,
            "./nowhere.png what is it",
            "nowhere.png: no such file; the model gets its name only",
        ),
        (False, "what is it", ""),
    ],
)
def test_a_file_that_a_model_does_not_get_is_said(
    capsys: pytest.CaptureFixture[str], can_see: bool, text: str, printed: str
) -> None:
    session: Any = SimpleNamespace(can_see=can_see, can_hear=False, needs_projector=needs_none)
    assert files_of(session, text) == (text, [])
    assert capsys.readouterr().err.strip() == printed


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("architecture", "sees", "hears"),
    [("llama", True, True), ("gpt2", False, False), ("unknown", False, False)],
)
def test_a_missing_projector_is_said_if_the_architecture_has_encoders(
    architecture: str, sees: bool, hears: bool
) -> None:
    info = SimpleNamespace(architecture=architecture, capabilities=("completion",))
    model: Any = SimpleNamespace(info=info, system="", parameters={}, messages=())
    backend: Any = SimpleNamespace()
    needs = Session(backend, model).needs_projector
    for text, told in (("./a.png", sees), ("./f.wav", hears)):
        [(_, why)] = take_files(text, can_see=False, can_hear=False, needs_projector=needs)[2]
        assert ("second FROM of a Modelfile" in why) == told


@pytest.mark.parametrize("kind", [RequestError, ServerError])
def test_an_error_of_the_model_about_a_file_has_its_path(kind: type[TampuError]) -> None:
    def stream(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        assert (path, len(body["messages"])) == ("/api/chat", 2)
        raise kind(errors.pop())
        yield {}

    info = SimpleNamespace(template="{{ messages }}", capabilities=("completion", "audio"))
    model: Any = SimpleNamespace(name="m", info=info, system="Hear", parameters={}, messages=())
    backend: Any = SimpleNamespace(adds_prefix=False, stream=stream)
    file = MediaFile(Path("trunc.wav"), b"RIFF", is_sound=True)
    errors = ["messages[2].images[0]: is cut", "messages[1].images[0]: is cut"]
    for told in (r"^trunc\.wav: is cut", r"^messages\[2\]"):
        with pytest.raises(TampuError, match=told):
            list(Session(backend, model).answer("hello", [file]))


@pytest.mark.parametrize("suffix", ["wav", "mka", "mkv", "webm", "M4A"])
def test_the_suffixes_of_sounds_are_known(suffix: str) -> None:
    [mention] = mentions(f"what is said in ./question.{suffix}?")
    assert mention.is_sound
    assert mention.path.name == f"question.{suffix}"
