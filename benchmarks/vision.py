"""Time to the first token of an answer about an image: `python -m benchmarks.vision`.

    python -m benchmarks.gemma OUT
    python -m benchmarks.vision OUT [--peers library,server] [--library DIR/libmtmd.so]

tampu's engine beside llama.cpp with the same two files: its library libmtmd built for the machine,
and the server of the `xllamacpp` wheel. Each engine has a process of its own; they take turns, the
others idle. A round is a conversation about a picture that was not seen before: its first question,
from the bytes of a PNG file to the first token, and the second, for which nothing is encoded again.

This module imports nothing of tampu: its ggml, once loaded, would compute llama.cpp's graphs too.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
from PIL import Image

TEXT_FILE, TOWER_FILE = "gemma-4b-Q4_K_M.gguf", "gemma-4b-mmproj-F16.gguf"
CONTEXT = 2048
SIZE = (800, 600)
QUESTIONS = ("bade badeki bado kileti sopa", "tapi rugo bade")


class Conversation(Protocol):
    """An engine with one conversation."""

    def ask(self, question: str, picture: bytes | None) -> float:
        """Return the seconds to the first token; an image starts a new conversation."""
        ...


class Tampu:
    """tampu's engine in this process."""

    def __init__(self, out: Path, threads: int) -> None:
        from tampu.engine.engine import Engine

        self.engine = Engine.load(
            out / TEXT_FILE, projector=out / TOWER_FILE, context=CONTEXT, threads=threads
        )
        self.messages: list[dict[str, Any]] = []

    def ask(self, question: str, picture: bytes | None) -> float:
        """Ask through the engine's chat."""
        message: dict[str, Any] = {"role": "user", "content": question}
        if picture:
            self.messages = []
            message["images"] = [picture]
        self.messages.append(message)
        began = time.perf_counter()
        answer = self.engine.chat(self.messages, max_tokens=1, ignore_eos=True, temperature=0.0)
        seconds = time.perf_counter() - began
        self.messages.append({"role": "assistant", "content": answer.text})
        return seconds


def longest_gap(out: Path, threads: int) -> float:
    """Return the longest time between two tokens of an answer while an image is encoded."""
    from tampu.engine.engine import Engine
    from tampu.runner.events import TextDelta

    model, tower = out / TEXT_FILE, out / TOWER_FILE
    with Engine.load(model, projector=tower, context=CONTEXT, threads=threads, slots=2) as engine:
        times: list[float] = []
        message = {"role": "user", "content": QUESTIONS[0], "images": [picture(0)]}
        asked = threading.Thread(target=engine.chat, args=([message],), kwargs={"max_tokens": 1})
        for event in engine.stream(QUESTIONS[1], max_tokens=CONTEXT, ignore_eos=True):
            times += [time.perf_counter()] if isinstance(event, TextDelta) else []
            if len(times) == 1:
                asked.start()
            if len(times) > 1 and not asked.is_alive():
                break
        asked.join()
    return max(later - earlier for earlier, later in pairwise(times))


class Library:
    """llama.cpp's library in this process, with prompts as the template renders them."""

    def __init__(self, out: Path, threads: int, library: Path) -> None:
        from benchmarks.mtmd import Mtmd

        self.model = Mtmd(library, out / TEXT_FILE, out / TOWER_FILE, threads, CONTEXT)

    def ask(self, question: str, picture: bytes | None) -> float:
        """Process the new part of the prompt."""
        began = time.perf_counter()
        if picture:
            self.model.forget()
        before = "" if picture else "bade<end_of_turn>\n"
        shown = self.model.marker if picture else ""
        turn = f"<start_of_turn>user\n{shown}{question}<end_of_turn>\n<start_of_turn>model\n"
        self.model.read(before + turn, picture)
        return time.perf_counter() - began


