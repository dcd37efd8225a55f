"""An empty store, and an empty library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tampu.store import Store
from tampu.store.library import Library


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "models")
