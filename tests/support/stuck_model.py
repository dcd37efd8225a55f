"""A model's process whose device hangs at its tenth step: `python stuck_model.py --socket FD`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import Any

from tampu.engine.native import NativeModel
from tampu.sandbox.client import ForkServerClient
from tampu.worker.main import load_model
from tampu.worker.worker import Worker


@contextmanager
def load_stuck(load: Any, progress: Any, cancelled: Any) -> Iterator[Any]:
    with load_model(load, progress, cancelled, ForkServerClient()) as model:
        assert isinstance(model, NativeModel)
        graphs, steps = model.runner.graphs, count()
        launch = graphs.launch
        graphs.launch = lambda prepared: launch(prepared) if next(steps) < 10 else Future()
        yield model


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[-1])) as connection:
        Worker(connection, load_stuck).run()
