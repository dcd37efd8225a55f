"""What the handlers of requests have of a model that tampu's own engine runs."""

from __future__ import annotations

from tampu.engine.adapters import Adapters
from tampu.engine.backend import Backend
from tampu.engine.held_prefixes import HeldPrefixes
from tampu.engine.input_processor import InputProcessor
from tampu.engine.model_loader import LoadedModel
from tampu.engine.snapshots import Snapshots
from tampu.runner.loop import EngineLoop
from tampu.store.model_info import ModelInfo
from tampu.tokenizer import Tokenizer


class NativeModel(Backend):
    """A loaded model with its run loop.

    Attributes:
        model: weights, tokenizer and cache.
        info: the metadata of its file.
        tokenizer: the model's.
        context: the maximum number of tokens of a request, prompt and output together.
        runner: the run loop, with its statistics.
        inputs: makes sequences of prompts.
        adapters: those that requests may choose (`lora`).
        snapshots: copies of its cache in files.
        prefixes: the last prompts that had borders.
        pooling: of embeddings.
    """

    model: LoadedModel
    info: ModelInfo
    tokenizer: Tokenizer
    context: int
    runner: EngineLoop
    inputs: InputProcessor
    adapters: Adapters
    snapshots: Snapshots
    prefixes: HeldPrefixes
    pooling: str
