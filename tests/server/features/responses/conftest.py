"""A server that keeps responses, and two callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import FakeStart

from tampu.engine.load_options import LoadOptions
from tampu.server.front.caller import Caller
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

ALICE, BOB = (Caller(name=name, may_manage=False) for name in ("alice", "bob"))


def site_of(model_folder: Path, state: Path, **more: Any) -> Site:
    options = ServerOptions(model=LoadOptions(context=1024), state=state, **more)
    return Site(model_folder, FakeStart(), options)


@pytest.fixture
def kept(model_folder: Path, tmp_path: Path) -> Site:
    return site_of(model_folder, tmp_path / "state")
