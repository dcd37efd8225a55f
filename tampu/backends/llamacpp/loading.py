"""Loads a model file, its projector and its adapters into llama.cpp."""

from __future__ import annotations

import logging
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from tampu.backends.llamacpp.files import LlamaFiles, llama_files
from tampu.backends.llamacpp.load_error import load_error
from tampu.backends.llamacpp.mmproj import MultimodalProjector
from tampu.backends.llamacpp.model import LlamaImages, LlamaModel
from tampu.backends.llamacpp.server import LlamaServer
from tampu.backends.llamacpp.structured_output import StructuredOutputs
from tampu.chat.template_loader import model_template
from tampu.engine.load_options import DEFAULT_BATCH, LoadOptions
from tampu.engine.pooling import RANK, pooling_of
from tampu.engine.request_builder import RequestBuilder
from tampu.errors import RequestError, UnsupportedModelError
from tampu.gguf_compat import as_llama_cpp
from tampu.ml.gguf import GGUFFile, read_gguf
from tampu.ml.metadata import Metadata
from tampu.models import architectures, check_text
from tampu.nn.lora import check_adapter
from tampu.sampling.constraint import Constraints
from tampu.sandbox.client import ForkServerClient
from tampu.tokenizer.loading import load_tokenizer
from tampu.vision.sandboxed import SandboxedDecoder

log = logging.getLogger("tampu")

_ERRORS = 1  # a verbosity of llama.cpp; -1 is nothing
_MIN_BATCH = 32  # llama.cpp aborts if the batch is smaller than the number of sequences


@contextmanager
def load_llamacpp(
    path: Path, options: LoadOptions, fork_server: ForkServerClient
) -> Iterator[LlamaModel]:
    """Load a model into llama.cpp; it is freed at the end.

    Raises:
        UnsupportedModelError: if the wheel is not installed, or llama.cpp does not have the
            architecture either, and for a file without a text model.
        ModelFileError: for a damaged file, and an adapter of another architecture.
        OutOfMemoryError: if the memory is too small.
        DiskFullError: if the file must be copied and the copy does not fit.
    """
    file = as_llama_cpp(read_gguf(path))
    metadata = file.metadata
    check_text(metadata.architecture)
    try:
        import xllamacpp
    except ImportError as error:
        raise UnsupportedModelError(_not_installed(metadata.architecture)) from error
    _check_adapters(file, options)
    tokenizer = load_tokenizer(metadata)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tampu-")))
        own = Path(options.projector) if options.projector else None
        files = llama_files(path, own, folder)
        running, server, files = _start(xllamacpp, path.name, files, options, metadata, folder)
        structured_outputs = StructuredOutputs(
            tokenizer, stack.enter_context(closing(Constraints(tokenizer, fork_server)))
        )
        projector = None
        if files.projector is not None:
            decoder = stack.enter_context(closing(SandboxedDecoder(fork_server)))
            projector = MultimodalProjector(server, tokenizer, decoder, options.context)
        template = model_template(metadata, options.template)
        images = LlamaImages(projector, files.no_images)
        requests = RequestBuilder.for_model(
            tokenizer,
            options.context,
            images.prepare_file,
            template,
            metadata,
            fork_server,
            options.parser,
        )
        yield LlamaModel(server, requests, tokenizer, structured_outputs, images, options.max_slots)
        del running


def _not_installed(architecture: str) -> str:
    install = "pip install 'tampu[llamacpp]'"
    if architecture in architectures():
        return f"the llama.cpp engine is not installed: {install}"
    return (
        f"the native engine does not have the architecture '{architecture}'; llama.cpp may have "
        f"it: {install}"
    )


def _check_adapters(file: GGUFFile, options: LoadOptions) -> None:
    """Check adapters, which llama.cpp refuses with less helpful messages."""
    for adapter, _ in options.adapters:
        check_adapter(as_llama_cpp(read_gguf(adapter)), file.metadata.architecture)


def _start(
    xllamacpp: Any,
    name: str,
    files: LlamaFiles,
    options: LoadOptions,
    metadata: Metadata,
    folder: Path,
) -> tuple[Any, LlamaServer, LlamaFiles]:
    """Start llama.cpp; without a vision encoder of the model's own file that it does not take.

    Returns:
        What keeps it running, its server, and the files that it has loaded.
    """
    parameters = _parameters(xllamacpp, files, options)
    parameters.hostnames = [str(folder / "llama.sock")]
    parameters.api_keys = [secrets.token_hex(32)]
    if options.pooling == "none":
        raise RequestError("TAMPU_POOLING=none needs tampu's own engine")
    if options.n_cpu_moe:
        raise RequestError("n_cpu_moe needs tampu's own engine")
    pooling = pooling_of(metadata, options.pooling)
    if options.pooling or pooling == RANK or not metadata.has("pooling_type"):
        kind = f"LLAMA_POOLING_TYPE_{pooling.upper()}"
        parameters.pooling_type = xllamacpp.llama_pooling_type[kind]
    try:
        running = xllamacpp.Server(parameters)
    except RuntimeError as error:
        parameters.verbosity = _ERRORS
        parameters.hostnames = [str(folder / "again.sock")]  # the first is taken
        reason = load_error(name, lambda: xllamacpp.Server(parameters))
        if not files.is_optional:
            raise reason from error
        log.warning("%s; loading its text model alone", reason)
        (folder / "alone").mkdir()
        alone = LlamaFiles(files.text, None, no_images=str(reason))
        return _start(xllamacpp, name, alone, options, metadata, folder / "alone")
    # Answered by its loop, which has begun then; ended before, it would wait for itself forever.
    running.handle_metrics()
    return running, LlamaServer(folder / "llama.sock", parameters.api_keys[0]), files


def _parameters(xllamacpp: Any, files: LlamaFiles, options: LoadOptions) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(files.text)
    if files.projector is not None:
        parameters.mmproj.path = str(files.projector)
    parameters.lora_adapters = [
        xllamacpp.CommonAdapterLoraInfo(adapter, scale) for adapter, scale in options.adapters
    ]
    parameters.n_ctx = options.context * (options.slots or 1)
    parameters.n_parallel = options.max_slots
    parameters.kv_unified = options.kv_unified
    parameters.n_batch = parameters.n_ubatch = max(options.batch or DEFAULT_BATCH, _MIN_BATCH)
    parameters.n_gpu_layers = options.gpu_layers
    parameters.main_gpu = options.main_gpu or 0
    parameters.no_kv_offload = not options.kv_offload
    if options.tensor_split:
        unused = len(parameters.tensor_split) - len(options.tensor_split)
        parameters.tensor_split = [*options.tensor_split, *[0.0] * unused]
    if options.threads is not None:
        parameters.cpuparams.n_threads = options.threads
        parameters.cpuparams_batch.n_threads = options.threads
    parameters.embedding = True
    parameters.ctx_shift = True
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.endpoint_metrics = True
    parameters.verbosity = -1
    return parameters
