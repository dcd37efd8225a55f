"""An answer that is generated again and again while others are at work, and must stay the same."""

from __future__ import annotations

import json
import threading

import httpx

CANARY = {
    "model": "canary",
    "prompt": "hello",
    "options": {"num_predict": 40, "temperature": 0, "seed": 1},
}


class Canary(threading.Thread):
    """Asks a server for the same answer again and again."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._ended = threading.Event()
        self.answers: list[str] = []
        self.faults: list[object] = []

    def has_not_changed(self) -> bool:
        return not self.faults and len(set(self.answers)) <= 1

    def __enter__(self) -> Canary:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(60)

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=300) as client:
            while not self._ended.wait(0.3):
                try:
                    with client.stream("POST", "/api/generate", json=CANARY) as response:
                        lines = [json.loads(line) for line in response.iter_lines()]
                    self.answers.append("".join(line["response"] for line in lines))
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self.faults.append(error)
