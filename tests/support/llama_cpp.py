"""llama.cpp in a process of its own: its greedy continuation of a text of token ids."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CONTEXT = 256


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
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _answer(path: str, prompt: list[int], count: int, adapter: str | None) -> list[int]:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = _CONTEXT, 1, False
    parameters.cpuparams.n_threads = 1
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


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_answer(**json.load(sys.stdin))) + "\n")
