"""The worker's threads: what is slow to prepare delays no other request's events."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from support.fake_model import Characters, FakeModel
from support.fork_server import FORK_SERVER
from support.waiting import PATIENCE_S

from tampu.cancellation import check_cancelled
from tampu.chat.output import MessageParser, chat_format
from tampu.chat.prompt import PromptBuilder
from tampu.chat.template import ChatTemplate
from tampu.engine.backend import ModelFacts
from tampu.engine.events import Started, ToolCallDelta, ToolCallFinished, ToolCallStarted, is_last
from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import (
    ChatPrompt,
    FIMPrompt,
    Prompt,
    StructuredOutput,
    TextPrompt,
    TokensPrompt,
)
from tampu.engine.request import Request
from tampu.engine.requests import Decode, Embed, Encode, Generate
from tampu.errors import RequestCancelledError, RequestError
from tampu.ml.metadata import Metadata
from tampu.runner.events import Failed, TextDelta
from tampu.runner.generate_options import GenerateOptions
from tampu.worker.frames import read_frames
from tampu.worker.lanes import LANES
from tampu.worker.protocol import (
    Answer,
    Cancel,
    Command,
    Load,
    Ping,
    Pong,
    Run,
    to_frame,
    to_message,
)
from tampu.worker.worker import Worker

# Takes all the time that a template may have.
ENDLESS = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
CHAT = ChatPrompt(messages=({"role": "user", "content": "hi"},))


class SlowPrompts:
    """A template that takes until it is released."""

    style = chat_format("")

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def prepare(self) -> None:
        pass

    def build(self, *_: object, **__: object) -> None:
        self.entered.set()
        self.released.wait(PATIENCE_S)
        raise RequestError("too slow")


class Client:
    """The server's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.replies = map(to_message, read_frames(connection))

    def send(self, *commands: Command) -> None:
        self.connection.sendall(b"".join(map(to_frame, commands)))

    def until(self, holds: Callable[[Any], Any] | Callable[[Any], bool]) -> list[Any]:
        """Return the replies up to the first for which something holds."""
        found = []
        for reply in self.replies:
            found.append(reply)
            if holds(reply):
                return found
        pytest.fail(f"it did not come: {found}")


@contextmanager
def served(prompts: Any, tokenizer: Any = None, context: int = 100) -> Iterator[Client]:
    """Run a worker, loaded, in a thread."""

    @contextmanager
    def load(*_: Any, **__: Any) -> Iterator[FakeModel]:
        yield FakeModel(prompts, tokenizer, context)

    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    worker = threading.Thread(target=Worker(theirs, load).run)
    worker.start()
    client = Client(ours)
    client.send(Load("model", LoadOptions()))
    assert isinstance(next(client.replies), ModelFacts)
    try:
        yield client
    finally:
        ours.shutdown(socket.SHUT_RDWR)
        worker.join()
        ours.close()
        theirs.close()


def generate(number: int, prompt: TextPrompt | ChatPrompt) -> Run:
    return Run(number, Generate(prompt, streams_calls=True))


def is_end_of(number: int) -> Callable[[Any], bool]:
    return lambda reply: (
        isinstance(reply, Answer) and reply.number == number and is_last(reply.reply)
    )


def is_text(reply: Any) -> bool:
    return isinstance(reply, Answer) and isinstance(reply.reply, TextDelta)


@pytest.fixture
def slow() -> Iterator[SlowPrompts]:
    prompts = SlowPrompts()
    yield prompts
    prompts.released.set()


def test_a_slow_template_delays_no_cancel_and_no_ping(slow: SlowPrompts) -> None:
    with served(slow) as client:
        client.send(generate(1, TextPrompt("forever")))
        client.until(is_text)
        client.send(generate(2, CHAT))
        assert slow.entered.wait(PATIENCE_S)
        client.send(Cancel(1), Ping(60.0))
        client.until(lambda reply: isinstance(reply, Pong) and not reply.stuck)
        assert not slow.released.is_set()
        client.send(generate(3, TextPrompt("ok")), Run(4, Decode((104,))))
        client.until(is_end_of(3))
        slow.released.set()
        [*_, last] = client.until(is_end_of(2))
        assert last.reply == Failed("RequestError", "too slow")


