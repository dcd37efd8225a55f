"""One start of an engine in a fresh process: `python -m benchmarks.start tampu|llama.cpp MODEL`.

It loads the model with a context of 4096 tokens, says what memory it has, draws one token from a
short prompt and says so again; whoever started it takes the time of each line. llama.cpp is the
server engine of the xllamacpp wheel, called in-process, without its warm-up run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import psutil

CONTEXT = 4096
PROMPT = "Tell me about the way"


def start_tampu(model: Path, threads: int) -> Callable[[], object]:
    from tampu.engine.engine import Engine

    engine = Engine.load(model, context=CONTEXT, threads=threads)
    return lambda: engine.generate(PROMPT, max_tokens=1, temperature=0.0)


def start_llama_cpp(model: Path, threads: int) -> Callable[[], object]:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.warmup = False
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)
    request = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0.0}
    return lambda: server.handle_completions(request)


def report(stage: str) -> None:
    memory = psutil.Process().memory_info()
    own = memory.rss - memory.shared  # what isn't a page of the model's file
    line = {"stage": stage, "resident_bytes": memory.rss, "own_bytes": own}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["tampu", "llama.cpp"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    begin = start_tampu if arguments.engine == "tampu" else start_llama_cpp
    draw = begin(arguments.model, arguments.threads)
    report("loaded")
    draw()
    report("first token")


if __name__ == "__main__":
    main()
