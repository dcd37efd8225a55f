"""Whatever a program passes to the Python API: a result or a `TampuError`, and an end."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import rest, tiny_engine

from tampu import Engine, GenerateOptions, Predicate, TampuError
from tampu.engine.arguments import checked, kind_of
from tampu.engine.completion import Stream
from tampu.engine.load_options import LoadOptions, load_options
from tampu.engine.requests import Decode, Pair
from tampu.errors import RequestError

HUGE = 10**5000  # more digits than Python writes
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
WRONG_PREDICATE: Any = Predicate
WRONG_PAIR: Any = Pair
VALUES: list[Any] = [
    None, True, 0, -1, 7, 2**70, HUGE, 0.5, math.nan, math.inf, "x", "", "\0", "\ud800", "low",
    b"x", bytearray(b"x"), [], [[]], [None], [1.5], [10**12], [HUGE], [-1], ["x"], ["", "x"],
    [b"x"], [True], (), (3, 4), {}, {"a": 1}, {"a": HUGE}, {1: 2}, {"x": object()}, {"": math.nan},
    [{}], [{"role": "user"}], [{"role": 1}], [{"role": "user", "content": None}], [{"role": "usr"}],
    [{"role": "user", "content": [1]}], [{"role": "user", "content": object()}],
    [{"role": "user", "content": "a", "images": ["nowhere.png"]}],
    [{"role": "user", "content": "a", "images": [object()]}],
    [{"role": "user", "content": "a", 1: object()}],
    [{"role": "user", "content": "a", "more": object()}],
    [{"role": "assistant", "content": None, "tool_calls": [1]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": object()}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
    [{"type": "function", "function": {"name": 5}}],
    [{"type": "function", "function": {"name": "f", "parameters": 5}}],
    [{"type": "function", "function": {"name": "f", "description": object()}}],
    {"type": "array", "items": object()}, {"regex": 5}, {"choices": [1]}, {"lark": "x: ("},
    object(), object, len, set(), range(3), iter([3]), CYCLE, Path("nowhere"), np.zeros(()),
    np.zeros((2, 2)), np.array([1.5]), np.array([3]), np.zeros((4, 4, 3), np.uint8), np.int64(3),
    np.array([[3, 4], [5, 6]]), np.array(["a", "b"]), np.float64(0.5), np.bool_(True),
    WRONG_PREDICATE(5), [WRONG_PREDICATE("a", yes=object())], [Pair([], 0, "", "")],
    [Pair([10**12], 5, "", "")], WRONG_PAIR("x", 0, "", ""), GenerateOptions(max_tokens=1),
    msgspec.structs.replace(GenerateOptions(max_tokens=1), stop=(5,), shown=5), LoadOptions(),
]  # fmt: skip
MESSAGES = [{"role": "user", "content": "a"}]
RIGHT: dict[str, dict[str, Any]] = {
    "tokenize": {"text": "a", "add_special": True, "parse_special": True},
    "detokenize": {"ids": [3]},
    "generate": {"prompt": [3], "max_tokens": 1},
    "stream": {"prompt": [3], "max_tokens": 1},
    "agenerate": {"prompt": [3], "max_tokens": 1},
    "astream": {"prompt": [3], "max_tokens": 1},
    "chat": {"messages": MESSAGES, "tools": None, "think": None, "max_tokens": 1},
    "stream_chat": {"messages": MESSAGES, "tools": None, "think": None, "max_tokens": 1},
    "achat": {"messages": MESSAGES, "tools": None, "think": None, "max_tokens": 1},
    "astream_chat": {"messages": MESSAGES, "max_tokens": 1},
    "decide": {"input": "a", "questions": [Predicate("b")], "tools": None, "lora": {}},
    "rerank": {"query": "a", "documents": ["b"], "instruction": "c", "lora": {}},
    "chat_prompt": {"messages": MESSAGES, "tools": None, "think": None, "truncate": False},
    "prepare_image": {"image": b""},
    "prepare_audio": {"sound": b""},
    "prepare_file": {"file": b""},
    "submit": {"prompt": [3], "options": GenerateOptions(max_tokens=1), "sink": lambda _: None},
    "score": {"prompt": [3], "continuations": [[4]], "lora": {}},
    "loglikelihood": {"shared": [3], "prompts": [([3], [(4,)])], "lora": {}},
    "rank": {"pairs": [], "lora": {}},
    "snapshot": {"prompt": [3], "path": "rows"},
    "restore_snapshot": {"path": "rows"},
    "run": {"request": Decode((3,))},
    "ask": {"request": Decode((3,))},
    "hang_reason": {"patience_s": 1.0},
    "trace": {"path": "trace.json"},
    "logits": {"prompt": [3], "images": (), "chunk": None},
    "embed": {"texts": ["a"], "normalize": True, "late_chunking": False, "lora": {}},
    "embed_hybrid": {"texts": ["a"], "prompt": None},
    "capture": {
        "prompt": [3], "points": "hidden_states", "layers": None, "positions": None, "lora": {},
    },
    "capture_file": {
        "path": "values", "prompts": [[3]], "points": "hidden_states", "layers": None,
        "positions": None, "lora": {},
    },
    "make_control_vector": {
        "positive": ["a"], "negative": ["b"], "method": "mean",
        "pooling": "mean", "lora": {},
    },
    "logit_lens": {"prompt": [3], "layers": None, "positions": None, "top": 1, "lora": {}},
}  # fmt: skip
WITHOUT_ARGUMENTS = {"close", "warm_up", "detect_nan", "counts", "prepare"}
CASES = [(name, argument) for name, arguments in RIGHT.items() for argument in arguments]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that pass write their files there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with tiny_engine(tmp_path_factory.mktemp("engine")) as engine:
        engine.generate([3], max_tokens=1, format="json")  # its threads are there, too
        yield engine


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths are in a folder of their own."""
    monkeypatch.chdir(tmp_path)