def test_the_cancelled_request_ends_before_the_slow_template(slow: SlowPrompts) -> None:
    with served(slow) as client:
        client.send(generate(1, TextPrompt("forever")))
        client.until(is_text)
        client.send(generate(2, CHAT))
        assert slow.entered.wait(PATIENCE_S)
        client.send(Cancel(1))
        [*_, last] = client.until(is_end_of(1))
        assert last.reply.reason == "cancelled"
        assert not slow.released.is_set()
        slow.released.set()
        client.until(is_end_of(2))


def test_a_request_is_cancelled_immediately_while_it_is_prepared(slow: SlowPrompts) -> None:
    with served(slow) as client:
        client.send(generate(1, CHAT))
        assert slow.entered.wait(PATIENCE_S)
        client.send(Cancel(1))
        assert next(client.replies).reply.reason == "cancelled"
        slow.released.set()
        client.send(generate(2, TextPrompt("ok")))
        replies = client.until(is_end_of(2))
        assert {reply.number for reply in replies} == {2}


def test_a_template_that_uses_its_whole_budget_delays_no_cancel() -> None:
    prompts = PromptBuilder.for_model(
        ChatTemplate(ENDLESS), Characters(), cast("Metadata", NoMetadata()), FORK_SERVER
    )
    with served(prompts) as client:
        client.send(generate(1, TextPrompt("forever")))
        client.until(is_text)
        client.send(generate(2, CHAT), Cancel(1))
        ended = client.until(is_end_of(1))
        assert not any(map(is_end_of(2), ended))
        [*_, last] = client.until(is_end_of(2))
        assert isinstance(last.reply, Failed)


