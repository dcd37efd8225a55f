"""A worker process: loads one model and serves it until its socket closes."""

from __future__ import annotations

import ctypes
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil

from tampu.chat.template_loader import model_template
from tampu.engine.backend import Backend, ModelFacts
from tampu.engine.engine import Engine
from tampu.engine.handlers import VOCABULARY
from tampu.engine.load_options import LLAMACPP, LoadOptions
from tampu.engine.request_builder import RequestBuilder
from tampu.engine.sent_paths import received_options, received_path
from tampu.errors import RequestError
from tampu.gguf_compat import read_model
from tampu.ml.library import loaded_backends
from tampu.ml.termination import explain_termination
from tampu.sandbox import confinement
from tampu.sandbox.client import ForkServerClient
from tampu.tokenizer.loading import load_tokenizer
from tampu.worker.protocol import Load
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
    mmap_threshold, arena_max = -3, -8
    with suppress(AttributeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, _LARGE_BLOCK_BYTES)
        mallopt(arena_max, _ARENAS)


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
) -> Iterator[Backend]:
    """Load the model of a load command; it is closed at the end.

    Raises:
        TampuError: if the model cannot be loaded.
    """
    path, options = received_path(load.path), received_options(load.options)
    if options.vocabulary_only:
        yield VocabularyOnly(path, options, fork_server)
    elif options.engine == LLAMACPP:
        from tampu.backends.llamacpp import load_llamacpp  # slow to import and rarely needed

        with load_llamacpp(Path(path), options, fork_server) as model:
            yield model
    else:
        with Engine.load(
            path, options, progress=progress, cancelled=cancelled, fork_server=fork_server
        ) as engine:
            yield engine


class VocabularyOnly(Backend):
    """The tokenizer and the template of a model, without its weights."""

    handlers = VOCABULARY
    unsupported = "this model was loaded without its weights"

    def __init__(self, path: str, options: LoadOptions, fork_server: ForkServerClient) -> None:
        """Load them.

        Raises:
            TampuError: if the file is damaged.
        """
        metadata = read_model(path).metadata
        template = model_template(metadata, options.template)
        self.requests = RequestBuilder.for_model(
            load_tokenizer(metadata),
            2**31,  # no limit
            _refuse_file,
            template,
            metadata,
            fork_server,
            options.parser,
        )
        self._facts = ModelFacts(0, psutil.Process().memory_info().rss)

    @property
    def facts(self) -> ModelFacts:
        """What is known of it."""
        return self._facts


def _refuse_file(_: bytes) -> NoReturn:
    """Refuse a file: only its encoder knows how many inputs it takes."""
    raise RequestError("images and sounds need the model's weights, and it was loaded without them")
