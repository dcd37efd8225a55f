"""The `ollama` package in JavaScript against a server; `make` installs it with npm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.serving import Server

pytestmark = [pytest.mark.client, pytest.mark.server]

FOLDER = Path(__file__).parent / "javascript"


@pytest.fixture(scope="module")
def heard(server: Server) -> Any:
    """What the script has heard from a server with each engine."""
    node = Path(sys.executable).with_name("node")
    command: list[Any] = [node, "client.js", server.url]
    outcome = subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def test_questions_are_answered_whole_and_in_pieces(heard: dict[str, Any]) -> None:
    assert heard["answer"] == "85"
    assert "".join(heard["pieces"]) == "85"
    assert heard["last"]["done_reason"] == "stop"
    assert heard["generated"]["eval_count"] == 8


def test_functions_are_called_and_forms_are_kept(heard: dict[str, Any]) -> None:
    [call] = heard["calls"]
    assert call["function"] == {"name": "get_weather", "arguments": {"city": "Cairo"}, "index": 0}
    assert json.loads(heard["person"]) == {"name": "Kevin", "job": "driver"}


def test_texts_are_embedded(heard: dict[str, Any]) -> None:
    one, other = heard["embeddings"]
    assert len(one) == len(other) > 8
    assert one != other


def test_models_are_listed_made_and_deleted(heard: dict[str, Any]) -> None:
    assert {"demo:latest", "tiny:latest"} <= set(heard["names"])
    assert "tools" in heard["capabilities"]
    assert "demo:latest" in heard["loaded"]
    assert heard["created"][-1] == "success"
    assert "Be kind." in heard["second"]


def test_an_answer_can_be_broken_off(heard: dict[str, Any]) -> None:
    assert heard["aborted"] == "AbortError"


NOT_FOUND = (
    "model 'nothing' not found; `tampu list` shows the models, `tampu pull nothing` downloads one"
)


def test_errors_carry_their_status(heard: dict[str, Any]) -> None:
    assert heard["error"] == {"status": 404, "message": NOT_FOUND}


def test_the_other_fields_have_their_effect(heard: dict[str, Any]) -> None:
    fields = heard["fields"]
    assert fields["version"].startswith("0.")
    assert len(fields["embedding"]) > len(fields["cut"]) == 8
    assert [len(score["top_logprobs"]) for score in fields["scored"]["logprobs"]] == [2, 2, 2]
    context = fields["scored"]["context"]
    assert fields["continued"]["prompt_eval_count"] > len(context) > 3
    assert "context" not in fields["raw"]
    assert fields["form"] in ("1", "2")
    assert fields["unloaded"] == "unload"


def test_invalid_requests_are_refused(heard: dict[str, Any]) -> None:
    assert heard["refused"] == {
        "suffix": 400, "template": 400, "think": 400, "images": 400, "pull": 502, "push": 404,
        "create": 400,
    }  # fmt: skip
