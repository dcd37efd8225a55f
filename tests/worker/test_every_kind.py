"""A worker and its client carry each kind of request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.fork_server import FORK_SERVER
from support.requests import one_of_each, refused_of_each
from support.tiny_model import Tiny, write_tiny

from tampu.engine.load_options import LoadOptions
from tampu.engine.requests import KINDS, result_types
from tampu.errors import RequestError
from tampu.worker.main import load_model
from tampu.worker.thread import WorkerThread

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


async def test_a_request_of_each_kind_has_its_result_or_its_error(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", Tiny(context=512), template=TEMPLATE)
    answered, refused = one_of_each(str(path), str(tmp_path)), refused_of_each()
    assert {type(each) for each in (*answered, *(request for request, _ in refused))} == {*KINDS}

    worker = WorkerThread(partial(load_model, fork_server=FORK_SERVER), FORK_SERVER)
    options = LoadOptions(context=256, threads=1, slots=1)
    client = await worker.start(path, options, name="m", progress=lambda _: None)
    try:
        for request in answered:
            assert type(await client.ask(request)) in result_types()
        for request, message in refused:
            with pytest.raises(RequestError, match=message):
                await client.ask(request)
    finally:
        await client.close()
