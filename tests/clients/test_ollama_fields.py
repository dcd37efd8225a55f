"""Every method of the `ollama` package, with every field that it sends, and what it reads back."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ollama
import pytest
from ollama import _types
from support.chat_templates import CHATML
from support.scripted import write_scripted
from support.serving import Server, start_server

from tampu.sampling.parameters import BY_OLLAMA

pytestmark = [pytest.mark.client, pytest.mark.server]

USER: list[Any] = [{"role": "user", "content": "hello"}]
SAID = ["<think>", "Let me", " see.", "</think>", "It is", " four."]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
# Of Ollama's cloud, and of models that make pictures.
ELSEWHERE = {"web_fetch", "web_search"}
PICTURES = {"width", "height", "steps", "image", "completed", "total"}


@dataclass(frozen=True)
class Call:
    """A method of the client, what it is given, and whether what it gives is right."""

    method: str
    holds: Callable[[Any], object]
    given: dict[str, Any] = field(default_factory=dict)


def call(method: str, holds: Callable[[Any], bool], **given: Any) -> Call:
    return Call(method, holds, given)


def generate(holds: Callable[[Any], bool], **given: Any) -> Call:
    return call("generate", holds, **{"model": "talker", "prompt": "x", **given})


def chat(holds: Callable[[Any], bool] | Callable[[Any], Any], **given: Any) -> Call:
    return call("chat", holds, **{"model": "thinker", "messages": USER, **given})


def told(status: int, text: str) -> Callable[[Any], bool]:
    return lambda error: (error.status_code, text in error.error) == (status, True)


def is_success(step: Any) -> Any:
    return step.status == "success"


CALLS = {
    "generate: whole": generate(
        lambda a: (a.response, a.done, a.done_reason, a.model) == ("Hello there", True, "stop",
                                                                   "talker")
        and a.eval_count == 3 and a.prompt_eval_count > 0 and len(a.context) > 4 and a.created_at
        and a.total_duration > a.load_duration > 0 and a.eval_duration > 0
        and a.prompt_eval_duration > 0, stream=False,
    ),
    "generate: suffix": generate(lambda a: a.response == "Hello there", model="filler", suffix="y"),
    "generate: suffix that is not had": generate(told(400, "insert"), suffix="y"),
    "generate: system": generate(lambda a: a.prompt_eval_count > 60, system="s" * 50),
    "generate: template": generate(told(400, "template"), template="{{ .Prompt }}"),
    "generate: context": generate(lambda a: a.prompt_eval_count > 50, context=[3] * 50),
    "generate: raw": generate(lambda a: a.context is None and a.prompt_eval_count < 4, raw=True),
    "generate: think": generate(
        lambda a: (a.thinking, a.response) == ("Let me see.", "It is four."), model="thinker",
        think="medium",
    ),
    "generate: logprobs": generate(
        lambda a: [one.token for one in a.logprobs] == ["Hello", " there"]
        and all(len(one.top_logprobs) == 3 for one in a.logprobs),
        logprobs=True, top_logprobs=3,
    ),
    "generate: images": generate(told(400, "images"), images=[b"GIF89a"]),
    "generate: format": generate(lambda a: a.response in ("1", "2"), format={"enum": [1, 2]}),
    "generate: options": generate(
        lambda a: a.eval_count == 1, options=ollama.Options(num_predict=1, num_ctx=64, mirostat=1)
    ),
    "generate: keep_alive": generate(lambda a: a.done_reason == "unload", prompt="", keep_alive=0),
    "chat: whole": chat(
        lambda a: (a.message.role, a.message.content, a.message.thinking)
        == ("assistant", "It is four.", "Let me see."), think=True, stream=False,
    ),
    "chat: tools": chat(
        lambda a: (a.message.tool_calls[0].function.name,
                   a.message.tool_calls[0].function.arguments) == ("add", {"a": 1}),
        model="caller", tools=[TOOL],
    ),
    "chat: a tool's result": chat(
        lambda a: a.message.content, messages=[
            *USER,
            {"role": "assistant", "thinking": "so", "tool_calls": [
                {"function": {"name": "add", "arguments": {"a": 1}}}
            ]},
            ollama.Message(role="tool", content="1", tool_name="add"),
        ],
    ),
    "chat: format": chat(
        lambda a: a.message.content in ("1", "2"), format={"enum": [1, 2]}, think=False
    ),
    "chat: logprobs": chat(
        lambda a: len(a.logprobs[0].top_logprobs) == 2, logprobs=True, top_logprobs=2
    ),
    "chat: options and keep_alive": chat(
        lambda a: (a.eval_count, a.done_reason) == (1, "length"), options={"num_predict": 1},
        keep_alive="5m",
    ),
    "embed: all": call(
        "embed",
        lambda a: (len(a.embeddings), len(a.embeddings[0]), a.prompt_eval_count <= 64) == (2, 8, 1),
        model="talker", input=["a", "b " * 99], dimensions=8, truncate=True, keep_alive=1.5,
        options={"num_ctx": 32},
    ),
    "embed: no truncation": call(
        "embed", told(400, "context"), model="talker", input="b " * 99, truncate=False,
        options={"num_ctx": 32},
    ),
    "embeddings": call(
        "embeddings", lambda a: len(a.embedding) > 8, model="talker", prompt="a", keep_alive=1,
        options={"num_ctx": 32},
    ),
    "systemone": call(
        "systemone",
        lambda a: [*a.answers["who"].probabilities] == ["Bye", "Hello"]
        and a.answers["who"].choice in ("Bye", "Hello")
        and 0 <= a.answers["so"].noul <= 1 and a.answers["how"].legend == {"0": "low", "1": "high"}
        and a.usage.input_tokens > 10,
        model="caller", state={"ticket": "x"}, keep_alive=1, questions={
            "who": {"type": "choice", "instructions": "Who?",
                    "criteria": {"Bye": "he goes", "Hello": None}},
            "so": {"type": "noul", "instructions": "So?",
                   "criteria": {"true": "yes", "false": "no"}},
            "how": {"type": "score", "instructions": "How?", "criteria": ["low", "high"]},
        },
    ),
    "systemone: no questions": call(
        "systemone", told(400, "questions"), model="talker", state="x", questions={}
    ),
    "create": call(
        "create", is_success, model="made", from_="talker", system="s", template="{{ .Prompt }}",
        license=["MIT", "BSD"], parameters={"top_k": 3, "stop": ["a"]}, stream=False,
        messages=[ollama.Message(role="user", content="hi")],
    ),
    "create: quantize": call(
        "create", told(400, "Q9"), model="made", from_="talker", quantize="Q9"
    ),
    "create: files": call(
        "create", told(404, "is missing"), model="made", files={"m.gguf": f"sha256:{'0' * 64}"}
    ),
    "create: adapters": call(
        "create", told(404, "is missing"), model="made", from_="talker",
        adapters={"a.gguf": f"sha256:{'0' * 64}"},
    ),
    "show": call(
        "show",
        lambda a: all((a.modified_at, a.template, a.modelfile, a.license == "MIT\nBSD", a.details,
                       a.modelinfo, "top_k" in a.parameters, a.capabilities == ["completion"])),
        model="made",
    ),
    "list": call(
        "list",
        lambda a: all((m.model, m.modified_at, m.size, m.digest, m.details.format == "gguf",
                       m.details.family, m.details.families, m.details.parameter_size,
                       m.details.quantization_level, m.details.parent_model == "")
                      for m in a.models) and len(a.models) > 3,
    ),
    "ps": call(
        "ps",
        lambda a: all((m.model, m.name, m.digest, m.expires_at, m.size, m.size_vram == 0,
                       m.details.family, m.context_length) for m in a.models) and a.models,
    ),
    "copy": call("copy", is_success, source="made", destination="second"),
    "delete": call("delete", is_success, model="second"),
    "delete: nothing": call("delete", told(404, "model 'nothing' not found"), model="nothing"),
    "pull": call(
        "pull", told(502, "cannot reach 127.0.0.1:1"), model="127.0.0.1:1/a/m", insecure=True,
        stream=False,
    ),
    "push": call("push", told(404, "not found"), model="nothing", insecure=True, stream=False),
}  # fmt: skip


@pytest.fixture(scope="module", params=["native", pytest.param("llamacpp", marks=pytest.mark.slow)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    more: dict[str, Any] = {"adds_space": False}  # llama.cpp has no forms for others
    write_scripted(folder / "talker.gguf", ["Hello", " there"], template=PLAIN, **more)
    write_scripted(folder / "filler.gguf", ["Hello", " there"], can_insert=True, **more)
    write_scripted(folder / "thinker.gguf", SAID, template=CHATML, **more)
    write_scripted(folder / "caller.gguf", [*SAID, CALL], template=CHATML, **more)
    home = tmp_path_factory.mktemp("home")
    server = start_server(folder, home, TAMPU_THREADS="1", TAMPU_ENGINE=request.param)
    yield server
    server.end()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_call(server: Server, call: Any) -> None:
    with ollama.Client(server.url, timeout=300) as client:
        try:
            answer = getattr(client, call.method)(**call.given)
        except ollama.ResponseError as error:
            answer = error
    assert call.holds(answer), repr(answer)


def test_the_asynchronous_client_sends_a_file_in_chunks(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"a blob" * 20_000)

    async def send() -> Any:
        async with ollama.AsyncClient(server.url, timeout=300) as client:
            return await client.create_blob(path)

    with ollama.Client(server.url, timeout=300) as client:
        assert asyncio.run(send()) == client.create_blob(path)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("generate", {"model": "talker", "prompt": "x"}),
        ("chat", {"model": "talker", "messages": USER}),
        ("create", {"model": "made", "from_": "talker"}),
        ("pull", {"model": "127.0.0.1:1/a/m", "insecure": True}),
    ],
)
def test_what_streams_streams(server: Server, method: str, given: dict[str, Any]) -> None:
    heard = []
    with ollama.Client(server.url, timeout=300) as client:
        try:
            heard.extend(getattr(client, method)(**given, stream=True))
        except ollama.ResponseError:
            assert method == "pull"
    assert heard


def test_no_field_of_the_package_is_left_out() -> None:
    methods = {name for name in vars(ollama.Client) if not name.startswith("_")}
    assert methods - ELSEWHERE - {"create_blob", "close"} == {
        call.method for call in CALLS.values()
    }
    for method in {call.method for call in CALLS.values()}:
        parameters = {*inspect.signature(getattr(ollama.Client, method)).parameters} - {"self"}
        used = {name for call in CALLS.values() if call.method == method for name in call.given}
        assert parameters - PICTURES - used == set(), method


def test_the_options_of_the_package_are_known() -> None:
    unknown = {*_types.Options.model_fields} - {*BY_OLLAMA}
    assert unknown == {"embedding_only"}  # Ollama has none any more either
