"""Debian's docker-registry, started once for all tests of this folder."""

import pytest
from support.registries import DockerRegistry


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    registry = DockerRegistry(tmp_path_factory.mktemp("registry"))
    yield registry
    registry.close()
