"""Videos: the frames, sizes and times of transformers' processor, and files that are refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fork_server import FORK_SERVER
from support.videos import KINDS, scene, sound, video
from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
    Qwen3VLVideoProcessor,
    smart_resize,
)

from tampu.errors import RequestError
from tampu.vision import Filter, fit_video, resize
from tampu.vision.sandboxed_video import SandboxedVideoDecoder
from tampu.vision.video import VideoSettings, is_video
from tampu.vision.video_decoding import VideoLimits, decode_video, frames_taken

SETTINGS = VideoSettings(2.0, 4, 768, 32, 4096, 2 * 32 * 32 * 60)


@pytest.mark.parametrize(("total", "fps"), [(25, 10.0), (300, 29.97), (3, 1.0), (9000, 4.0)])
def test_the_frames_are_those_that_transformers_takes(total: int, fps: float) -> None:
    processor: Any = SimpleNamespace(fps=2, min_frames=4, max_frames=768)
    metadata: Any = SimpleNamespace(total_num_frames=total, fps=fps)
    theirs = Qwen3VLVideoProcessor.sample_frames(processor, metadata)
    assert frames_taken(total, fps, SETTINGS).tolist() == theirs.tolist()


@pytest.mark.parametrize("size", [(96, 128), (1080, 1920), (30, 500), (640, 33)])
@pytest.mark.parametrize("frames", [2, 5, 40])
@pytest.mark.parametrize("bounds", [(4096, 122_880), (500_000, 2_000_000)])
def test_the_size_is_that_of_transformers(
    size: tuple[int, int], frames: int, bounds: tuple[int, int]
) -> None:
    theirs = smart_resize(frames, *size, 2, 32, *bounds)
    ours = fit_video(frames, *size, multiple=32, fewest=bounds[0], most=bounds[1])
    assert ours == tuple(theirs)


def test_frames_are_resized_and_have_times() -> None:
    frames = scene(25)
    found = decode_video(video(frames), SETTINGS)
    taken = frames_taken(25, 10.0, SETTINGS)  # 0, 6, 12, 18 and 24
    assert len(taken) == 5
    height, width = fit_video(5, 96, 128, multiple=32, fewest=4096, most=SETTINGS.max_pixels)
    assert found.frames.shape == (6, height, width, 3)  # the last is there twice
    expected = [resize(frames[number], height, width, Filter.BICUBIC) for number in taken]
    np.testing.assert_array_equal(found.frames, [*expected, expected[-1]])
    np.testing.assert_allclose(found.times, [0, 0.6, 1.2, 1.8, 2.4, 2.4])


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_format_is_read(kind: str) -> None:
    frames = scene(12)
    data = video(frames, kind)
    assert is_video(data)
    found = decode_video(data, replace(SETTINGS, max_pixels=4 * 96 * 128))
    assert found.frames.shape == (4, 96, 128, 3)
    loss = np.abs(found.frames.astype(int) - frames[frames_taken(12, 10.0, SETTINGS)])
    assert loss.mean() < 25


def test_images_and_texts_are_no_videos() -> None:
    assert not is_video(b"\x89PNG\r\n\x1a\n")
    assert not is_video(b"\0\0\0\x1cftypavif....")
    assert not is_video(b"RIFF....WEBP")
    assert not is_video(b"")
    with pytest.raises(RequestError, match="supported: MP4, MOV, WebM"):
        decode_video(b"GIF89a", SETTINGS)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (VideoLimits(size_bytes=100), r"has \d+ bytes, the limit is 100"),
        (VideoLimits(seconds=1), "has 2 seconds, the limit is 1"),
        (VideoLimits(frames=20), "more than 20 frames"),
        (VideoLimits(side=100), "too large: 128 x 96; the limit is 100 on a side"),
    ],
)
def test_a_video_over_a_limit_is_refused(limits: VideoLimits, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        decode_video(video(scene(25)), SETTINGS, limits)


def test_damaged_files_are_refused() -> None:
    data = video(scene(12))
    half = video(scene(12), "mp4")
    for broken in (data[:40], half[: len(half) // 2], data[:200] + bytes(len(data) - 200)):
        with pytest.raises(RequestError, match="the video is damaged"):
            decode_video(broken, SETTINGS)
    with pytest.raises(RequestError, match="the file has no video"):
        decode_video(sound(), SETTINGS)
    with pytest.raises(RequestError, match="too elongated"):
        decode_video(video(scene(4, 16, 4000)), SETTINGS)


@pytest.fixture
def decoder() -> Iterator[SandboxedVideoDecoder]:
    decoder = SandboxedVideoDecoder(FORK_SERVER)
    yield decoder
    decoder.close()


def test_the_sandbox_gives_the_same_frames(decoder: SandboxedVideoDecoder) -> None:
    for kind in KINDS:
        data = video(scene(12), kind)
        here, there = decode_video(data, SETTINGS), decoder.decode(data, SETTINGS)
        np.testing.assert_array_equal(there.frames, here.frames)
        np.testing.assert_array_equal(there.times, here.times)
    with pytest.raises(RequestError, match="the video is damaged"):
        decoder.decode(data[:50], SETTINGS)


def test_without_pyav_the_message_names_the_extra(
    decoder: SandboxedVideoDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RequestError, match=r"pip install 'tampu\[video\]'"):
        decoder.decode(b"", SETTINGS)
