"""Conversations: what the model is asked, what is remembered, what is printed."""

from __future__ import annotations

import io

import pytest
from support.tiny_gguf import write_gguf

from tampu.cli import run
from tampu.cli.conversation import Conversation
from tampu.cli.parameters import read_assignments
from tampu.cli.session import Session, timing_lines
from tampu.errors import ComputeError, RequestError
from tampu.modelinfo import read_model_info
from tampu.runner.events import Done, Text, Usage

USAGE = Usage(
    prompt_tokens=26, prompt_ns=130_000_000, generated_tokens=298, generated_ns=4_700_000_000,
    total_ns=4_900_000_000,
)  # fmt: skip


class FakeEngine:
    """Answers with a few words, or with what it is told to do."""

    context = 100

    def __init__(self, info):
        self.info = info
        self.asked = []
        self.closed = 0

    def stream(self, prompt, **options):
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        self.asked.append((prompt, options))
        if text == "refuse":
            raise RequestError("cannot")
        try:
            yield Text("I ")
            if text == "fail":
                raise ComputeError("NaN")
            if text == "interrupt":
                raise KeyboardInterrupt
            yield Text("say\x1b[2J.")
            yield Done("stop", USAGE)
        finally:
            self.closed += 1


class FakePrompts:
    """Leaves a conversation as it is."""

    def tokens(self, messages, *, limit):
        assert limit == 99
        return messages


class Script:
    """Lines that are typed; exceptions are raised."""

    def __init__(self, *lines):
        self.lines = list(lines)
        self.prompts = []

    def read(self, prompt):
        self.prompts.append(prompt)
        line = self.lines.pop(0) if self.lines else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line


@pytest.fixture(scope="module")
def info(tmp_path_factory):
    return read_model_info(write_gguf(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.fixture
def engine(info):
    return FakeEngine(info)


@pytest.fixture
def converse(engine, capsys):
    """Type lines; return the session, the output and the errors."""

    def converse(*lines, **options):
        session = Session(engine, FakePrompts(), "", {})
        Conversation(session, Script(*lines), 50_000_000, **options).run()
        captured = capsys.readouterr()
        return session, captured.out, captured.err

    return converse


def test_a_conversation_remembers(engine, converse):
    session, out, _ = converse("hello", "again", "/bye", "not read")
    assert [messages for messages, _ in engine.asked] == [
        [{"role": "user", "content": "hello"}],
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "I say\x1b[2J."},
            {"role": "user", "content": "again"},
        ],
    ]
    assert len(session.messages) == 4
    assert out.count("I say") == 2


def test_the_end_of_the_input_ends_the_conversation(converse):
    assert converse("hello")[0].messages != []


def test_an_interrupted_answer_is_stopped_and_the_conversation_goes_on(engine, converse):
    session, _, _ = converse("interrupt", "hello")
    assert engine.closed == 2
    assert [message["content"] for message in session.messages] == [
        "interrupt", "I ", "hello", "I say\x1b[2J.",
    ]  # fmt: skip


def test_an_interrupted_line_tells_how_to_leave(converse):
    _, out, _ = converse(KeyboardInterrupt(), "/bye")
    assert "Ctrl-D" in out


def test_a_failed_answer_is_told_and_the_conversation_goes_on(converse):
    session, _, err = converse("refuse", "fail", "hello")
    assert err.splitlines() == ["Error: cannot", "Error: NaN"]
    assert session.messages[-1]["content"].startswith("I say")


def test_a_message_may_have_several_lines(engine, converse):
    converse('"""one', "two", 'three""" rest', "/bye")
    assert engine.asked[0][0][-1]["content"] == "one\ntwo\nthree"


def test_quotes_inside_a_line_are_text(engine, converse):
    converse('say """ now', "/bye")
    assert engine.asked[0][0][-1]["content"] == 'say """ now'


def test_the_system_message_is_set_and_shown(engine, converse):
    _, out, _ = converse('/set system """be', 'kind"""', "hello", "/show system")
    assert engine.asked[0][0][0] == {"role": "system", "content": "be\nkind"}
    assert "be\nkind" in out


def test_parameters_are_checked_and_used(engine, converse):
    session, out, err = converse(
        "/set parameter temperature 0.5",
        "/set parameter temperature hot",
        "/set parameter top_p 3",
        "/set parameter bogus 1",
        "/set parameter num_ctx 100",
        '/set parameter stop "a b" c',
        "hello",
        "/show parameters",
    )
    assert session.parameters == {"temperature": 0.5, "stop": ["a b", "c"]}
    assert engine.asked[0][1]["temperature"] == 0.5
    assert engine.asked[0][1]["stop"] == ("a b", "c")
    assert err.count("Error: ") == 4
    assert "temperature                   0.5" in out


def test_clearing_forgets_the_messages(engine, converse):
    converse("hello", "/clear", "again")
    assert engine.asked[1][0] == [{"role": "user", "content": "again"}]


def test_durations_are_printed_when_asked_for(converse):
    _, _, err = converse("/set verbose", "hello", "/set quiet", "hello")
    assert err.count("eval rate") == 2  # of the prompt and of the answer
    assert "load duration:        50ms" in err


def test_commands_explain_themselves(converse):
    _, out, _ = converse("/?", "/nope", "/set", "/show", "/show info", "/show license")
    assert "/set system" in out
    assert "Unknown command '/nope'" in out
    assert "Usage: /set" in out
    assert "Usage: /show" in out
    assert "architecture" in out
    assert "apache-2.0" in out


def test_a_model_without_a_template_continues_the_text(info):
    engine = FakeEngine(info)
    assert "".join(Session(engine, None, "", {}).answer("Once")) == "I say\x1b[2J."
    list(Session(engine, None, "A story.", {}).answer("Once"))
    assert [prompt for prompt, _ in engine.asked] == ["Once", "A story.\n\nOnce"]


def test_an_answer_that_is_not_wanted_any_more_is_closed(engine):
    pieces = Session(engine, FakePrompts(), "", {}).answer("hello")
    next(pieces)
    pieces.close()
    assert engine.closed == 1


def test_durations_are_in_ollamas_form():
    assert timing_lines(USAGE, 13_541_792) == (
        "total duration:       4.913541792s\n"
        "load duration:        13.541792ms\n"
        "prompt eval count:    26 token(s)\n"
        "prompt eval duration: 130ms\n"
        "prompt eval rate:     200.00 tokens/s\n"
        "eval count:           298 token(s)\n"
        "eval duration:        4.7s\n"
        "eval rate:            63.40 tokens/s"
    )


def test_options_are_read_by_type():
    assert read_assignments(["temperature=1", "stop=a", "stop= b", "seed=3", "use_mmap=true"]) == {
        "temperature": 1.0, "stop": ["a", " b"], "seed": 3, "use_mmap": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("piped", "words", "question"),
    [("", ["a", "b"], "a b"), ("file\n", ["what?"], "file\n what?"), ("file", [], "file")],
)
def test_what_is_piped_in_comes_before_the_prompt(monkeypatch, piped, words, question):
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert run.read_question(words) == question


def test_without_a_prompt_and_a_terminal_there_is_nothing_to_do(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(RequestError, match="no prompt"):
        run.read_question([])


def test_control_characters_reach_files_but_no_terminal(engine, capsys, monkeypatch):
    run.answer(Session(engine, FakePrompts(), "", {}), "hello")
    assert capsys.readouterr().out == "I say\x1b[2J.\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    run.answer(Session(engine, FakePrompts(), "", {}), "hello")
    assert capsys.readouterr().out == "I say[2J.\n"
