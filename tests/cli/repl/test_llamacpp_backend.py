"""A conversation with a model that llama.cpp computes."""

from __future__ import annotations

import pytest
from support.endless import make_endless_model
from support.fork_server import FORK_SERVER
from support.renamed import write_renamed

from tampu.cli.repl.current_model import Desk
from tampu.cli.repl.local_backend import OwnModel
from tampu.cli.repl.model_loader import EngineShelf
from tampu.cli.repl.session import Session
from tampu.errors import RequestError
from tampu.settings.settings import Settings

SETTINGS = Settings.from_environment({"HOME": "/home/runa"})
STRANGE = "xverse"  # llama.cpp has it; its tensors are Llama's


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    write_renamed(folder / "tiny.gguf", folder / "strange.gguf", STRANGE)
    return str(folder / "strange.gguf")


def test_a_model_that_the_native_engine_lacks_answers_all_the_same(path):
    shelf = EngineShelf(SETTINGS, FORK_SERVER)
    desk = Desk(shelf, shelf.find(path))
    try:
        session = Session(
            OwnModel(desk, SETTINGS), parameters={"num_predict": 3, "num_thread": 1, "num_ctx": 64}
        )
        for _ in range(2):
            assert "".join(part.text for part in session.answer("hello"))
            assert session.usage.generated_tokens == 3
    finally:
        desk.close()


def test_there_is_no_trace_of_it(path, tmp_path):
    shelf = EngineShelf(SETTINGS, FORK_SERVER, tmp_path / "trace.json")
    with pytest.raises(RequestError, match="--trace"):
        Session(OwnModel(Desk(shelf, shelf.find(path)), SETTINGS)).load()