def finish(result: Any) -> None:
    """Let whatever a function returned come to its end."""
    if isinstance(result, Stream):
        list(result)
    elif inspect.iscoroutine(result):
        asyncio.run(result)
    elif isinstance(result, AsyncGenerator):
        asyncio.run(collect(result))
    elif isinstance(result, contextlib.AbstractContextManager):
        with result:
            pass


async def collect(events: AsyncGenerator[Any, None]) -> None:
    async for _ in events:
        pass


def ask(function: Callable[..., Any], arguments: Mapping[str, Any]) -> TampuError | None:
    """Call a function; return the error, which must be one of tampu's."""
    try:
        finish(function(**arguments))
    except TampuError as error:
        return error
    return None


def is_unlimited(value: object) -> bool:
    return value is None or (isinstance(value, int) and (value < 0 or value > 10**6))


def test_each_public_function_is_tried() -> None:
    functions = {
        name
        for kind in Engine.__mro__[:-1]
        for name, value in vars(kind).items()
        if callable(value) and not name.startswith("_")
    }
    assert functions == {*RIGHT, *WITHOUT_ARGUMENTS}


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_any_value_of_any_argument_gives_a_result_or_a_tampu_error(
    engine: Engine, name: str, argument: str
) -> None:
    for value in VALUES:
        if argument == "max_tokens" and is_unlimited(value):
            continue
        ask(getattr(engine, name), {**RIGHT[name], argument: value})
    rest(engine)


@pytest.mark.parametrize("name", [*GenerateOptions.__struct_fields__, "format"])
def test_any_value_of_any_option_gives_a_result_or_a_tampu_error(engine: Engine, name: str) -> None:
    for value in VALUES:
        if name == "max_tokens" and is_unlimited(value):
            continue
        ask(engine.generate, {"prompt": [3], "max_tokens": 1, name: value})
    rest(engine)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("chat", {"messages": "hi"}, "messages must be a list, not a string"),
        ("chat", {"messages": []}, "messages is empty: at least one message is required"),
        ("chat", {"messages": [{"content": "hi"}]}, "messages[0].role is missing"),
        ("chat", {"messages": [*MESSAGES, {"role": "usr", "content": "b"}]},
         "messages[1].role must be system, developer, user, assistant, tool, not 'usr'"),
        ("chat", {"messages": [{"role": "user", "content": None}]},
         "messages[0].content is missing"),
        ("chat", {"messages": [{"role": "user", "content": 5}]},
         "messages[0].content must be a string, not int"),
        ("chat", {"messages": MESSAGES, "tools": ["f"]}, "tools[0] must be a dict, not a string"),
        ("chat", {"messages": [{"role": "user", "content": "a", "images": ["no.png"]}]},
         "messages[0].images[0]: there is no file 'no.png'"),
        ("chat", {"messages": [{"role": "user", "content": "a", "media": [b"x"]}]},
         "messages[0].media is not known: files go into images or audio"),
        ("prepare_image", {"image": "no.png"}, "image: there is no file 'no.png'"),
        ("logits", {"prompt": "a", "images": [5]},
         "images[0] must be a path, the bytes of a file, an image, or samples, not int"),
        ("generate", {"prompt": None}, "prompt must be a string or a list, not None"),
        ("embed", {"texts": [1, 2, "x"]},
         "texts[0] must be a string or a list or a dict, not an integer"),
        ("rank", {"pairs": [("a", "b")]}, "pairs[0] must be Pair, not a list"),
        ("tokenize", {"text": "a", "add_special": 1},
         "add_special must be a boolean, not an integer"),
        ("score", {"prompt": "a", "continuations": "b"},
         "continuations must be a list, not a string"),
        ("score", {"prompt": "a", "continuations": ["b", ""]},
         "continuations[1] is empty: it must have at least one token"),
        ("score", {"prompt": [], "continuations": ["b"]},
         "the prompt is empty: it must have at least one token"),
        ("score", {"prompt": [3], "continuations": [[10**6]]},
         "a token is not in the vocabulary of 320 tokens"),
        ("decide", {"input": "a", "questions": [WRONG_PREDICATE(5)]},
         "questions[0].instructions must be a string, not an integer"),
    ],
)  # fmt: skip
def test_the_message_names_the_place(
    engine: Engine, name: str, arguments: dict[str, Any], message: str
) -> None:
    error = ask(getattr(engine, name), arguments)
    assert str(error) == message


