"""One server for all statements, with models that say what the statements are about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.chat_templates import CHATML
from support.scripted import write_scripted
from support.serving import Server, start_server
from support.tiny_model import Tiny, tiny_weights, write_tiny

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
CALL = '<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'
EFFORTS = PLAIN + (
    "{% if reasoning_effort is defined %}({{ reasoning_effort }}){% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% else %}<think>{% endif %}"
)


@pytest.fixture(scope="session")
def contract_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    said = ["Hello", ",", " world", "."]
    write_scripted(folder / "talker.gguf", said, template=PLAIN)
    write_scripted(folder / "filler.gguf", said, template=PLAIN, can_insert=True)
    write_scripted(folder / "brief.gguf", said, template=PLAIN, context=128)
    thoughts = ["<think>", "Let me", " see.", "</think>", "It is", " four."]
    write_scripted(folder / "thinker.gguf", thoughts, template=CHATML)
    write_scripted(folder / "caller.gguf", [*thoughts, CALL], template=CHATML)
    pair = [CALL, CALL.replace("add", "sub")]
    write_scripted(folder / "pair.gguf", pair, template=CHATML)
    named = CALL.replace("add", "crm__find")
    write_scripted(folder / "namespaced.gguf", [named], template=CHATML)
    written = ["Ok.", "<tool_call>", '{"name":', ' "add",', ' "arguments":', ' {"b":', " 2,",
               ' "a":', " [1,", " 3]", "}", "} ", "</tool_call>"]  # fmt: skip
    write_scripted(folder / "writer.gguf", written, template=CHATML)
    tried = ["Hm", ".", "</think>", "Yes", "."]
    write_scripted(folder / "tryer.gguf", tried, template=EFFORTS)
    write_scripted(folder / "endless.gguf", [" la", " li", " lo"], repeats=3, template=PLAIN)
    write_scripted(folder / "short.gguf", [" la", " li"], repeats=2, template=PLAIN, context=64)
    write_scripted(folder / "looper.gguf", ["Well", "!", " la"], repeats=1, template=PLAIN)
    write_tiny(folder / "embedder.gguf", Tiny(context=64), pooling=1)
    head = np.random.default_rng(0).normal(size=(1, Tiny().embedding)).astype(np.float32)
    weights = tiny_weights(Tiny()) | {"cls.output.weight": head}
    write_tiny(folder / "ranker.gguf", Tiny(context=512), weights=weights, pooling=4)
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    return folder


@pytest.fixture(scope="session")
def contract_server(
    contract_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    # Nothing listens at port 1: what is pulled without a host fails at once.
    server = start_server(
        contract_models,
        home,
        TAMPU_THREADS="1",
        TAMPU_REGISTRY="127.0.0.1:1",
        TAMPU_NUM_GPU="0",
        TAMPU_MAX_LOADED_MODELS="16",
    )
    yield server
    server.end()


@pytest.fixture(scope="session")
def client(contract_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=contract_server.url, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def longest_contexts() -> dict[str, int]:
    """How long the context of each model is unless a request asks for a shorter one, as found."""
    return {}


@pytest.fixture(autouse=True)
def whole_contexts(request: pytest.FixtureRequest) -> Iterator[None]:
    """A model that a test loads with a shorter context does not stay loaded for the next one."""
    if "contract_server" not in request.fixturenames:
        yield
        return
    client: httpx.Client = request.getfixturevalue("client")
    longest: dict[str, int] = request.getfixturevalue("longest_contexts")
    yield
    for loaded in client.get("/api/ps").json()["models"]:
        name = loaded["name"]
        if name not in longest:
            info = client.post("/api/show", json={"model": name}).json()["model_info"]
            longest[name] = info[f"{info['general.architecture']}.context_length"]
        if loaded["context_length"] < longest[name]:
            client.post("/api/generate", json={"model": name, "keep_alive": 0})
