"""Conversations: requests to the model, the remembered messages, the effects of commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.conversing import USAGE, FakeServer, Script
from support.piped import piped

from tampu.cli import run_model
from tampu.cli.parameters import (
    read_assignments,
    read_format,
    read_keep_alive,
    read_think,
)
from tampu.cli.repl.session import Session, timing_lines
from tampu.errors import ModelFileError, RequestError

QUESTION = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "I say\x1b[2J."}


def test_messages_and_answers_are_remembered(
    server: FakeServer, converse: Callable[..., Any]
) -> None:
    session, out, _ = converse("hello", "again", "/bye", "not read")
    assert [request["messages"] for request in server.asked] == [
        [QUESTION],
        [QUESTION, ANSWER, {"role": "user", "content": "again"}],
    ]
    assert len(session.messages) == 4
    assert out.count("I say") == 2


def test_end_of_input_ends_the_conversation(converse: Callable[..., Any]) -> None:
    assert converse("hello")[0].messages != []


def test_interrupt_stops_the_answer_only(server: FakeServer, converse: Callable[..., Any]) -> None:
    session, _, _ = converse("interrupt", "hello")
    assert server.closed == 2
    assert [message["content"] for message in session.messages] == [
        "interrupt", "I ", "hello", "I say\x1b[2J.",
    ]  # fmt: skip


def test_interrupt_on_an_empty_line_prints_how_to_leave(converse: Callable[..., Any]) -> None:
    assert "Ctrl-D" in converse(KeyboardInterrupt(), "/bye")[1]
    assert "Ctrl-D" not in converse(KeyboardInterrupt("he"), "/bye")[1]


def test_failed_answer_prints_an_error_and_the_conversation_continues(
    converse: Callable[..., Any],
) -> None:
    session, _, err = converse("refuse", "fail", "hello")
    assert err.splitlines() == ["Error: cannot", "Error: NaN"]
    assert session.messages[-1]["content"].startswith("I say")


def test_message_with_several_lines(server: FakeServer, converse: Callable[..., Any]) -> None:
    converse('"""one\ntwo\nthree""" rest', "/bye")
    assert server.asked[0]["messages"][-1]["content"] == "one\ntwo\nthree"


def test_triple_quotes_inside_a_line_are_text(
    server: FakeServer, converse: Callable[..., Any]
) -> None:
    converse('say """ now', "/bye")
    assert server.asked[0]["messages"][-1]["content"] == 'say """ now'


def test_set_and_show_system_message(server: FakeServer, converse: Callable[..., Any]) -> None:
    _, out, _ = converse('/set system """be\nkind"""', "hello", "/show system", "/set system", "x")
    assert server.asked[0]["messages"][0] == {"role": "system", "content": "be\nkind"}
    assert "be\nkind" in out
    assert server.asked[1]["messages"][0] == QUESTION


def test_parameters_are_checked_and_used(server: FakeServer, converse: Callable[..., Any]) -> None:
    session, out, err = converse(
        "/set parameter temperature 0.5",
        "/set parameter temperature hot",
        "/set parameter top_p 3",
        "/set parameter bogus 1",
        "/set parameter top_k",
        "/set parameter",
        '/set parameter stop "a b" c',
        "hello",
        "/show parameters",
    )
    assert session.parameters == {"temperature": 0.5, "stop": ["a b", "c"]}
    assert server.asked[0]["options"]["temperature"] == 0.5
    assert server.asked[0]["options"]["stop"] == ["a b", "c"]
    assert err.count("Error: ") == 3
    assert "temperature                    0.5" in out
    assert 'stop                           "a b"' in out


def test_set_format(server: FakeServer, converse: Callable[..., Any]) -> None:
    _, out, err = converse(
        "/set format json", "hello", "/set format nowhere",
        "/set noformat", "hello",
    )  # fmt: skip
    assert [request.get("format") for request in server.asked] == ["json", None]
    assert err.count("Error: ") == 1
    assert "Disabled format." in out


def test_clear_removes_the_messages(server: FakeServer, converse: Callable[..., Any]) -> None:
    converse("hello", "/clear", "again")
    assert server.asked[1]["messages"] == [{"role": "user", "content": "again"}]


def test_set_verbose_prints_durations(converse: Callable[..., Any]) -> None:
    _, _, err = converse("/set verbose", "hello", "/set quiet", "hello")
    assert err.count("eval rate") == 2  # of the prompt and of the answer
    assert "load duration:" in err


