"""A model that tampu's own engine runs, as the handlers of requests have it."""

from __future__ import annotations

from functools import cached_property

import psutil

from tampu.chat.template_loader import PromptTemplate
from tampu.engine.backend import Backend, ModelFacts
from tampu.engine.decision_prompts import DecisionPrompts
from tampu.engine.fit import free_on
from tampu.engine.held_prefixes import HeldPrefixes
from tampu.engine.input_processor import InputProcessor
from tampu.engine.layer_watch import LayerWatch
from tampu.engine.media_processor import MediaProcessor
from tampu.engine.model_loader import LoadedModel
from tampu.engine.pooling import NONE, pooling_of
from tampu.engine.request_builder import RequestBuilder
from tampu.engine.snapshots import Snapshots
from tampu.ml.devices import find_devices
from tampu.runner.events import BatchCounts
from tampu.runner.loop import EngineLoop
from tampu.sandbox.client import ForkServerClient
from tampu.store.model_info import ModelInfo


class NativeModel(Backend):
    """A loaded model with its run loop.

    Attributes:
        model: weights and cache.
        info: the metadata of the model's file.
        context: the maximum number of tokens of a request, prompt and output together.
        tokenizer: the model's tokenizer.
        template: the chat template; None if the model has none.
        requests: builds prompts, and the grammars and parsers of outputs.
        runner: the run loop, with its statistics.
        inputs: makes sequences of prompts.
        media: prepares images, videos and sounds.
        adapters: those that requests may choose (`lora`).
        snapshots: copies of its cache in files.
        prefixes: the last prompts that had borders.
        layers: looks at what layers make of tokens that are being written.
        pooling: of embeddings.
        decision_prompts: of a model that is made for decisions; None: it is not.
        placement, device_bytes: what each device has of it and why, and its memory on GPUs.
        slots, slot_bytes: how many requests run at once, and the share of the cache of each.
    """

    def __init__(
        self,
        model: LoadedModel,
        template: PromptTemplate | None,
        parser: str,
        fork_server: ForkServerClient,
    ) -> None:
        """Take over a loaded model.

        Args:
            model: as the attribute.
            template: as the attribute.
            parser: the name of the output parser in the Modelfile; "": by the template.
            fork_server: for the sandboxes.
        """
        self.model = model
        self.info: ModelInfo = model.info
        self.context, self.tokenizer = model.options.context, model.tokenizer
        self.template = template
        self.placement, self.device_bytes = model.placement, model.placement.device_bytes
        self.slots, self.slot_bytes = model.slots, model.cache_bytes // model.slots
        self.pooling = pooling_of(self.info.metadata, model.options.pooling)
        self.decision_prompts = (
            DecisionPrompts.for_model(self.info.metadata, self.tokenizer, fork_server)
            if model.graphs.model.decides
            else None
        )
        self.runner = EngineLoop(model.scheduler, model.graphs, model.tokenizer, model.warm_up)
        self.inputs = InputProcessor(model, self.runner, fork_server)
        self.media = MediaProcessor(model, fork_server)
        self.adapters = self.inputs.adapters
        self.snapshots = Snapshots.of(model, self.runner, self.inputs)
        self.prefixes = HeldPrefixes(self.runner.count_cached)
        self.layers = LayerWatch(model, self.runner)
        self.requests = RequestBuilder.for_model(
            self.tokenizer,
            self.context,
            self.media.prepare_file,
            template,
            self.info.metadata,
            fork_server,
            parser,
        )

    @cached_property
    def facts(self) -> ModelFacts:
        """What is known of it; the memory is that of the whole process when it is first asked."""
        return ModelFacts(
            self.context,
            psutil.Process().memory_info().rss + self.device_bytes,
            self.device_bytes,
            device_free=free_on(find_devices()),
            slots=self.slots,
            slot_bytes=self.slot_bytes,
            has_pooling=self.pooling != NONE,
            placement=self.placement,
        )

    def close(self) -> None:
        """End all requests and free the model; a second call does nothing."""
        self.runner.close()
        self.inputs.close()
        self.media.close()
        self.model.close()

    def counts(self) -> BatchCounts:
        """Return the batches that it has computed."""
        return self.runner.stats.counts

    def warm_up(self) -> None:
        """Set up ahead of time what the first grammar and the first image will need."""
        self.inputs.warm_up()
        self.media.warm_up()

    def hang_reason(self, patience_s: float) -> str:
        """Return what the run loop hangs in, and for how long; see `Watchdog.hang_reason`."""
        return self.runner.watchdog.hang_reason(patience_s)
