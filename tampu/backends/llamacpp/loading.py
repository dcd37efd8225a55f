"""Loads a model file, its projector and its adapters into llama.cpp."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from tampu.backends.llamacpp.load_error import load_error
from tampu.backends.llamacpp.mmproj import MultimodalProjector
from tampu.backends.llamacpp.model import LlamaModel
from tampu.backends.llamacpp.server import LlamaServer
from tampu.backends.llamacpp.structured_output import StructuredOutputs
from tampu.chat.template import ChatTemplate
from tampu.chat.template_loader import read_template
from tampu.engine.chat import RequestBuilder
from tampu.engine.load_options import LoadOptions
from tampu.errors import UnsupportedModelError
from tampu.ml.gguf import GGUFFile, read_gguf
from tampu.models import architectures
from tampu.nn.lora import check_adapter
from tampu.sampling.constraint import Constraints
from tampu.sandbox.client import ForkServerClient
from tampu.tokenizer.loading import load_tokenizer
from tampu.vision.sandboxed import SandboxedDecoder

_ERRORS = 1  # a verbosity of llama.cpp; -1 is nothing
_MIN_BATCH = 32  # llama.cpp aborts if the batch is smaller than the number of sequences


@contextmanager
def load_llamacpp(
    path: Path, options: LoadOptions, fork_server: ForkServerClient
) -> Iterator[tuple[LlamaModel, RequestBuilder]]:
    """Load a model into llama.cpp; it is freed at the end.

    Raises:
        UnsupportedModelError: if the wheel is not installed, llama.cpp does not have the
            architecture either, or the vision encoder is in the model's own file.
        ModelFileError: for a damaged file, and an adapter of another architecture.
        OutOfMemoryError: if the memory is too small.
    """
    file = read_gguf(path)
    metadata = file.metadata
    try:
        import xllamacpp
    except ImportError as error:
        raise UnsupportedModelError(_not_installed(metadata.architecture)) from error
    _check_parts(file, options)
    tokenizer = load_tokenizer(metadata)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tampu-")))
        parameters = _parameters(xllamacpp, path, options)
        parameters.hostnames = [str(folder / "llama.sock")]
        parameters.api_keys = [secrets.token_hex(32)]
        if not metadata.has("pooling_type"):  # as the native engine does
            parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        try:
            running = xllamacpp.Server(parameters)
        except RuntimeError as error:
            parameters.verbosity = _ERRORS
            parameters.hostnames = [str(folder / "again.sock")]  # the first is taken
            raise load_error(path.name, lambda: xllamacpp.Server(parameters)) from error
        server = LlamaServer(folder / "llama.sock", parameters.api_keys[0])
        structured_outputs = StructuredOutputs(
            tokenizer, stack.enter_context(closing(Constraints(tokenizer, fork_server)))
        )
        projector = None
        if options.projector is not None:
            decoder = stack.enter_context(closing(SandboxedDecoder(fork_server)))
            projector = MultimodalProjector(server, tokenizer, decoder, options.context)
        own = options.template
        template = read_template(own) if own else ChatTemplate.from_metadata(metadata)
        model = LlamaModel(server, tokenizer, options.context, structured_outputs, projector)
        yield (
            model,
            RequestBuilder.for_model(model, template, metadata, fork_server, options.parser),
        )
        del running


def _not_installed(architecture: str) -> str:
    install = "pip install 'tampu[llamacpp]'"
    if architecture in architectures():
        return f"the llama.cpp engine is not installed: {install}"
    return (
        f"the native engine does not have the architecture '{architecture}'; llama.cpp may have "
        f"it: {install}"
    )


def _check_parts(file: GGUFFile, options: LoadOptions) -> None:
    """Check the files for what llama.cpp refuses with less helpful messages."""
    for adapter, _ in options.adapters:
        check_adapter(read_gguf(adapter), file.metadata.architecture)
    if any(name.startswith("v.") for name in file.tensors):
        is_known = file.metadata.architecture in architectures()
        advice = "use the native engine" if is_known else "make the model from two files"
        raise UnsupportedModelError(
            f"{file.path.name} has its vision encoder in the same GGUF file; llama.cpp needs a "
            f"separate mmproj file: {advice}"
        )


def _parameters(xllamacpp: Any, path: Path, options: LoadOptions) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    if options.projector is not None:
        parameters.mmproj.path = options.projector
    parameters.lora_adapters = [
        xllamacpp.CommonAdapterLoraInfo(adapter, scale) for adapter, scale in options.adapters
    ]
    parameters.n_ctx = options.context * options.slots
    parameters.n_parallel = options.slots
    parameters.n_batch = parameters.n_ubatch = max(options.batch, _MIN_BATCH)
    parameters.n_gpu_layers = options.gpu_layers
    parameters.main_gpu = options.main_gpu or 0
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
    parameters.verbosity = -1
    return parameters
