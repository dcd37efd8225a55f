"""API keys through the client packages: each passes its key in its own way, to use or to manage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from support.serving import Server, start_server

from tests.clients.questions import SUM

pytestmark = [pytest.mark.client, pytest.mark.server]

USE, MANAGE = "use-this-0123456789", "manage-all-0123456789"
ANSWERS = pytest.mark.parametrize("key", [USE, MANAGE])


@pytest.fixture(scope="module")
def locked(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    server = start_server(models, home, TAMPU_USE_API_KEY=USE, TAMPU_API_KEY=MANAGE)
    yield server
    server.end()


@contextmanager
def of_ollama(locked: Server, key: str) -> Iterator[ollama.Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = ollama.Client(locked.url, headers=headers)
    yield client
    client._client.close()


def of_openai(locked: Server, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0)


def of_anthropic(locked: Server, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=locked.url, api_key=key, max_retries=0)


@ANSWERS
def test_each_package_uses_models_with_its_key(locked: Server, key: Any) -> None:
    with of_openai(locked, key) as client:
        assert client.models.retrieve("demo").id == "demo"
        client.chat.completions.create(model="demo", messages=SUM, max_tokens=1)
    with of_anthropic(locked, key) as client:
        client.messages.create(model="demo", messages=SUM, max_tokens=1)
    with anthropic.Anthropic(base_url=locked.url, auth_token=key, max_retries=0) as client:
        assert client.messages.count_tokens(model="demo", messages=SUM).input_tokens > 0
    with of_ollama(locked, key) as client:
        assert client.generate("demo", "x", options={"num_predict": 1}).done


@pytest.mark.parametrize("key", ["wrong", USE[:-1], USE.upper()])
def test_each_package_reports_a_wrong_key(locked: Server, key: str) -> None:
    with of_openai(locked, key) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with of_anthropic(locked, key) as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model="demo", messages=SUM, max_tokens=1)
    for wrong in (key, ""):
        with of_ollama(locked, wrong) as client, pytest.raises(ollama.ResponseError) as caught:
            client.list()
        assert caught.value.status_code == 401


def test_only_a_key_to_manage_changes_which_models_there_are(locked: Server) -> None:
    with of_ollama(locked, MANAGE) as manager, of_ollama(locked, USE) as user:
        calls: tuple[Callable[[], object], ...] = (
            lambda: user.copy("tiny", "other"),
            lambda: user.create("other", from_="tiny", system="be brief"),
            lambda: user.delete("tiny"),
            lambda: user.pull("other"),
            lambda: user.push("other"),
        )
        for forbidden in calls:
            with pytest.raises(ollama.ResponseError) as caught:
                forbidden()
            assert caught.value.status_code == 403
        manager.create("made", from_="tiny", system="be brief")
        assert "made:latest" in [model.model for model in user.list().models]
        manager.delete("made")
