import pytest
from support.conversing import FakeEngine, FakePrompts, FakeShelf, Script
from support.tiny_gguf import write_gguf

from tampu.cli.repl.conversation import Conversation
from tampu.cli.repl.current_model import Desk
from tampu.cli.repl.local_backend import OwnModel
from tampu.cli.repl.printing import View
from tampu.cli.repl.session import Session
from tampu.settings.settings import Settings
from tampu.store.model_info import read_model_info


@pytest.fixture(scope="session")
def info(tmp_path_factory):
    return read_model_info(write_gguf(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.fixture
def engine(info):
    return FakeEngine(info)


@pytest.fixture
def shelf(info, engine):
    messages = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "*ho*"})
    return FakeShelf(
        info,
        engine,
        FakePrompts(),
        system="Be kind.",
        parameters={"temperature": 0.5, "num_ctx": 64},
        messages=messages,
    )


@pytest.fixture
def begin(shelf):
    """Begin a session with a model."""

    def begin(name="m", **options):
        desk = Desk(shelf, shelf.find(name))
        return Session(OwnModel(desk, Settings.from_environment()), **options)

    return begin


@pytest.fixture
def converse(begin, capsys):
    """Type messages; return the session, the output and the errors."""

    def converse(*messages, model="m", reader=None, **view):
        session = begin(model)
        reader = reader or Script(*messages)
        Conversation(session, reader, View(**view)).run()
        captured = capsys.readouterr()
        return session, captured.out, captured.err

    return converse