def test_a_wrong_load_option_is_named(tmp_path: Path) -> None:
    for values, message in (
        ({"contxt": 3}, "unknown option 'contxt': did you mean context?"),
        ({"num_ctx": 3}, "unknown option 'num_ctx': did you mean context?"),
        ({"adapters": ["x"]}, "adapters[0] must be a list, not a string"),
        ({"options": 3}, "options must be LoadOptions, not an integer"),
        ({"progress": 3}, "progress must be a function, not an integer"),
    ):
        assert str(ask(Engine.load, {"path": tmp_path / "m.gguf", **values})) == message


@pytest.mark.parametrize("name", LoadOptions.__struct_fields__)
def test_any_value_of_any_load_option_gives_options_or_a_tampu_error(name: str) -> None:
    for value in VALUES:
        with contextlib.suppress(TampuError):
            load_options({name: value})


def test_an_adapter_has_a_name_and_a_path(engine: Engine) -> None:
    for value in VALUES:
        with contextlib.suppress(TampuError):
            engine.adapters.load(value, "nowhere.gguf")
        with contextlib.suppress(TampuError):
            engine.adapters.load("a", value)
        with contextlib.suppress(TampuError):
            engine.adapters.unload(value)


# The mechanism


class Fields(msgspec.Struct):
    name: str
    size: float = 1.0


HINTS: dict[str, Any] = {
    "text": str, "count": int, "number": float, "flag": bool, "nothing": str | None,
    "texts": Sequence[str], "numbers": Mapping[str, float], "nested": Sequence[Sequence[int]],
    "pair": tuple[str, int], "word": Literal["a", "b"], "array": npt.NDArray[np.uint8],
    "struct": Fields, "function": Callable[[], None], "any": Any,
}  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        ("text", ["", "a"], [b"a", 1, None]),
        ("count", [0, np.int64(3), -(2**70)], [True, 1.0, "1"]),
        ("number", [0, 1.5, np.float32(1), math.nan], [True, "1", HUGE]),
        ("flag", [True, False], [0, 1, None]),
        ("nothing", [None, "a"], [0, False]),
        ("texts", [[], ["a"], ("a", "b"), np.array(["a"])], ["a", b"a", [1], {"a"}, {"a": "b"}]),
        ("numbers", [{}, {"a": 1}, {"a": 0.5}], [{1: 1.0}, {"a": "b"}, {"a": True}, [("a", 1)]]),
        ("nested", [[], [[]], [[1], (2, 3)], [np.array([1, 2])]], [[1], [["a"]], [[True]], ["a"]]),
        ("pair", [("a", 1)], [["a", 1], ("a",), ("a", "b"), ()]),
        ("word", ["a", "b"], ["c", 1, None]),
        ("array", [np.zeros(3, np.uint8)], [[1, 2], b"a"]),
        ("struct", [Fields("a"), Fields("a", 3)], [Fields(5), {"name": "a"}]),  # type: ignore[arg-type]
        ("function", [len, print], [None, True, "len"]),
        ("any", [None, True, 5, object()], []),
    ],
)
def test_an_annotation_allows_its_values_and_no_others(
    hint: str, right: list[Any], wrong: list[Any]
) -> None:
    kind = kind_of(HINTS[hint])
    for value in right:
        kind.check(value, "value")
    for value in wrong:
        with pytest.raises(RequestError, match=r"value.* (must|is)"):
            kind.check(value, "value")


@given(st.lists(st.integers() | st.text() | st.floats() | st.none(), max_size=6))
def test_a_sequence_is_right_if_all_of_its_items_are(values: list[Any]) -> None:
    is_right = all(type(each) is int for each in values)
    try:
        kind_of(Sequence[int]).check(values, "values")
    except RequestError:
        assert not is_right
    else:
        assert is_right


def test_numbers_of_numpy_are_options(engine: Engine) -> None:
    options = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "max_tokens": 4, "logprobs": True}
    arrays = {name: np.asarray(value)[()] for name, value in options.items()}
    assert all(isinstance(value, np.generic) for value in arrays.values())
    assert engine.generate([3], **arrays).tokens == engine.generate([3], **options).tokens
    assert load_options({"context": np.int64(64)}).context == 64


def test_an_array_of_numpy_is_a_list_of_prompts(engine: Engine) -> None:
    ids: Any = np.array([[3, 4], [5, 6]])
    np.testing.assert_array_equal(engine.embed(ids), engine.embed(ids.tolist()))


def test_the_signature_stays() -> None:
    def function(text: str, *, count: int = 1, **more: object) -> str:
        """Return something."""
        return f"{text}{count}{more}"

    wrapped = checked(function)
    assert wrapped("a", count=2, other=None) == "a2{'other': None}"
    assert inspect.signature(wrapped) == inspect.signature(function)
    with pytest.raises(RequestError, match="count must be an integer, not a string"):
        wrapped("a", count="b")  # type: ignore[arg-type]
