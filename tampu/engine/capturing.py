"""The methods of `Engine` that look inside a model while it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.chat.media import PreparedMedia
from tampu.engine.arguments import FilePath, checked
from tampu.engine.capture_file import write_captures
from tampu.engine.captures import Capture, Captured
from tampu.engine.control_vector import ControlVector
from tampu.engine.control_vector_maker import Method, make_directions
from tampu.engine.input_processor import Prompt
from tampu.engine.native import NativeModel
from tampu.engine.prompts import Prompt as AnyPrompt
from tampu.engine.python_requests import File, Message, PythonRequests, embedded_prompt, read_file
from tampu.engine.request import NO_LORA, Lora
from tampu.engine.steering import GivenSteering, steering_of
from tampu.errors import RequestError
from tampu.ml import Tensor
from tampu.nn.points import LAYER_OUTPUTS, final_norm
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.layout import NumberedMedia
from tampu.runner.pooled import compute_in_parts
from tampu.runner.stats import Trace
from tampu.sampling import top_logprobs
from tampu.sampling.candidates import require_finite

CapturePrompt: TypeAlias = str | Sequence[int | NumberedMedia | PreparedMedia | Message]
"""A prompt, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class LogitLens:
    """The tokens that a model would predict if it ended after each layer.

    Attributes:
        layers: their numbers.
        positions: I32, (positions,).
        tokens: I32, (layers, positions, top): ids, the likeliest first.
        logprobs: F32, of that shape: natural logarithms of their probabilities.
    """

    layers: tuple[int, ...]
    positions: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]


