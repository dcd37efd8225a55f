"""The model that answers: loaded when it is needed, put away when it rests; and the history."""

from __future__ import annotations

import threading

import pytest
from support.waiting import wait_until

from tampu.cli.repl.current_model import Desk, Needs
from tampu.cli.repl.reader import History, choices, is_open, without_quotes
from tampu.errors import ModelFileError, OutOfMemoryError

NEEDS = Needs()


def needs(_):
    return NEEDS


@pytest.fixture
def desk(shelf):
    desk = Desk(shelf, shelf.find("m"))
    yield desk
    desk.close()


def test_a_model_is_loaded_once_and_freed_at_the_end(shelf, desk):
    assert shelf.loads == []
    for _ in range(2):
        with desk.model(NEEDS) as loaded:
            assert loaded.model is shelf.engine
    assert len(shelf.loads) == 1
    assert desk.take_load_ns() > 0
    assert desk.take_load_ns() == 0
    desk.close()
    desk.close()
    assert shelf.freed == 1


class Timers:
    """Makes timers that are due when the test says so."""

    def __init__(self):
        self.running = []

    def __call__(self, seconds, function):
        timer = threading.Timer(seconds, function)
        timer.start = lambda: self.running.append(timer)
        timer.cancel = lambda: timer in self.running and self.running.remove(timer)
        return timer


def test_a_model_that_rests_is_freed_and_comes_back(shelf):
    timers = Timers()
    desk = Desk(shelf, shelf.find("m"), 300, timers)
    for _ in range(2):
        with desk.model(NEEDS):
            assert timers.running == []  # an answer is no rest
    [timer] = timers.running
    assert timer.interval == 300
    assert shelf.freed == 0
    timer.function()
    assert (shelf.freed, timers.running) == (1, [])
    with desk.model(NEEDS):
        pass
    assert len(shelf.loads) == 2
    desk.close()


def test_a_model_that_rests_is_freed_with_nobody_asking(shelf):
    desk = Desk(shelf, shelf.find("m"), 0.01)
    with desk.model(NEEDS):
        pass
    wait_until(lambda: shelf.freed, "the model is freed")
    desk.close()


def test_a_model_that_may_not_rest_is_freed_after_each_answer(shelf):
    desk = Desk(shelf, shelf.find("m"), 0)
    with desk.model(NEEDS):
        assert shelf.freed == 0
    assert shelf.freed == 1


def test_another_model_is_loaded_beside_the_first_and_takes_its_place(shelf, desk):
    with desk.model(NEEDS):
        pass
    assert desk.change("clever", needs).name == desk.known.name == "clever"
    assert (len(shelf.loads), shelf.freed) == (2, 1)


def test_a_model_that_cannot_be_loaded_changes_nothing(shelf, desk):
    with desk.model(NEEDS):
        pass
    shelf.refusals = [ModelFileError("x", "damaged")]
    with pytest.raises(ModelFileError):
        desk.change("clever", needs)
    assert (desk.known.name, shelf.freed) == ("m", 0)


def test_where_both_have_no_room_the_first_makes_way(shelf, desk):
    with desk.model(NEEDS):
        pass
    shelf.refusals = [OutOfMemoryError("no room")]
    desk.change("clever", needs)
    assert [name for name, _ in shelf.loads] == ["m", "clever"]
    shelf.refusals = [OutOfMemoryError("no room"), OutOfMemoryError("still none")]
    with pytest.raises(OutOfMemoryError, match="still"):
        desk.change("m", needs)
    with desk.model(NEEDS):
        assert desk.known.name == "clever"


def test_the_history_is_kept_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "history"
    History(path, is_kept=True).store_string("one\ntwo")
    history = History(path, is_kept=False)
    history.store_string("secret")
    assert [*history.load_history_strings()] == ["one\ntwo"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_history_that_has_grown_loses_its_older_half(tmp_path):
    path = tmp_path / "history"
    path.write_text("".join(f"\n# time\n+{number:0999}\n" for number in range(1200)))
    found = [*History(path, is_kept=True).load_history_strings()]
    assert found[0] == f"{1199:0999}"
    assert 400 < len(found) < 800
    assert all(len(message) == 999 for message in found)


def test_a_history_that_cannot_be_written_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history", is_kept=True)
    history.store_string("x")
    assert [*history.load_history_strings()] == []


@pytest.mark.parametrize(
    ("text", "is_it", "message"),
    [
        ("x", False, "x"),
        ('"""x', True, "x"),
        ('"""x\ny"""', False, "x\ny"),
        ('"""', True, ""),
        ('say """x', False, 'say """x'),
        ('/set system """x', True, "/set system x"),
    ],
)
def test_triple_quotes_hold_several_lines(text, is_it, message):
    assert is_open(text) is is_it
    assert without_quotes(text) == message


@pytest.mark.parametrize(
    ("before", "word", "found"),
    [
        ([], "/c", ["/clear"]),
        (["/set"], "no", ["noformat", "nohistory", "nomarkdown", "nothink", "nowordwrap"]),
        (["/set", "parameter"], "temp", ["temperature"]),
        (["/show"], "", ["info", "license", "modelfile", "parameters", "system", "template"]),
        (["/load"], "de", ["demo"]),
        (["/bye"], "", []),
    ],
)
def test_tab_knows_the_commands(before, word, found):
    assert choices(before, word, lambda _: ["demo"]) == found