def test_help_and_usage_of_commands(converse: Callable[..., Any]) -> None:
    _, out, _ = converse(
        "/?", "/nope", "/set", "/set bogus", "/show", "/show info", "/show license", "/load",
        "/save", "/? set", "/? /shortcuts", "/show template",
    )  # fmt: skip
    assert "/load MODEL" in out
    assert "Unknown command '/nope'" in out
    assert out.count("Usage:\n  /set parameter") == 2
    assert "Usage:\n  /show info" in out
    assert "Usage:\n  /save MODEL" in out
    assert "architecture" in out
    assert "apache-2.0" in out
    assert "Ctrl-A" in out


def test_set_changes_the_view(converse: Callable[..., Any]) -> None:
    reader = Script(
        "/set nowordwrap", "/set nomarkdown", "/set nohistory", "/set nothink", "/set verbose"
    )
    session, out, _ = converse(reader=reader)
    assert reader.is_kept is False
    assert session.think is False
    for word in ("nowordwrap", "nomarkdown", "nohistory", "nothink", "verbose"):
        assert f"Set '{word}' mode." in out
    reader = Script("/set wordwrap", "/set markdown", "/set nohistory", "/set history")
    converse(reader=reader)
    assert reader.is_kept is True


def test_reasoning_is_printed_before_the_answer_or_hidden(converse: Callable[..., Any]) -> None:
    session, out, _ = converse("think", model="clever")
    assert out == "Thinking...\nI am not sure.\n...done thinking.\n\nWell: I say\x1b[2J.\n\n\n"
    assert session.messages[-1]["content"] == "Well: I say\x1b[2J."
    _, out, _ = converse("think", model="clever", hides_reasoning=True)
    assert out == "Well: I say\x1b[2J.\n\n\n"


def test_set_think(server: FakeServer, converse: Callable[..., Any]) -> None:
    _, out, err = converse(
        "/set think high", "x", "/set think much", "/set think", "x", "/set nothink", "x",
        model="clever",
    )  # fmt: skip
    assert [request["think"] for request in server.asked] == ["high", True, False]
    assert "Set 'think' mode to 'high'." in out
    assert "Error: think is 'much'" in err


def test_set_think_with_a_model_that_cannot_reason_prints_one_line(
    server: FakeServer, converse: Callable[..., Any]
) -> None:
    _, out, err = converse("/set think high")
    assert (out, err) == ("m cannot reason; it answers without reasoning.\n\n", "")
    converse("/set think", "hello")
    assert "think" not in server.asked[0]


def test_load_switches_model_and_starts_its_conversation(
    server: FakeServer, converse: Callable[..., Any]
) -> None:
    session, out, _ = converse("hello", "/load saved", "and?")
    assert out.endswith("Loaded 'saved'.\n>>> hi\n*ho*\n\nI say\x1b[2J.\n\n\n")
    assert [message["content"] for message in server.asked[1]["messages"]] == [
        "Be kind.", "hi", "*ho*", "and?",
    ]  # fmt: skip
    assert server.asked[1]["options"]["temperature"] == 0.5
    assert server.loads == [("saved", {"temperature": 0.5, "num_ctx": 64})]
    assert server.unloads == ["m"]
    assert session.model.name == "saved"


def test_control_characters_of_a_model_are_removed(
    server: FakeServer, converse: Callable[..., Any]
) -> None:
    message = {"role": "user", "content": "\x1b[2J\nb"}
    server.models["saved"] |= {"system": "\x1b]0;a\x07", "messages": [message]}
    _, out, _ = converse("/load saved", "/show system", "/show modelfile")
    assert "\x1b" not in out
    assert ">>> [2J\n... b\n" in out


def test_failed_load_keeps_the_current_model(
    server: FakeServer, converse: Callable[..., Any]
) -> None:
    server.refusals = [ModelFileError("x", "damaged")]
    session, _, err = converse("hello", "/load nowhere", "/load clever", "hello")
    assert "not found" in err
    assert "damaged" in err
    assert len(session.messages) == 4
    assert session.model.name == "m"
    assert (server.loads, server.unloads) == ([], [])


def test_a_model_without_a_template_continues_the_text(
    server: FakeServer, begin: Callable[..., Session]
) -> None:
    parts = [*begin("bare").answer("Once")]
    assert "".join(part.text for part in parts) == "I say\x1b[2J."
    list(begin("bare", system="A story.").answer("Once"))
    assert [(asked["prompt"], asked["system"]) for asked in server.asked] == [
        ("Once", ""), ("Once", "A story."),
    ]  # fmt: skip


def test_prefix_is_not_sent_to_a_server_that_adds_it(
    server: FakeServer, begin: Callable[..., Session]
) -> None:
    server.adds_prefix = True
    list(begin("saved", system="Be brief.").answer("and?"))
    assert server.asked[0]["messages"] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "and?"},
    ]  # fmt: skip


