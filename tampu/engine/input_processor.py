"""From a prompt and its options to a running sequence."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.chat.media import Item, PreparedMedia
from tampu.engine.adapters import Adapters
from tampu.engine.captures import CapturePlan, CaptureStore, check_states, plan_capture
from tampu.engine.completion import RequestHandle, Stream, completion, fit_prompt
from tampu.engine.model_loader import LoadedModel
from tampu.engine.request_builder import known_tokens
from tampu.engine.steering import plan_steering
from tampu.errors import ContextLengthError, RequestError
from tampu.nn.points import HIDDEN_STATES, Point
from tampu.runner.capture import SequenceCapture, media_points
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.events import Event, TextDelta
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.layout import Inputs, NumberedMedia, PlacedMedia, as_one_group, lay_out
from tampu.runner.loop import EngineLoop
from tampu.runner.reasoning_budget import reasoning_budget
from tampu.runner.sequence import Constraint, LogprobCollector, RowCollector, Rows, Sink
from tampu.runner.sequence import Sequence as RunningSequence
from tampu.runner.steering import SequenceSteering
from tampu.runner.steering_options import Steering
from tampu.runner.variants import Variant, VariantKeys, vary
from tampu.sampling import Sampler
from tampu.sampling.dry import SequenceBreakers
from tampu.sampling.infill import Infill
from tampu.sandbox.client import ForkServerClient

if TYPE_CHECKING:
    from tampu.sampling.constraint import Constraints

log = logging.getLogger("tampu.engine.input_processor")

TRACE = 5
"""The level at which prompts and output are logged, token by token."""

Prompt: TypeAlias = str | Sequence[int | NumberedMedia | PreparedMedia]
"""Text, or token ids and media that `Engine` prepared."""

_NO_OUTPUT = GenerateOptions(max_tokens=0)


class InputProcessor:
    """Processes the inputs of one model's requests.

    Attributes:
        adapters: those that requests may choose.
    """

    def __init__(
        self, model: LoadedModel, runner: EngineLoop, fork_server: ForkServerClient
    ) -> None:
        self._model = model
        self._runner = runner
        self._tokenizer = model.tokenizer
        self._context = model.options.context
        self._fork_server = fork_server
        self.adapters = Adapters(model, runner)
        self._keys = VariantKeys()
        self._lock = threading.Lock()
        self._constraints: Constraints | None = None
        self._breakers = SequenceBreakers(self._all_token_bytes, self._tokenizer.encode_inside)

    def submit(self, prompt: Prompt, options: GenerateOptions, sink: Sink) -> RequestHandle:
        """Begin a request; see `Engine.submit`."""
        self.check_generates()
        given = self._inputs(prompt)
        inputs = fit_prompt(given, self._context, options)
        dropped = len(given.tokens) - len(inputs.tokens)
        sequence = self._sequence(inputs, options, sink, is_private=options.prompt_logprobs)
        if options.capture:
            length = len(inputs.tokens)
            most = self._context if options.max_tokens is None else length + options.max_tokens
            media = inputs.layout.media
            plan = self.plan_capture(options.capture, length, min(most, self._context), media)
            plan.check_memory()
            store = CaptureStore(plan)
            sequence.capture, sequence.sink = store.capture, store.sink(sink)
            check_states(sequence.capture, inputs.layout)
        sequence.dropped = dropped
        sequence.constraint = self._constraint(options)
        if options.prompt_logprobs:
            sequence.prompt_logprobs = LogprobCollector(
                inputs.tokens, options.top_logprobs, self._tokenizer.token_bytes
            )
        if log.isEnabledFor(TRACE):
            log.log(TRACE, "prompt: %s", self._described(inputs.tokens.tolist()))
            sequence.sink = self._logged(sequence.sink)
        return self._begin(sequence)

    def rows(
        self,
        prompt: Prompt,
        options: GenerateOptions = _NO_OUTPUT,
        *,
        wants_logits: bool,
        chunk: int | None = None,
        last: int | None = None,
    ) -> Rows:
        """Return the logits or final hidden states of a prompt's tokens; see `collect`."""
        rows: list[Rows] = []
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        collector = RowCollector(rows.append, wants_logits, chunk, last)
        completion(Stream(events, self.collect(prompt, collector, events.put, options)))
        return np.concatenate(rows)

    def collect(
        self,
        prompt: Prompt,
        collector: RowCollector,
        sink: Sink,
        options: GenerateOptions = _NO_OUTPUT,
        *,
        segments: Sequence[int] | None = None,
        capture: SequenceCapture | None = None,
    ) -> RequestHandle:
        """Begin to compute the output of a prompt's tokens; nothing is generated.

        `options` have the adapters and the priority; `segments` are those of the tokens, for models
        that know them, and else 0; `capture` gets values inside the model.

        Raises:
            ContextLengthError: for a prompt longer than the context.
        """
        inputs = self._inputs(prompt, segments)
        if len(inputs.tokens) > self._context:
            raise ContextLengthError.of(len(inputs.tokens), self._context)
        outputs = len(inputs.tokens) if collector.last is None else collector.last
        if not 1 <= outputs <= len(inputs.tokens):  # it would wait for a token that is not there
            raise RequestError(f"{outputs} outputs of {len(inputs.tokens)} tokens")
        sequence = self._sequence(inputs, options, sink, is_private=collector.last is None)
        sequence.collector, sequence.capture = collector, capture
        if capture is not None:
            check_states(capture, inputs.layout)
        return self._begin(sequence)

    def plan_capture(
        self,
        options: CaptureOptions,
        prompt: int,
        most: int,
        media: Sequence[PlacedMedia | NumberedMedia],
    ) -> CapturePlan:
        """Return what a request captures; see `captures.plan_capture`.

        `media` are the pictures and sounds of its prompt.
        """
        width = self._points[Point(HIDDEN_STATES, 0)]
        rows = dict(zip(media_points(media), (each.item.rows for each in media), strict=True))
        known = {**self._points, **dict.fromkeys(rows, width)}
        return plan_capture(options, known, prompt, most, rows)

    def check_generates(self) -> None:
        """Check that the model predicts tokens.

        Raises:
            RequestError: for a model of embeddings, and one that ranks.
        """
        model, name = self._model.graphs.model, self._model.info.name
        if model.decides:
            raise RequestError(f"{name} does not generate text: it answers questions (decide)")
        if model.max_bidirectional_tokens is not None:
            raise RequestError(f"{name} does not generate text: it is an embedding model")
        if model.ranks:
            raise RequestError(f"{name} does not generate text: it ranks documents (rerank)")

    def warm_up(self) -> None:
        """Set up ahead of time what the first grammar will need."""
        if self._model.graphs.max_bidirectional_tokens is None:
            self._grammars().prepare()

    def keys(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        """Return a prompt as the prefix tree has it: tokens, and negative numbers of media."""
        return self._inputs(prompt).keys

    def close(self) -> None:
        """End the sandbox that compiles grammars."""
        if self._constraints is not None:
            self._constraints.close()

    def _grammars(self) -> Constraints:
        """Return the compiler of grammars."""
        with self._lock:
            if self._constraints is None:
                from tampu.sampling.constraint import Constraints  # slow, and seldom needed

                self._constraints = Constraints(self._tokenizer, self._fork_server)
            return self._constraints

    def _begin(self, sequence: RunningSequence) -> RequestHandle:
        self._runner.submit(sequence)
        return RequestHandle(self._runner, sequence)

    def _logged(self, sink: Sink) -> Sink:
        """Return a sink that also logs what it receives."""

        def logged(event: Event) -> None:
            if isinstance(event, TextDelta):
                log.log(TRACE, "output: %s", self._described(event.tokens))
            sink(event)

        return logged

    def _described(self, tokens: Sequence[int]) -> str:
        """Return the ids and texts of tokens, for logs."""
        return " ".join(f"{token}:{self._tokenizer.token_text(token)!r}" for token in tokens)

    def _constraint(self, options: GenerateOptions) -> Constraint | None:
        grammar = options.grammar
        constraint = None if grammar is None else self._grammars().compile(grammar)
        return reasoning_budget(options, self._tokenizer, constraint) or constraint

    def _sequence(
        self, inputs: Inputs, options: GenerateOptions, sink: Sink, *, is_private: bool
    ) -> RunningSequence:
        length = len(inputs.tokens)
        breakers = self._breakers.find(options.dry_sequence_breakers) if options.has_dry else {}
        infill = Infill(self._tokenizer, options.logit_bias) if options.infill else None
        sampler = Sampler(options, self._tokenizer.vocabulary_size, breakers, infill)
        sampler.prime(inputs.tokens.tolist())
        tokens = self._with_room(inputs.tokens)
        keys = tokens if inputs.keys is inputs.tokens else self._with_room(inputs.keys)
        variant = Variant(self.adapters.chosen(options.lora), self._steering(options.steering))
        if variant:
            variant, moved = vary(variant, self._keys, inputs.keys)
            is_private |= moved is None
            keys = self._with_room(inputs.keys if moved is None else moved)
        return RunningSequence(
            options=options,
            sampler=sampler,
            detokenizer=Detokenizer(
                options.stop, self._tokenizer.decoder(shown=options.shown), options.min_indent
            ),
            sink=sink,
            tokens=tokens,
            keys=keys,
            length=length,
            prompt_length=length,
            cell_table=self._model.scheduler.kv_manager.allocate(
                self._context, is_private=is_private
            ),
            layout=inputs.layout,
            variant=variant,
            predicted=tuple(self._tokenizer.encode_inside(options.prediction)),
        )

    def _steering(self, given: Sequence[Steering]) -> SequenceSteering | None:
        """Return what a request changes inside the model; see `steering.plan_steering`."""
        return plan_steering(given, self._points) if given else None

    @cached_property
    def _points(self) -> Mapping[Point, int]:
        """The points of the model, with the features of each."""
        return self._runner.call(self._model.graphs.find_points)

    def _all_token_bytes(self) -> list[bytes]:
        """Return the bytes of every token, also of control tokens."""
        found = self._tokenizer.all_token_bytes()
        for token, text in self._tokenizer.control_texts().items():
            found[token] = text.encode()
        return found

    def _with_room(self, given: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the values in an array that has room for the output."""
        values = np.zeros(self._context + 1, np.int32)
        values[: len(given)] = given
        return values

    def _inputs(self, prompt: Prompt, segments: Sequence[int] | None = None) -> Inputs:
        given = self._tokenizer.encode(prompt) if isinstance(prompt, str) else flat(prompt)
        if not given:
            raise RequestError("the prompt is empty: it must have at least one token")
        pieces: list[npt.NDArray[np.int32] | NumberedMedia] = []
        for is_media, items in groupby(given, lambda item: isinstance(item, NumberedMedia)):
            if is_media:
                pieces += [item for item in items if isinstance(item, NumberedMedia)]
            else:
                tokens = [item for item in items if not isinstance(item, NumberedMedia)]
                pieces.append(np.asarray(known_tokens(tokens, self._tokenizer), np.int32))
        inputs, longest = lay_out(pieces), self._model.graphs.max_bidirectional_tokens
        if longest is None:
            return inputs
        if len(inputs.tokens) > longest:
            raise ContextLengthError.of(len(inputs.tokens), longest)
        width = self._model.info.embedding_length
        self._model.scheduler.encoder_cache.check_room(inputs.layout, width)
        if not self._model.graphs.model.has_segments:
            return as_one_group(inputs)
        return as_one_group(inputs, np.array(segments or [0] * len(inputs.tokens), np.int32))


def flat(prompt: Sequence[Item]) -> list[Item]:
    """Return the items of a prompt, those of its videos among them."""
    parts = (each.items if isinstance(each, PreparedMedia) else (each,) for each in prompt)
    return [item for part in parts for item in part]
