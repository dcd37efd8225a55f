"""One answer of llama-server with a kind of speculation: the child of `benchmarks.rewriting`.

It reads a `Question` as JSON from standard input and prints a `Measured`. It is a program of its
own that imports nothing of tampu, whose ggml would be taken for llama.cpp's.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from typing import Any

import msgspec

WARM_UP = [*range(1000, 1100)]


class Question(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        model: the path of its file.
        kind: of speculation, as llama.cpp's enumeration has it; "": none.
        settings: of the kind, that are not its defaults.
        threads: for all.
        context: tokens.
        prompt: token ids.
        tokens: of the answer.
    """

    model: str
    kind: str
    settings: dict[str, int]
    threads: int
    context: int
    prompt: list[int]
    tokens: int


class Measured(msgspec.Struct, frozen=True):
    """What one answer took.

    Attributes:
        whole_s: from the request to its end.
        generated_s: from the first token to the last.
        drafted: tokens that were guessed.
        accepted: how many guesses were right.
        tokens: of the answer.
    """

    whole_s: float
    generated_s: float
    drafted: int
    accepted: int
    tokens: list[int]

    @property
    def speed(self) -> float:
        """Tokens a second after the first one."""
        return (len(self.tokens) - 1) / self.generated_s


def measure(question: Question) -> Measured:
    """Load a model, answer a short request, and measure the answer."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = question.model
    parameters.n_ctx, parameters.n_parallel = question.context, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = question.threads
    parameters.verbosity = -1
    if question.kind:
        name = f"COMMON_SPECULATIVE_TYPE_{question.kind.upper()}"
        parameters.speculative.types = [xllamacpp.common_speculative_type[name]]
        group = getattr(parameters.speculative, question.kind)
        for setting, value in question.settings.items():
            setattr(group, setting, value)
    server = xllamacpp.Server(parameters)
    host = server.listening_address.removeprefix("http://")
    _asked(host, WARM_UP, 8)
    began = time.perf_counter()
    answer = _asked(host, question.prompt, question.tokens)
    whole_s = time.perf_counter() - began
    timings = answer["timings"]
    return Measured(
        whole_s,
        timings["predicted_ms"] / 1e3,
        timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0),
        answer["tokens"],
    )


def _asked(host: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Return llama-server's answer to a prompt."""
    request = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    connection = http.client.HTTPConnection(host, timeout=600)
    connection.request("POST", "/completion", json.dumps(request))
    answer: dict[str, Any] = json.load(connection.getresponse())
    connection.close()
    return answer


if __name__ == "__main__":
    found = measure(msgspec.json.decode(sys.stdin.read(), type=Question))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)  # the end of llama.cpp's server may wait for its own thread forever
