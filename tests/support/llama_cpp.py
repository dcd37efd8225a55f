"""llama.cpp in a process of its own: what it answers to texts of token ids."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tampu.backends.llamacpp.server import LlamaServer

_CONTEXT = 256
_CONTEXT_OF_PICTURES = 1024


def greedy(
    path: Path, prompt: Sequence[int], count: int, *, adapter: Path | None = None
) -> list[int]:
    """Return the best token again and again, as llama.cpp computes it, `count` times at most.

    It ends early where llama.cpp gives no token id: at an end of text or inside a character.
    """
    request = {
        "path": str(path),
        "prompt": list(prompt),
        "count": count,
        "adapter": str(adapter) if adapter else None,
    }
    found: list[int] = _asked(request)
    return found


def embeddings(path: Path, texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return llama.cpp's embeddings of texts, pooled as the file says, of length 1."""
    found: list[list[float]] = _asked({"path": str(path), "texts": [list(text) for text in texts]})
    return found


def last_logprobs(path: Path, text: Sequence[int], count: int) -> list[float]:
    """Return the natural log-probability of each of the last tokens of a text in llama.cpp."""
    found: list[float] = _asked({"path": str(path), "scored": list(text), "count": count})
    return found


def answers(path: Path, state: str, questions: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of a model that is made for decisions, by the questions' names."""
    found: dict[str, Any] = _asked({"path": str(path), "state": state, "questions": questions})
    return found


def heard(path: Path, projector: Path, sound: bytes, before: str, after: str) -> dict[int, float]:
    """Return the log-probabilities of all next tokens after a text with a sound in it.

    Args:
        path: of the text model.
        projector: of its mmproj file.
        sound: a WAV file; empty: the files are loaded only, and nothing is returned.
        before: the text before the sound.
        after: the text behind it.
    """
    return _perceived("audio", path, projector, sound, before, after)


def seen(path: Path, projector: Path, image: bytes, before: str, after: str) -> dict[int, float]:
    """Return the same after a text with a picture in it, given as an image file."""
    return _perceived("vision", path, projector, image, before, after)


def _perceived(
    modality: str, path: Path, projector: Path, file: bytes, before: str, after: str
) -> dict[int, float]:
    request = {
        "modality": modality,
        "path": str(path),
        "projector": str(projector),
        "file": base64.b64encode(file).decode(),
        "before": before,
        "after": after,
    }
    return {int(token): score for token, score in _asked(request).items()}


def embedded_sound(path: Path, projector: Path, sound: bytes) -> list[float]:
    """Return llama.cpp's embedding of a WAV file, of length 1; the files are as for `heard`."""
    given = base64.b64encode(sound).decode()
    asked = {"path": str(path), "projector": str(projector), "embedded": given}
    found: list[float] = _asked(asked)
    return found


def _asked(request: dict[str, Any]) -> Any:
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def _answer(path: str, prompt: list[int], count: int, adapter: str | None) -> list[int]:
    import xllamacpp

    parameters = _parameters(path)
    if adapter:
        parameters.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(adapter, 1.0)]
    server = xllamacpp.Server(parameters)
    found: list[int] = []
    for _ in range(count):
        request = {"prompt": [*prompt, *found], "n_predict": 1, "temperature": 0, "n_probs": 1}
        answer = server.handle_completions(request)
        entries = (answer["choices"][0].get("logprobs") or {}).get("content") or []
        if not entries:
            break
        found.append(entries[0]["top_logprobs"][0]["id"])
    return found


def _embedded(path: str, texts: list[list[int]]) -> list[list[float]]:
    import xllamacpp

    parameters = _parameters(path)
    parameters.embedding = True
    parameters.n_batch = parameters.n_ubatch = _CONTEXT
    server = xllamacpp.Server(parameters)
    answer = server.handle_embeddings({"input": texts})
    return [entry["embedding"] for entry in answer["data"]]


def _scored(path: str, scored: list[int], count: int) -> list[float]:
    import xllamacpp

    server = xllamacpp.Server(_parameters(path))
    found = []
    for end in range(len(scored) - count, len(scored)):
        request = {"prompt": scored[:end], "n_predict": 1, "temperature": 0, "n_probs": 1 << 20}
        answer = server.handle_completions(request)
        listed = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found.append(next(each["logprob"] for each in listed if each["id"] == scored[end]))
    return found


def _answered(path: str, state: str, questions: dict[str, Any]) -> Any:
    import xllamacpp

    parameters = _parameters(path)
    parameters.n_batch = parameters.n_ubatch = _CONTEXT
    server = xllamacpp.Server(parameters)
    return server.handle_systemone({"state": state, "questions": questions})["answers"]


def _next_scores(
    modality: str, path: str, projector: str, file: str, before: str, after: str
) -> dict[int, float]:
    with _perceiving(path, projector, modality) as (server, marker):
        if not file:
            return {}
        prompt = {"prompt_string": f"{before}{marker}{after}", "multimodal_data": [file]}
        request = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": 1 << 20}
        answer = server.request("/completion", request)
    assert "completion_probabilities" in answer, answer
    [token] = answer["completion_probabilities"]
    return {each["id"]: each["logprob"] for each in token["top_logprobs"]}


def _embedded_sound(path: str, projector: str, embedded: str) -> list[float]:
    with _perceiving(path, projector, embeds=True) as (server, marker):
        prompt = {"prompt_string": marker, "multimodal_data": [embedded]}
        answer = server.request("/v1/embeddings", {"input": [prompt]})
    assert "data" in answer, answer
    found: list[float] = answer["data"][0]["embedding"]
    return found


@contextmanager
def _perceiving(
    path: str, projector: str, modality: str = "audio", *, embeds: bool = False
) -> Iterator[tuple[LlamaServer, str]]:
    """Run a server with a projector; it comes with what stands for a file in a text."""
    import xllamacpp

    from tampu.backends.llamacpp.server import LlamaServer

    parameters = _parameters(path)
    parameters.mmproj.path, parameters.mmproj_use_gpu = projector, False
    parameters.api_keys = ["key"]
    parameters.n_ctx = _CONTEXT_OF_PICTURES if modality == "vision" else _CONTEXT
    if embeds:
        parameters.embedding = True
        parameters.n_batch = parameters.n_ubatch = _CONTEXT
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s.sock"
        parameters.hostnames = [str(socket)]
        running = xllamacpp.Server(parameters)
        # Its end may wait for its own thread forever, so it lives as long as this process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(running))
        if not embeds:
            running.handle_metrics()  # its loop has begun
        server = LlamaServer(socket, "key")
        facts = server.request("/props")
        assert facts["modalities"][modality], facts["modalities"]
        yield server, facts["media_marker"]


def _parameters(path: str) -> Any:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = _CONTEXT, 1, False
    parameters.cpuparams.n_threads = 1
    return parameters


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    kinds: dict[str, Callable[..., Any]] = {
        "texts": _embedded,
        "scored": _scored,
        "state": _answered,
        "modality": _next_scores,
        "embedded": _embedded_sound,
    }
    found = next((kinds[key] for key in kinds if key in asked), _answer)(**asked)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)
