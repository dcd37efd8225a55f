"""Memory of a server's processes without the weights: `python -m benchmarks.memory [--models 3]`.

A server of its own loads the built-in model so many times under different names. Shown are, for the
server, the models' processes and the fork server with its children (docs/operations.md), how many
there are, their memory (each page divided by how many processes share it: PSS, as Linux counts it)
and the milliseconds from a chat to the first byte of its answer, warm and after a rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import time
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.server import first_byte, request, rest, server

REST_S = 35.0  # longer than an idle sandbox lives
ROLES = {"tampu.worker.entry": "models", "tampu.sandbox.fork_server": "fork server and sandboxes"}


def chat(name: str, **more: object) -> bytes:
    """Return a request for one token."""
    message = {"role": "user", "content": "hi"}
    body = {"model": name, "messages": [message], "keep_alive": -1, **more}
    return request("POST", "/api/chat", {**body, "options": {"num_predict": 1, "num_ctx": 512}})


async def ask(port: int, content: bytes) -> None:
    """Send a request, and read its whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    answer = b"".join(await rest(reader))
    writer.close()
    if b'"error"' in answer:
        raise SystemExit(json.loads(answer)["error"])


def shares(process: psutil.Process) -> dict[str, list[float]]:
    """Return the memory of each process of the server in MB, by its role."""
    found = defaultdict(list)
    for each in [process, *process.children(recursive=True)]:
        words = each.cmdline()
        role = next((role for word, role in ROLES.items() if word in words), "server")
        text = Path(f"/proc/{each.pid}/smaps_rollup").read_text(encoding="ascii")
        if size := re.search(r"^Pss:\s+(\d+) kB", text, re.M):
            found[role].append(int(size[1]) * 1024 / 1e6)
    return found


def show(when: str, process: psutil.Process) -> None:
    """Print the processes and their memory."""
    found = shares(process)
    total = sum(map(sum, found.values()))
    parts = ", ".join(f"{role} {sum(each):.0f} in {len(each)}" for role, each in found.items())
    print(f"{when}: {total:.0f} MB in {sum(map(len, found.values()))} processes ({parts})")


def wait(port: int, names: list[str], times: int) -> str:
    """Return the median time to the first byte of a chat in ms, over models and repetitions."""
    seconds = [
        second
        for name in names
        for second in asyncio.run(first_byte(port, chat(name), times))
    ]  # fmt: skip
    return f"{statistics.median(seconds) * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--rests", type=int, default=2)
    arguments = parser.parse_args()
    names = ["demo", *(f"demo-{number}" for number in range(1, arguments.models))]
    with server("demo", TAMPU_MAX_LOADED_MODELS=str(len(names))) as (process, port):
        show("no model", process)
        for number, name in enumerate(names):
            recipe = {"model": name, "from": "demo", "parameters": {"seed": number}}
            if number:
                asyncio.run(ask(port, request("POST", "/api/create", {**recipe, "stream": False})))
            asyncio.run(ask(port, chat(name, stream=False)))
        time.sleep(4)
        show("loaded", process)
        for name in names:
            asyncio.run(ask(port, chat(name, stream=False, format="json")))
        show("after a chat and a grammar each", process)
        print("first byte, warm:", wait(port, names, 15))
        for _ in range(arguments.rests):
            time.sleep(REST_S)
            show(f"after {REST_S:.0f} s", process)
            print("first byte, after that:", wait(port, names, 1))


if __name__ == "__main__":
    main()
