"""A model loaded by llama.cpp, with the interface that a worker needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakSet

import msgspec
import numpy as np
import psutil

from tampu.audio import is_audio
from tampu.backends.llamacpp.logprobs import continuation_logprobs, prompt_logprobs
from tampu.backends.llamacpp.mmproj import LlamaImage, MultimodalProjector
from tampu.backends.llamacpp.request import LlamaRequest, error_of
from tampu.backends.llamacpp.retokenize import Retokenizer
from tampu.backends.llamacpp.server import CompletionStream, LlamaServer
from tampu.backends.llamacpp.structured_output import StructuredOutputs
from tampu.chat.media import Item, length
from tampu.engine.backend import Backend, Handlers, ModelFacts
from tampu.engine.handlers import TEXT
from tampu.engine.handlers.embed import embedded_tokens, result, sized
from tampu.engine.handlers.generate import Generation
from tampu.engine.load_options import LLAMACPP
from tampu.engine.prompts import TextPrompt
from tampu.engine.request_builder import RequestBuilder
from tampu.engine.requests import (
    Embed,
    Embedded,
    Generate,
    PromptScores,
    Rank,
    Ranked,
    Score,
    ScoredContinuation,
    Scores,
)
from tampu.errors import ContextLengthError, RequestError
from tampu.ml.vectors import check_finite
from tampu.runner.events import Event, Usage
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.reasoning_budget import ReasoningBudget, reasoning_budget
from tampu.sampling.chain import SAMPLERS
from tampu.sampling.parameters import Use, names_of
from tampu.tokenizer import Tokenizer
from tampu.vision.video import is_video

# llama-server's default samplers, and infill, which is not among them, last.
_WITH_INFILL = (*(name for name in SAMPLERS if name != "infill"), "infill")


@dataclass(frozen=True, slots=True)
class LlamaImages:
    """Prepares images for one model.

    Attributes:
        projector: encodes images; None: the model takes none.
        no_images: why a model with a vision encoder has none here.
    """

    projector: MultimodalProjector | None = None
    no_images: str = ""

    def prepare_file(self, image: bytes) -> LlamaImage:
        """Return the image in a file as the model takes it.

        Raises:
            RequestError: if it takes none, and for files that are not images.
        """
        if is_audio(image):
            raise RequestError("sounds need tampu's own engine: the llama.cpp engine takes images")
        if is_video(image):
            raise RequestError("videos need tampu's own engine: the llama.cpp engine takes images")
        if self.projector is None:
            needed = "the llama.cpp engine needs a projector in a file of its own (mmproj)"
            raise RequestError(f"the model takes no images: {self.no_images or needed}")
        return self.projector.prepare_image(image)


def generate(model: LlamaModel, request: Generate) -> Generation:
    """Return the generation of a request, which has not begun."""
    return Generation(model.requests, model.submit, request)


def embed(model: LlamaModel, request: Embed) -> Embedded:
    """Return the embeddings of texts.

    Raises:
        RequestError: if it is not an embedding model, and for what needs the other engine.
    """
    _check_unchanged(request.engine_options)
    if request.late_chunking:
        raise RequestError("late_chunking needs tampu's own engine")
    if request.capture:
        raise RequestError(f"{request.capture.field} needs tampu's own engine")
    if any(isinstance(each, TextPrompt) and each.media for each in request.inputs):
        raise RequestError("embeddings of images and sounds need tampu's own engine")
    texts, dropped = embedded_tokens(model.requests, request)
    if not texts:
        return Embedded(b"", 0, 0)
    body = {"input": list(map(list, texts)), "embd_normalize": -1}
    response = model.server.request("/v1/embeddings", body)
    if "error" in response:
        raise RequestError(str(error_of(response["error"])))
    found = np.array([item["embedding"] for item in response["data"]], np.float32)
    check_finite(found, "embeddings", "input")
    return result(sized(found, request), sum(map(len, texts)), dropped)


def score(model: LlamaModel, request: Score) -> Scores:
    """Return the log-probabilities of continuations of prompts.

    llama.cpp finds what the prompts share by itself.

    Raises:
        RequestError: for a prompt with images, and for adapters.
    """
    _check_unchanged(request.engine_options)
    found = []
    for prompt, continuations in request.prompts:
        tokens = [item for item in prompt if isinstance(item, int)]
        if len(tokens) < len(prompt):
            raise RequestError("the llama.cpp engine answers no questions about images")
        values = continuation_logprobs(model.server, tokens, continuations)
        scored = map(ScoredContinuation, continuations, values)
        found.append(PromptScores(tuple(scored), Usage(prompt_tokens=len(tokens))))
    return Scores(tuple(found))


def rank(model: LlamaModel, request: Rank) -> Ranked:
    """Return the score (1,) of queries with documents; llama.cpp joins the two texts itself.

    Raises:
        RequestError: if the model cannot rank, and for a pair that is too long or adapters.
    """
    _check_unchanged(request.engine_options)
    found = []
    for pair in request.pairs:
        body = {"query": pair.query, "documents": [pair.document]}
        response = model.server.request("/v1/rerank", body)
        if "error" in response:
            raise RequestError(str(error_of(response["error"])))
        [one] = response["results"]
        found.append((float(one["relevance_score"]),))
    return Ranked(tuple(found))


class LlamaModel(Backend):
    """One model in llama.cpp.

    Attributes:
        server: runs it.
    """

    handlers: ClassVar[Handlers] = {
        **TEXT,
        Generate: generate,
        Embed: embed,
        Score: score,
        Rank: rank,
    }
    unsupported = "llama.cpp runs this model, and tampu's own engine is needed for it"

    def __init__(
        self,
        server: LlamaServer,
        requests: RequestBuilder,
        tokenizer: Tokenizer,
        structured_outputs: StructuredOutputs,
        images: LlamaImages,
        slots: int,
    ) -> None:
        """Take over a model that a server has loaded.

        Args:
            server: the server.
            requests: builds prompts; its context is that of each slot.
            tokenizer: of the model.
            structured_outputs: compiles grammars.
            images: prepares images.
            slots: how many requests run at once.
        """
        self.server = server
        self.requests = requests
        self.tokenizer = tokenizer
        self.context = requests.context
        self._structured_outputs = structured_outputs
        self._projector = images.projector
        self._retokenizer = Retokenizer(tokenizer)
        self._running: WeakSet[LlamaRequest] = WeakSet()
        memory_bytes = psutil.Process().memory_info().rss
        self._facts = ModelFacts(self.context, memory_bytes, engine=LLAMACPP, slots=slots)

    @property
    def facts(self) -> ModelFacts:
        """What is known of it."""
        return self._facts

    def submit(
        self, prompt: Sequence[Item], options: GenerateOptions, sink: Callable[[Event], None]
    ) -> LlamaRequest:
        """Begin a request; `sink` receives its events on a thread of the request.

        Raises:
            RequestError: for an empty prompt, and one with images that llama.cpp would misread.
            GrammarError: for an invalid grammar.
            ContextLengthError: for a prompt longer than the context, unless it may be cut.
        """
        items = self._fitting(list(prompt), options)
        tokens = [item for item in items if isinstance(item, int)]
        has_images = len(tokens) < len(items)
        if options.prompt_logprobs and has_images:
            raise RequestError(
                "the llama.cpp engine has no prompt_logprobs for a prompt with images"
            )
        if options.post_sampling_probs:
            raise RequestError("the llama.cpp engine has no post_sampling_probs")
        _check_unchanged(options)
        constraint = self._structured_outputs.constraint(options)
        body = self._request_body(items, options)
        limit = body["n_predict"]

        def complete(output: Sequence[int]) -> CompletionStream:
            prompt: Any = [*tokens, *output]
            if self._projector and has_images:
                prompt = self._projector.prompt([*items, *output])
            left = limit - len(output) if limit >= 0 else limit
            return self.server.complete({**body, "n_predict": left, "prompt": prompt})

        request = LlamaRequest(
            complete,
            msgspec.structs.replace(options, max_tokens=limit if limit >= 0 else None),
            sink,
            self.tokenizer,
            self._retokenizer,
            constraint,
            self._reasoning_budget(options),
        )
        self._running.add(request)
        logprobs = prompt_logprobs(
            self.server,
            tokens if options.prompt_logprobs else [],
            options.top_logprobs,
            self.tokenizer.token_bytes,
        )
        threading.Thread(
            target=request.run, args=(logprobs,), name="tampu-llamacpp", daemon=True
        ).start()
        return request

    def warm_up(self) -> None:
        """Set up ahead of time what the first grammar and the first image will need."""
        self._structured_outputs.prepare()
        if self._projector is not None:
            self._projector.prepare()

    def hang_reason(self, patience_s: float) -> str:
        """Return why llama.cpp counts as hung; empty if it does not.

        It does when no request has received anything for ten times the patience: nothing comes
        while prompts are processed, and requests wait for one another.
        """
        received = [each.received_s for each in self._running if not each.is_over]
        silent_s = time.monotonic() - max(received, default=time.monotonic())
        if silent_s <= 10 * patience_s:
            return ""
        return f"hung: nothing from llama.cpp for {silent_s:.0f} s (limit {10 * patience_s:.0f} s)"

    def _request_body(self, items: Sequence[Item], options: GenerateOptions) -> dict[str, Any]:
        """Return the request to llama.cpp, without the prompt.

        Raises:
            RequestError: for a token that does not exist.
        """
        size = self.tokenizer.vocabulary_size
        wrong = next((token for token in options.logit_bias if not 0 <= token < size), None)
        if wrong is not None:
            raise RequestError(f"logit_bias: token {wrong} is not one of the {size} tokens")
        body: dict[str, Any] = {name: getattr(options, name) for name in names_of(Use.SAMPLING)}
        for name in ("repeat_last_n", "dry_penalty_last_n"):
            if body[name] < 0:
                body[name] = self.context
        if body.pop("infill"):
            body["samplers"] = _WITH_INFILL
        body["dry_sequence_breakers"] = [*options.dry_sequence_breakers] or [""]  # not none
        room = self.context - length(items)
        limit = options.max_tokens if options.shift else min(options.max_tokens or room, room)
        body |= {
            "n_predict": -1 if limit is None else limit,
            "n_keep": options.keep,
            "seed": -1 if options.seed is None else options.seed,
            "logit_bias": [*map(list, self._structured_outputs.biases(options).items())],
            "return_tokens": True,
            "timings_per_token": True,
            **self._structured_outputs.request_fields(options),
        }
        if options.logprobs:
            body["n_probs"] = max(options.top_logprobs, 1)
        return body

    def _reasoning_budget(self, options: GenerateOptions) -> ReasoningBudget | None:
        """Return the budget of an answer's reasoning, if it has one.

        Raises:
            RequestError: if it also has a grammar, which llama.cpp would start again after the
                reasoning is ended.
        """
        budget = reasoning_budget(options, self.tokenizer)
        if budget is not None and options.grammar is not None:
            raise RequestError(
                "with the llama.cpp engine, use either structured output or think_budget, not both"
            )
        return budget

    def _fitting(self, items: list[Item], options: GenerateOptions) -> list[Item]:
        if not items:
            raise RequestError("the prompt is empty: it must have at least one token")
        count = length(items)
        if count < self.context:
            return items
        if not options.truncate or count > len(items):
            raise ContextLengthError.of(count, self.context - 1)
        limit = self.context - 1
        keep = limit - 1 if options.keep < 0 else min(options.keep, limit - 1)
        return items[:keep] + items[len(items) - (limit - keep) :]


def _check_unchanged(options: GenerateOptions) -> None:
    """Refuse what changes the model for one request, or looks inside."""
    if options.lora:
        raise RequestError("requests choose adapters (lora) with tampu's own engine only")
    if options.steering:
        raise RequestError("steering needs tampu's own engine")
    if options.capture:
        raise RequestError(f"{options.capture.field} needs tampu's own engine")
