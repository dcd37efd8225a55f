"""Measurements that are kept in files, and files that cannot be read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tampu.ml.tuning_cache import TuningCache


def kept(folder: Path, device: str = "CUDA.0") -> TuningCache[int]:
    return TuningCache.at(folder, "batch", {"device": device}, int, str)


def test_a_result_is_read_where_the_same_is_measured(tmp_path: Path) -> None:
    assert kept(tmp_path / "new").read() is None
    kept(tmp_path / "new").write(512)
    assert kept(tmp_path / "new").read() == 512
    assert kept(tmp_path / "new", "CUDA.1").read() is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"for": {"device": "CUDA.0"}}'])
def test_a_damaged_file_is_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    kept(tmp_path).path.write_bytes(content)
    assert kept(tmp_path).read() is None
    assert "is damaged; measuring again" in caplog.text


def test_a_folder_that_is_in_the_way_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path).path.mkdir()
    assert kept(tmp_path).read() is None
    kept(tmp_path).write(512)
    read, written = (record.getMessage() for record in caplog.records)
    assert "cannot be read" in read
    assert "cannot be written" in written