class CapturingModel(NativeModel):
    """A model whose values can be captured."""

    _python: PythonRequests

    @checked
    def capture(
        self,
        prompt: CapturePrompt,
        points: str | Sequence[str] = "hidden_states",
        layers: int | Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
        heads: int | Sequence[int] | None = None,
    ) -> Captured:
        """Return values inside the model while it reads a prompt; nothing is generated.

        Args:
            prompt: text, token ids, or messages as for `chat`.
            points: which values, by the names in docs/research.md; "hidden_states:3" is of layer 3
                whatever `layers` says.
            layers: from 0, those below 0 from the end; None: all.
            positions: of tokens, those below 0 from the end; None: all.
            lora: loaded adapters, as for `generate`.
            steering: changes of values, which are captured changed; as for `generate`.
            heads: from 0, whose "attentions" are returned, in this order; None: all.

        Raises:
            RequestError: naming a point, a layer, a position or a head that is not there.
            OutOfMemoryError: if the values do not fit into memory.
            ContextLengthError: for a prompt longer than the context.
        """
        options = _options(points, layers, positions, heads)
        changes = steering_of(steering)
        request = Capture(self._given(prompt), options, lora=dict(lora), steering=changes)
        return self.ask(request).captured()

    @checked
    def capture_file(
        self,
        path: FilePath,
        prompts: Sequence[CapturePrompt],
        points: str | Sequence[str] = "hidden_states",
        layers: int | Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> int:
        """Capture values of many prompts and write them to a safetensors file while they come.

        Several prompts are computed at once. Each point has one tensor, "hidden_states.3" for
        layer 3, F32, (rows, features), with the rows of all prompts in their order. I32 (rows,)
        are `prompts`, the index of each row's prompt, `positions` and `tokens`. The file is there
        once all of it is written. The arguments and errors are those of `capture`.

        Returns:
            The number of rows.

        Raises:
            StoreError: if the file cannot be written, or the disk has too little space.
        """
        options = _options(points, layers, positions)
        if len(prompts) == 0:
            raise RequestError("prompts is empty")
        changes = steering_of(steering)
        requests = [
            Capture(self._given(prompt), options, lora=dict(lora), steering=changes)
            for prompt in prompts
        ]
        return write_captures(self, Path(path), requests)

    @checked
    def logit_lens(
        self,
        prompt: CapturePrompt,
        layers: int | Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        top: int = 5,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> LogitLens:
        """Return the likeliest next tokens if the model ended after each layer.

        The output of the layer goes through the last norm and the head. Those of the last layer are
        the model's own. The arguments and errors are those of `capture`.
        """
        self.inputs.check_generates()
        graphs = self.model.graphs
        if not 1 <= top <= self.tokenizer.vocabulary_size:
            raise RequestError(f"top must be 1 to {self.tokenizer.vocabulary_size}")
        found = self.capture(prompt, (LAYER_OUTPUTS,), layers, positions, lora, steering)
        every = found[LAYER_OUTPUTS]

        def head(x: Tensor) -> Tensor:
            return graphs.model.head(final_norm(graphs.model, x))

        tokens = np.zeros((len(every), len(found.positions), top), np.int32)
        logprobs = np.zeros(tokens.shape, np.float32)
        together = np.concatenate([*every.values()])
        parts = compute_in_parts(graphs.backend, head, together)
        for row, logits in enumerate(each for part in parts for each in part):
            place = divmod(row, len(found.positions))
            tokens[place], logprobs[place] = zip(*top_logprobs(logits, 0, top)[1], strict=True)
        return LogitLens(tuple(every), found.positions, tokens, logprobs)

    @checked
    def make_control_vector(
        self,
        positive: Sequence[CapturePrompt],
        negative: Sequence[CapturePrompt],
        method: Method = "pca",
        pooling: Literal["last", "mean"] = "last",
        lora: Lora = NO_LORA,
    ) -> ControlVector:
        """Return the directions in which pairs of prompts differ in what layers return.

        Args:
            positive: prompts as for `capture`; adding the vector makes the model more like there.
            negative: the other prompt of each pair, in the same order.
            method: "pca": the first principal component of the pairs' differences; "mean": their
                mean. Both have length 1, so a strength is in units of the values.
            pooling: of the tokens of a prompt: the last one, or the mean of all.
            lora: loaded adapters, as for `generate`.

        Raises:
            RequestError: for no pairs, lists of different lengths, and prompts without a difference
                or of a model with one layer.
            ContextLengthError: for a prompt longer than the context.
        """
        if len(positive) == 0 or len(positive) != len(negative):
            raise RequestError(
                "a control vector is made of pairs of prompts, not of "
                f"{len(positive)} positive and {len(negative)} negative ones"
            )
        options = _options(LAYER_OUTPUTS, None, (-1,) if pooling == "last" else None)
        pairs = [
            [Capture(self._given(prompt), options, lora=dict(lora)) for prompt in prompts]
            for prompts in (positive, negative)
        ]
        found = make_directions(self, pairs[0], pairs[1], method)
        return ControlVector(found, self.info.architecture)

    def detect_nan(self) -> None:
        """Check every value computed from now on for NaN and infinity; slow; errors name layers."""
        self.runner.graphs.detect_nan()

    @contextmanager
    @checked
    def trace(self, path: FilePath) -> Iterator[None]:
        """Trace the run loop inside the `with` block, for Perfetto or chrome://tracing."""
        with closing(Trace(Path(path))) as trace:
            self.runner.stats.trace = trace
            try:
                yield
            finally:
                self.runner.stats.trace = None

    @checked
    def logits(
        self,
        prompt: Prompt,
        images: Sequence[File] = (),
        *,
        chunk: int | None = None,
        steering: GivenSteering = (),
    ) -> npt.NDArray[np.float32]:
        """Return the logits at every position of a prompt, float32, (positions, vocabulary).

        Args:
            prompt: text or token ids.
            images: as `prepare_image` takes them; inserted after the prompt's first token.
            chunk: the maximum number of tokens computed at once; None: as many as fit.
            steering: changes of values inside the model, as for `generate`.

        Raises:
            RequestError: for an empty prompt, unknown tokens, or images.
            ContextLengthError: for a prompt longer than the context.
            ComputeError: if a logit is NaN or infinite.
        """
        files = [read_file(image, f"images[{i}]", "images") for i, image in enumerate(images)]
        if chunk is not None and chunk < 1:
            raise RequestError(f"chunk must be 1 or more, not {chunk}")
        if files:
            given = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            prompt = [*given[:1], *map(self.media.prepare_image, files), *given[1:]]
        options = GenerateOptions(max_tokens=0, steering=steering_of(steering))
        found = self.inputs.rows(prompt, options, wants_logits=True, chunk=chunk)
        require_finite(float(found.max()) if found.size else 0.0)
        return found

    def _given(self, prompt: CapturePrompt) -> AnyPrompt:
        if isinstance(prompt, str):
            return embedded_prompt(prompt, "prompt")
        messages = [each for each in prompt if isinstance(each, Mapping)]
        if not messages:
            items = [each for each in prompt if not isinstance(each, Mapping)]
            return embedded_prompt(items, "prompt")
        if len(messages) < len(prompt):
            raise RequestError("prompt is neither token ids nor messages: it has both")
        return self._python.conversation(messages, {})


def _options(
    points: str | Sequence[str],
    layers: int | Sequence[int] | None,
    positions: Sequence[int] | None,
    heads: int | Sequence[int] | None = None,
) -> CaptureOptions:
    return CaptureOptions(
        points=(points,) if isinstance(points, str) else tuple(points),
        layers=_numbers(layers),
        positions=_numbers(positions),
        heads=_numbers(heads),
    )


def _numbers(given: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    return (int(given),) if isinstance(given, int | np.integer) else tuple(map(int, given))
