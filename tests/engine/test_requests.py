"""Every kind of request: it has a handler and a result, and is the same after it was sent."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import FORK_SERVER
from support.requests import one_of_each, refused_of_each
from support.tiny_model import Tiny, write_tiny

from tampu.engine.backend import Running
from tampu.engine.engine import Engine
from tampu.engine.events import is_last, joined
from tampu.engine.handlers import HANDLERS, TEXT, VOCABULARY
from tampu.engine.load_options import LoadOptions
from tampu.engine.request import Request, Result
from tampu.engine.requests import KINDS, result_types
from tampu.errors import RequestError, UnsupportedRequestError
from tampu.runner.events import Done
from tampu.worker.main import VocabularyOnly
from tampu.worker.protocol import to_body, to_request

SENT = [*one_of_each("m.gguf", "/tmp"), *(request for request, _ in refused_of_each())]
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def name_of(request: Request[Any]) -> str:
    return type(request).__name__


def result_of(engine: Engine, request: Request[Any]) -> Any:
    """Return the result of a request through `Engine.run`."""
    found = engine.run(request)
    if not isinstance(found, Running):
        return joined([*found])
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    found.begin(replies.put)
    while not is_last(reply := replies.get()):
        pass
    return reply


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(
        tmp_path_factory.mktemp("requests") / "m.gguf", Tiny(context=512), template=TEMPLATE
    )


def test_every_kind_has_a_handler_and_is_tried_here() -> None:
    assert {*HANDLERS} == {*KINDS}
    assert {*VOCABULARY} < {*TEXT} < {*HANDLERS}
    assert {*map(type, SENT)} == {*KINDS}


@pytest.mark.parametrize("request_", SENT, ids=name_of)
def test_a_request_is_the_same_after_it_was_sent(request_: Request[Any]) -> None:
    found = to_request(to_body(request_))
    assert to_body(found) == to_body(request_)
    assert type(found) is type(request_)
    assert (found.lane, found.size, found.adapters) == (
        request_.lane,
        request_.size,
        request_.adapters,
    )


def test_the_engine_answers_each_kind_with_its_result(model: Path, tmp_path: Path) -> None:
    with Engine.load(model, context=256, threads=1, slots=1) as engine:
        for request in one_of_each(str(model), str(tmp_path)):
            found = result_of(engine, request)
            assert isinstance(found, Result | Done), name_of(request)
            assert type(found) in result_types()
        for request, message in refused_of_each():
            with pytest.raises(RequestError, match=message):
                result_of(engine, request)


def test_a_kind_that_an_engine_does_not_have_is_refused_by_name(model: Path) -> None:
    loaded = VocabularyOnly(str(model), LoadOptions(), FORK_SERVER)
    for request in one_of_each(str(model), ""):
        if type(request) in VOCABULARY:
            assert isinstance(loaded.ask(request), Result)
        else:
            with pytest.raises(UnsupportedRequestError, match=f"{name_of(request)} is not"):
                loaded.run(request)


@pytest.mark.parametrize("request_", SENT, ids=name_of)
def test_adapters_and_priority_are_those_of_what_computes(request_: Request[Any]) -> None:
    found = request_.scheduled({"a": 0.5}, "batch")
    if found is request_:
        assert not found.adapters
    else:
        assert found.adapters == {"a": 0.5}
        assert found.lane in ("offline", "short")