class Server:
    """llama.cpp's server in this process, asked through HTTP."""

    def __init__(self, out: Path, threads: int) -> None:
        import xllamacpp

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(out / TEXT_FILE)
        parameters.mmproj.path = str(out / TOWER_FILE)
        parameters.n_ctx = CONTEXT
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = threads
        parameters.cpuparams_batch.n_threads = threads
        parameters.verbosity = -1
        parameters.warmup = False
        self.server = xllamacpp.Server(parameters)
        self.host = self.server.listening_address.removeprefix("http://")
        self.messages: list[dict[str, Any]] = []

    def ask(self, question: str, picture: bytes | None) -> float:
        """Ask through the server's chat."""
        parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
        if picture:
            self.messages = []
            url = "data:image/png;base64," + base64.b64encode(picture).decode()
            parts.insert(0, {"type": "image_url", "image_url": {"url": url}})
        self.messages.append({"role": "user", "content": parts})
        body = {"messages": self.messages, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        began = time.perf_counter()
        connection = http.client.HTTPConnection(self.host, timeout=600)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
        seconds = time.perf_counter() - began
        connection.close()
        text = answer["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": text})
        return seconds


def picture(seed: int) -> bytes:
    """Return a PNG file of squares in random colors."""
    colours = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(colours).resize(SIZE, Image.Resampling.NEAREST).save(stream, "PNG")
    return stream.getvalue()


def serve(kind: str, out: Path, threads: int, library: Path) -> None:
    """Answer the seeds on standard input with the seconds of both turns; the child's main."""
    engine: Conversation
    if kind == "tampu":
        engine = Tampu(out, threads)
    elif kind == "library":
        engine = Library(out, threads, library)
    else:
        engine = Server(out, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        first = engine.ask(QUESTIONS[0], picture(int(line)))
        print(json.dumps([first, engine.ask(QUESTIONS[1], None)]), flush=True)


class Child:
    """An engine in a separate process."""

    def __init__(
        self, kind: str, arguments: argparse.Namespace, module: str, more: Sequence[str] = ()
    ) -> None:
        command = [sys.executable, "-m", module, str(arguments.out), "--serve", kind]
        command += ["--threads", str(arguments.threads), "--library", str(arguments.library), *more]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._line() != "ready":
            raise SystemExit(f"{kind} did not start")

    def seconds(self, seed: int) -> list[float]:
        """Return what its `serve` measures with this seed."""
        if self.process.stdin is None:
            raise SystemExit("the engine is closed")
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        return [float(each) for each in json.loads(self._line())]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _line(self) -> str:
        return self.process.stdout.readline().strip() if self.process.stdout else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("out", type=Path, help="the folder that benchmarks.gemma filled")
    parser.add_argument("--peers", default="library,server", help="library, server, or both")
    parser.add_argument("--library", type=Path, default=Path("libmtmd.so"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=["tampu", "library", "server"], help=argparse.SUPPRESS)
    parser.add_argument("--gap", action="store_true", help="what an answer waits, tampu alone")
    arguments = parser.parse_args()
    if arguments.gap:
        print(f"longest gap: {longest_gap(arguments.out, arguments.threads):.2f} s")
        return
    if arguments.serve:
        serve(arguments.serve, arguments.out, arguments.threads, arguments.library)
        return
    kinds = ["tampu", *(kind for kind in arguments.peers.split(",") if kind)]
    children = {kind: Child(kind, arguments, "benchmarks.vision") for kind in kinds}
    rounds: list[dict[str, list[float]]] = []
    try:
        for seed in range(1, arguments.rounds + 1):
            rounds.append({kind: child.seconds(seed) for kind, child in children.items()})
            print(f"round {seed}: {rounds[-1]}", file=sys.stderr)
    finally:
        for child in children.values():
            child.close()
    print("| engine | first turn | second turn | first / second | first, against tampu's |")
    print("|---|---|---|---|---|")
    for kind in kinds:
        first, second = (median(each[kind][turn] for each in rounds) for turn in (0, 1))
        share = median(each[kind][0] / each["tampu"][0] for each in rounds)
        print(f"| {kind} | {first:.2f} s | {second:.2f} s | {first / second:.1f} | {share:.2f} |")


if __name__ == "__main__":
    main()
