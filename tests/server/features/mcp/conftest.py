"""An application that offers the tools of an MCP server over stdio, and one server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mcp_programs import served_over_http

from tests.server.conftest import Site
from tests.server.features.mcp.asking import site_of, table


@pytest.fixture
def tooled(model_folder: Path, tmp_path: Path) -> Site:
    return site_of(model_folder, tmp_path, table())


@pytest.fixture
def http_server(tmp_path: Path) -> Iterator[str]:
    """The address of a server over HTTP."""
    with served_over_http(tmp_path) as url:
        yield url