class SlowTokens(Characters):
    """A tokenizer that takes until it is released or cancelled for what begins with `slow`."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.released = threading.Event()
        self.cancelled = threading.Semaphore(0)

    def encode(self, text: str, **_: object) -> list[Any]:
        if text.startswith("slow"):
            self.entered.release()
            try:
                while not self.released.wait(0.01):
                    check_cancelled()
            except RequestCancelledError:
                self.cancelled.release()
                raise
        return super().encode(text)


@pytest.fixture
def tokens() -> Iterator[SlowTokens]:
    slow = SlowTokens()
    yield slow
    slow.released.set()


LONG = TextPrompt("slow " * 20_000)


def test_long_texts_that_are_tokenized_delay_no_other_request(tokens: SlowTokens) -> None:
    with served(None, tokens, 10**6) as client:
        client.send(*(generate(number, LONG) for number in range(1, 9)))
        client.send(*(Run(number, Encode(LONG)) for number in range(11, 19)))
        for _ in range(LANES["long"]):
            assert tokens.entered.acquire(timeout=PATIENCE_S)
        client.send(generate(20, TextPrompt("ok")), Run(21, Encode(TextPrompt("ok"))))
        client.until(is_end_of(20))
        client.send(Run(22, Encode(TextPrompt("ok"), detail="count")))
        [*_, counted] = client.until(is_end_of(22))
        assert counted.reply.count == 2
        assert not tokens.released.is_set()


@pytest.mark.parametrize("request_", [Generate(LONG), Encode(LONG), Embed((LONG,))])
def test_cancelling_ends_the_tokenizing_of_a_long_text(
    tokens: SlowTokens, request_: Request[Any]
) -> None:
    with served(None, tokens, 10**6) as client:
        client.send(Run(1, request_))
        assert tokens.entered.acquire(timeout=PATIENCE_S)
        client.send(Cancel(1))
        assert tokens.cancelled.acquire(timeout=PATIENCE_S)
        assert not tokens.released.is_set()


def test_requests_that_are_cancelled_before_their_turn_are_not_prepared(tokens: SlowTokens) -> None:
    many = range(LANES["long"] + 1, 9)
    with served(None, tokens, 10**6) as client:
        for number in range(1, LANES["long"] + 1):
            client.send(Run(number, Encode(LONG)))
            assert tokens.entered.acquire(timeout=PATIENCE_S)
        client.send(*(Run(number, Encode(LONG)) for number in many))
        client.send(*(Cancel(number) for number in many), Ping(60.0))
        client.until(lambda reply: isinstance(reply, Pong))
        tokens.released.set()
        client.send(Run(9, Encode(LONG)))
        client.until(is_end_of(9))
        assert tokens.entered.acquire(timeout=PATIENCE_S)
        assert not tokens.entered.acquire(blocking=False)


IMAGE = ChatPrompt(messages=({"role": "user", "content": "x", "media": [b"x"]},))


@pytest.mark.parametrize(
    ("prompt", "structure", "lane"),
    [
        (TextPrompt("x"), None, "short"),
        (CHAT, None, "short"),
        (CHAT, StructuredOutput(format="json"), "grammar"),
        (TextPrompt("x" * 100_000), None, "long"),
        (TokensPrompt((1,) * 100_000), None, "long"),
        (FIMPrompt("x" * 30_000, "y" * 30_000), None, "long"),
        (ChatPrompt(messages=CHAT.messages * 1_000), None, "long"),
        (ChatPrompt(messages=({"role": "user", "content": "x" * 99_999},)), None, "long"),
        (IMAGE, None, "media"),
        (TextPrompt("<__media__>", (b"x",)), None, "media"),
    ],
)
def test_requests_are_prepared_beside_their_like(
    prompt: Prompt, structure: StructuredOutput | None, lane: str
) -> None:
    assert Generate(prompt, GenerateOptions(), structure).lane == lane


def test_a_bug_in_preparing_ends_only_its_own_request(
    slow: SlowPrompts, caplog: pytest.LogCaptureFixture
) -> None:
    slow.build = None
    with served(slow) as client:
        client.send(generate(1, CHAT))
        [last] = client.until(is_end_of(1))
        assert last.reply == Failed("ComputeError", "internal error: TypeError")
        client.send(generate(2, TextPrompt("ok")))
        first, *_ = client.until(is_end_of(2))
        assert first.reply == Started((111, 107))
    assert "internal error in a request" in caplog.text


def test_the_output_of_a_chat_is_parsed() -> None:
    call = f'{{"name": "f", "arguments": {{"x": {2**70}}}}}'
    messages = ({"role": "user", "content": f"so<tool_call>{call}</tool_call>"},)
    tools = ({"type": "function", "function": {"name": "f"}},)
    prompts = PromptBuilder(ChatTemplate("{{ messages[-1].content }}"), Characters())
    with served(prompts) as client:
        client.send(generate(1, ChatPrompt(messages=messages, tools=tools)))
        _, *pieces, done = [reply.reply for reply in client.until(is_end_of(1))]
        assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == "so"
        [start, *_, end] = [piece for piece in pieces if not isinstance(piece, TextDelta)]
        arguments = f'{{"x": {2**70}}}'
        assert start == ToolCallStarted(start.id, "f", 0)
        assert end == ToolCallFinished(start.id, "f", arguments, 0)
        texts = [piece.text for piece in pieces if isinstance(piece, ToolCallDelta)]
        assert "".join(texts) == arguments
        assert done.reason == "tool_calls"


def test_a_bug_in_the_output_parser_ends_only_its_own_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = PromptBuilder(ChatTemplate("{{ messages[-1].content }}"), Characters())
    monkeypatch.setattr(MessageParser, "feed", None)
    with served(prompts) as client:
        client.send(generate(1, TextPrompt("forever")), generate(2, CHAT))
        [*_, last] = client.until(is_end_of(2))
        assert last.reply == Failed("ComputeError", "internal error: TypeError")
        client.send(Cancel(1))
        client.until(is_end_of(1))
    assert "internal error in a request" in caplog.text


class NoMetadata:
    def integer(self, _: object, default: Any) -> Any:
        return default

    string = integer


@pytest.mark.parametrize("text", ["ok", "fail here"])
def test_all_events_of_a_choice_have_its_number(text: str) -> None:
    with served(None) as client:
        client.send(Run(1, Generate(TextPrompt(text), choice=2)))
        replies = [answer.reply for answer in client.until(is_end_of(1))]
        assert {reply.choice for reply in replies if not isinstance(reply, Failed)} == {2}
        assert isinstance(replies[-1], Failed) == text.startswith("fail")
