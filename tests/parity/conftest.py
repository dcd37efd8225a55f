"""One laboratory per session: checkpoints, their files, transformers' answers, each made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.laboratory import Laboratory
from support.parity_report import report_errors
from support.seeing import start

from tampu.ml import Backend


@pytest.fixture(scope="session")
def laboratory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Laboratory]:
    laboratory = Laboratory(tmp_path_factory.mktemp("checkpoints"))
    yield laboratory
    report_errors(request.config, laboratory.errors())
    laboratory.close()


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    backend = Backend(threads=1, max_nodes=4096)
    start(backend)  # its thread is there before the first test begins
    yield backend
    backend.close()