def test_save_creates_a_model(server: FakeServer, converse: Callable[..., Any]) -> None:
    converse("/load saved", "hello", "/save mine")
    [created] = server.created
    assert (created["model"], created["from"], created["system"]) == ("mine", "saved", "Be kind.")
    assert [message["content"] for message in created["messages"]] == [
        "hi", "*ho*", "hello", "I say\x1b[2J.",
    ]  # fmt: skip


@pytest.mark.parametrize(("answer", "saved"), [("y", 1), ("n", 0)])
def test_save_asks_before_it_replaces_a_model(
    server: FakeServer, converse: Callable[..., Any], answer: str, saved: int
) -> None:
    reader = Script("/save Clever:latest", answer)
    _, out, _ = converse(reader=reader)
    assert reader.questions == ["There is a model 'Clever:latest'. Replace it?"]
    assert len(server.created) == saved
    assert ("Replaced model" in out, "Not saved." in out) == (bool(saved), not saved)


def test_closing_an_answer_cancels_it(server: FakeServer, begin: Callable[..., Session]) -> None:
    pieces = begin().answer("hello")
    next(pieces)
    pieces.close()
    assert server.closed == 1


def test_show_modelfile_of_the_conversation(converse: Callable[..., Any]) -> None:
    _, out, _ = converse(
        "/load saved", "hello", "/set parameter seed 3", "/show modelfile", "/set system"
    )
    assert (
        "FROM saved\nSYSTEM Be kind.\nPARAMETER temperature 0.5\nPARAMETER num_ctx 64\n"
        "PARAMETER seed 3\nMESSAGE user hi\nMESSAGE assistant *ho*\nMESSAGE user hello\n" in out
    )


def test_durations_are_formatted_like_ollamas() -> None:
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


def test_cached_tokens_are_printed_and_excluded_from_the_rate() -> None:
    told = timing_lines(msgspec.structs.replace(USAGE, cached_tokens=13), 0)
    assert "prompt eval count:    26 token(s)\nprompt cached count:  13 token(s)\n" in told
    assert "prompt eval rate:     100.00 tokens/s\n" in told


def test_drafts_are_printed_if_there_were_any() -> None:
    told = timing_lines(msgspec.structs.replace(USAGE, drafted_tokens=9, accepted_tokens=7), 0)
    assert "draft count:          9 token(s)\ndraft accepted count: 7 token(s)\n" in told
    assert "draft" not in timing_lines(USAGE, 0)


def test_assignments_are_parsed_by_type() -> None:
    assert read_assignments(["temperature=1", "stop=a", "stop= b", "seed=3", "use_mmap=true"]) == {
        "temperature": 1.0, "stop": ["a", " b"], "seed": 3, "use_mmap": True,
    }  # fmt: skip


def test_format_is_json_or_a_schema_or_its_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"type": "object"}')
    assert read_format("json") == "json"
    assert read_format(' {"type": "object"}') == read_format(str(path)) == {"type": "object"}
    for text in ("xml", '{"type":', str(tmp_path)):
        with pytest.raises(RequestError, match="format"):
            read_format(text)
    path.write_text("[1]")
    with pytest.raises(RequestError, match="an object"):
        read_format(str(path))


def test_think_and_keep_alive_are_parsed() -> None:
    assert [read_think(text) for text in (None, "true", "false", "high")] == [
        None, True, False, "high",
    ]  # fmt: skip
    with pytest.raises(RequestError, match="must be true, false, low"):
        read_think("yes")
    assert [read_keep_alive(text) for text in (None, "5m", "10", "0", "-1")] == [
        None, 300, 10, 0, -1,
    ]  # fmt: skip
    with pytest.raises(RequestError, match="--keepalive"):
        read_keep_alive("soon")


@pytest.mark.parametrize(
    ("given", "words", "question"),
    [("", ["a", "b"], "a b"), ("file\n", ["what?"], "file\n what?"), ("file", [], "file")],
)
def test_standard_input_precedes_the_prompt(
    monkeypatch: pytest.MonkeyPatch, given: str, words: list[str], question: str
) -> None:
    monkeypatch.setattr("sys.stdin", piped(given))
    assert run_model.read_question(words) == question


def test_no_prompt_without_a_terminal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", piped(""))
    with pytest.raises(RequestError, match="no prompt"):
        run_model.read_question([])


def test_an_embedding_is_printed_as_json(
    begin: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    run_model.print_embedding(begin(), "text", None)
    run_model.print_embedding(begin(), "text", 1)
    assert capsys.readouterr().out == "[0.5, 0.5, 0.5, 0.5]\n[1.0]\n"
    for text, dimensions in ((None, None), ("text", 5)):
        with pytest.raises(RequestError):
            run_model.print_embedding(begin(), text, dimensions)
