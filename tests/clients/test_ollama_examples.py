"""The examples of the `ollama` package in Python, unchanged, against a server with either engine.

The built-in model stands for the models that they name; `gemma4` is pulled from a registry on this
machine. `make server-test` gets the examples (tools/setup/ollama_examples.sh).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ollama
import pytest
from support import run_examples
from support.registries import DockerRegistry
from support.serving import Server, start_server

from tests.clients.questions import picture

pytestmark = [pytest.mark.client, pytest.mark.server, pytest.mark.slow]

FOLDER = Path(sys.prefix) / "ollama-examples" / version("ollama")
CERTIFICATE = Path(run_examples.__file__).with_name("self_signed.pem")
PLAIN = ("gemma4", "llama3.1", "llama3.1:8b", "llama3.2", "nimble")
THINKERS = ("deepseek-r1", "qwen3", "gpt-oss:20b")
# What each has to print, among other things.
EXAMPLES = {
    "async-chat": "",
    "async-generate": "",
    "async-tools": "Prompt:",
    "chat": "",
    "chat-logprobs": "logprob",
    "chat-stream": "",
    "create": "success",
    "embed": "[[",
    "fill-in-middle": "",
    "generate": "",
    "generate-logprobs": "logprob",
    "generate-stream": "",
    "gpt-oss-tools": "",
    "gpt-oss-tools-stream": "",
    "list": "Name: gemma4:latest",
    "multi-tool": "",
    "ps": "Model:  gemma4:latest",
    "pull": "success",
    "show": "Capabilities:",
    "systemone": "'team'",
    "thinking": "Thinking:",
    "thinking-generate": "Thinking:",
    "thinking-levels": "Response",
    "tools": "Prompt:",
}
# So small a model writes lists without end: what they read is cut, or it is what they ask for.
LISTING = {"async-structured-outputs": "name=", "structured-outputs": "name="}
SEEING = {"multimodal-chat": "", "structured-outputs-image": "summary="}
# Asks for ever; it has been asked once when its input ends.
ASKING = {"chat-with-history": "EOFError: EOF when reading a line"}
# Other machines, macOS, or a later server are needed: what else they ask of the API others do too.
ELSEWHERE = {
    "generate-image", "multimodal-generate", "web-search", "web-search-gpt-oss",
    "web-search-mcp", "web_search_gpt_oss_helper",
}  # fmt: skip
MISSING = (
    "the examples are not in .venv: `make server-test` gets them (tools/setup/ollama_examples.sh)"
)


@pytest.fixture(scope="module")
def local_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    registry = DockerRegistry(tmp_path_factory.mktemp("registry"), certificate=CERTIFICATE)
    yield registry
    registry.close()


@pytest.fixture(scope="module", params=["native", "llamacpp"])
def outcomes(
    request: pytest.FixtureRequest,
    local_registry: DockerRegistry,
    models: Path,
    models_of_llamacpp: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """What the examples printed."""
    assert FOLDER.is_dir(), MISSING
    engine = request.param
    folder = models if engine == "native" else models_of_llamacpp
    home = tmp_path_factory.mktemp("home")
    server = start_server(
        folder,
        home,
        TAMPU_ENGINE=engine,
        TAMPU_REGISTRY=local_registry.host.replace("127.0.0.1", "localhost"),
        SSL_CERT_FILE=str(CERTIFICATE),
    )
    try:
        with ollama.Client(server.url, timeout=300) as client:
            make_models(client)
        image = home / "picture.png"
        image.write_bytes(picture())
        names = [*EXAMPLES, *LISTING, *ASKING, *SEEING]
        yield run(server, image, names)
    finally:
        server.end()


def make_models(client: Any) -> None:
    """Make the models that the examples name, of the built-in one."""
    short = {"num_predict": 60, "temperature": 0, "repeat_last_n": -1}
    for name in PLAIN:
        client.create(name, from_="demo", parameters=short)
    thinking = client.show("demo").template + "<think>\n{# </think> #}"
    for name in THINKERS:
        client.create(name, from_="demo", template=thinking, parameters=short)
    client.create("codellama:7b-code", from_="demo", template="{{ .Prompt }}{{ .Suffix }}")
    assert client.push("gemma4").status == "success"


def run(server: Server, image: Path, names: list[str]) -> Any:
    programs = [str(FOLDER / f"{name}.py") for name in names]
    outcome = subprocess.run(
        [sys.executable, run_examples.__file__, f"{image}\n", *programs],
        env=os.environ | {"OLLAMA_HOST": server.url},  # noqa: TID251
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_no_example_is_forgotten() -> None:
    assert FOLDER.is_dir(), MISSING
    assert {path.stem for path in FOLDER.glob("*.py")} == {
        *EXAMPLES, *LISTING, *SEEING, *ASKING, *ELSEWHERE
    }  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_unchanged(outcomes: Any, name: str) -> None:
    assert outcomes[name]["error"] == ""
    assert outcomes[name]["printed"].strip()
    assert EXAMPLES[name] in outcomes[name]["printed"]


def test_examples_with_schemas_and_images_run_unchanged(outcomes: Any) -> None:
    expected = LISTING | SEEING
    for name in expected:
        error, printed = outcomes[name]["error"], outcomes[name]["printed"]
        assert "EOF while parsing" in error or expected[name] in printed, error


def test_an_example_that_asks_for_ever_is_answered_until_its_input_ends(outcomes: Any) -> None:
    for name, error in ASKING.items():
        assert outcomes[name]["error"] == error
        assert outcomes[name]["printed"].count("\n") >= 2
