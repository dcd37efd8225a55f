"""The entry point of a worker process: `python -m tampu.worker.main --socket FD`."""

from __future__ import annotations

import ctypes
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil

from tampu.chat.template_loader import model_template
from tampu.engine.chat import RequestBuilder
from tampu.engine.engine import Engine
from tampu.engine.fit import free_on
from tampu.engine.load_options import LLAMACPP
from tampu.engine.pooling import NONE, pooling_of
from tampu.errors import RequestError
from tampu.gguf_compat import read_model
from tampu.ml.devices import find_devices
from tampu.ml.library import loaded_backends
from tampu.ml.termination import explain_termination
from tampu.sandbox import confinement
from tampu.sandbox.client import ForkServerClient
from tampu.tokenizer import Tokenizer
from tampu.tokenizer.loading import load_tokenizer
from tampu.worker.held_prefixes import HeldPrefixes
from tampu.worker.loaded import Loaded
from tampu.worker.protocol import Load, Ready
from tampu.worker.sent_paths import received_options, received_path
from tampu.worker.worker import Worker

_SWITCH_SECONDS = 0.0005  # a thread that prepares a request gives way to the others this soon
_OOM_SCORE = 500
_AF_NETLINK = 16  # drivers find devices through it; it does not reach a network

# Larger than the logits of a large vocabulary, which are allocated for each token.
_LARGE_BLOCK_BYTES = 520 * 1024
_ARENAS = 2  # almost all that allocates has Python's lock


def confine() -> None:
    """End this process with its parent, and forbid what it does not need."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    confinement.end_with_parent(signal.SIGKILL)
    confinement.set_no_new_privileges()
    confinement.set_oom_score(_OOM_SCORE)
    confinement.forbid(confinement.MACHINE, families=(socket.AF_UNIX, _AF_NETLINK))
    _limit_fragmentation()


def _limit_fragmentation() -> None:
    """Let glibc return large freed blocks to the system, and keep the others in few arenas.

    By default it keeps larger and larger blocks for reuse. Graphs have hundreds of sizes, and the
    fragmentation made the process two to three times as large within an hour. Also by default it
    has up to eight arenas per core, each of which keeps what its threads have freed and no
    thread of another arena may use it: these grew for hours.
    """
    mmap_threshold, arena_max, library = -3, -8, ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(mmap_threshold, _LARGE_BLOCK_BYTES)
        library.mallopt(arena_max, _ARENAS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one model until the socket closes."""
    import argparse  # `load_model` is used without it too

    parser = argparse.ArgumentParser(description="Run one model for a tampu server.")
    parser.add_argument("--socket", type=int, required=True, help="descriptor of a stream socket")
    parser.add_argument(
        "--fork-server", type=int, help="descriptor of a channel to the server's fork server"
    )
    options = parser.parse_args(arguments)
    loaded_backends()  # what they start may do more than this process after `confine`
    confine()
    explain_termination()
    sys.setswitchinterval(_SWITCH_SECONDS)
    fork_server = ForkServerClient()
    if options.fork_server is not None:
        fork_server.attach(socket.socket(fileno=options.fork_server))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=options.socket) as connection:
        Worker(connection, partial(load_model, fork_server=fork_server)).run()


@contextmanager
def load_model(
    load: Load,
    progress: Callable[[float], None],
    cancelled: Callable[[], bool],
    fork_server: ForkServerClient,
) -> Iterator[Loaded]:
    """Load the model of a load command; it is closed at the end.

    Raises:
        TampuError: if the model cannot be loaded.
    """
    load = Load(received_path(load.path), received_options(load.options))
    if load.options.vocabulary_only:
        yield load_vocabulary(load, fork_server)
    elif load.options.engine == LLAMACPP:
        from tampu.backends.llamacpp import load_llamacpp  # slow to import and rarely needed

        with load_llamacpp(Path(load.path), load.options, fork_server) as (model, requests):
            memory_bytes, slots = psutil.Process().memory_info().rss, load.options.max_slots
            ready = Ready(model.context, memory_bytes, engine=LLAMACPP, slots=slots)
            yield Loaded(model, requests, ready)
    else:
        with Engine.load(
            load.path,
            load.options,
            progress=progress,
            cancelled=cancelled,
            fork_server=fork_server,
        ) as engine:
            memory_bytes = psutil.Process().memory_info().rss + engine.device_bytes
            ready = Ready(
                engine.context,
                memory_bytes,
                engine.device_bytes,
                device_free=free_on(find_devices()),
                slots=engine.slots,
                slot_bytes=engine.slot_bytes,
                has_pooling=pooling_of(engine.info.metadata, load.options.pooling) != NONE,
                placement=engine.placement,
            )
            runner = engine.runner
            yield Loaded(
                engine,
                engine.requests,
                ready,
                runner.observe,
                lambda: runner.stats.counts,
                HeldPrefixes(runner.count_cached),
            )


@dataclass(frozen=True, slots=True)
class VocabularyOnly:
    """A model without its weights."""

    tokenizer: Tokenizer
    context: int = 2**31  # no limit

    def prepare_file(self, _: bytes) -> NoReturn:
        """Refuse an image: only the vision encoder knows how many inputs it takes."""
        raise RequestError("images need the model's weights, and it was loaded without them")

    def submit(self, *_: object) -> NoReturn:
        """Refuse: nothing can be computed."""
        raise RequestError("this model was loaded without its weights")

    def embed(self, *_: object, **_more: object) -> NoReturn:
        """Refuse: nothing can be computed."""
        raise RequestError("this model was loaded without its weights")

    def loglikelihood(self, *_: object, **_more: object) -> NoReturn:
        """Refuse: nothing can be computed."""
        raise RequestError("this model was loaded without its weights")

    def rank(self, *_: object) -> NoReturn:
        """Refuse: nothing can be computed."""
        raise RequestError("this model was loaded without its weights")

    def warm_up(self) -> None:
        """Do nothing."""

    def hang_reason(self, _: float) -> str:
        """Return "": nothing runs."""
        return ""


def load_vocabulary(load: Load, fork_server: ForkServerClient) -> Loaded:
    """Load a model's tokenizer and template alone.

    Raises:
        TampuError: if the file is damaged.
    """
    metadata = read_model(load.path).metadata
    tokenizer = load_tokenizer(metadata)
    template = model_template(metadata, load.options.template)
    model = VocabularyOnly(tokenizer)
    requests = RequestBuilder.for_model(model, template, metadata, fork_server, load.options.parser)
    return Loaded(model, requests, Ready(0, psutil.Process().memory_info().rss))


if __name__ == "__main__":
    main()
