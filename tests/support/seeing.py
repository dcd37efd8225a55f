"""A model that sees, run on its graphs alone: pictures and texts at once, without a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.states import row_arrays, state_rows

from tampu.gguf_compat import read_model
from tampu.ml import Backend, GGMLType, Storage, Tensor, Weights
from tampu.models import bind_model
from tampu.nn import (
    Advance,
    Batch,
    CacheShape,
    CrossAttentionInputs,
    Gating,
    History,
    LayerCache,
    LayerShape,
    MediaItem,
    RGBImage,
    Samples,
    States,
    Tensors,
    VisionModel,
    experts,
)
from tampu.nn.model import cache_parts

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Choices = npt.NDArray[np.int64]

_TYPES = {
    np.dtype(np.float32): GGMLType.F32,
    np.dtype(np.float16): GGMLType.F16,
    np.dtype(np.int32): GGMLType.I32,
    np.dtype(np.int64): GGMLType.I64,
}


@dataclass
class Whole:
    """A layer's cache that holds nothing but the batch itself; what others read is kept."""

    mask: Tensor | None
    latent_rank: int | None = None
    stored: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        if keys is not None and values is None and self.latent_rank:
            values, _ = keys.split([self.latent_rank, keys.shape[-1] - self.latent_rank])
        if keys is not None and values is not None:
            self.stored = keys, values
        assert self.stored is not None
        assert self.mask is not None
        keys, values = self.stored
        return History(
            keys.transpose(1, 0, 2),
            values.transpose(1, 0, 2),
            self.mask,
            is_transposed=False,
            use_flash=False,
        )


@dataclass(frozen=True)
class Beginning:
    """A recurrent layer's cache at the first token of the one sequence that there is."""

    states: States

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        y = advance(tuple(each.reshape(1, *each.shape) for each in inputs), self.states)
        return y.reshape(-1, y.shape[-1])


@dataclass(frozen=True)
class OneSequence:
    """The cache of a layer for one sequence from its first token on."""

    whole: Whole
    beginning: Beginning

    def update(self, keys: Tensor | None, values: Tensor | None) -> History:
        return self.whole.update(keys, values)

    def advance(self, inputs: Tensors, advance: Advance) -> Tensor:
        return self.beginning.advance(inputs, advance)


@contextmanager
def noted_choices(choices: list[Tensor]) -> Iterator[None]:
    """Have the routers of graphs that are built add the experts that they choose to a list."""
    route = experts.route

    def noting(logits: Tensor, gating: Gating, score_bias: Tensor | None) -> tuple[Tensor, Tensor]:
        choice, weights = route(logits, gating, score_bias)
        choices.append(choice.contiguous())
        return choice, weights

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "route", noting)
        yield


@dataclass(frozen=True)
class Stream:
    """The inputs of one sequence, with where its images lie."""

    tokens: list[int]
    positions: Array  # (n, k)
    images: list[tuple[int, MediaItem]]  # where each begins


class Seer:
    """A model file that is loaded, with its projector if that has a file of its own."""

    def __init__(self, backend: Backend, path: Path, projector: Path | None = None) -> None:
        self.backend = backend
        self.weights = Weights(read_model(path))
        self.second = Weights(read_model(projector)) if projector else None
        self.model = bind_model(self.weights, self.second)
        for weights in (self.weights, self.second):
            if weights:
                weights.load(backend)

    @property
    def vision(self) -> VisionModel:
        assert self.model.vision is not None
        return self.model.vision

    def encode(self, prepared: MediaItem) -> Floats:
        """Return the embedding of an image, or of a part of a sound: (rows, features)."""
        context = self.backend.context()
        inputs = {
            name: context.input(name, array.shape, _TYPES[array.dtype])
            for name, array in prepared.arrays.items()
        }
        encoder = self.model.encoder_of(prepared)
        rows = context.output(encoder.encode(context, prepared.key, inputs))
        data = [(inputs[name], array) for name, array in prepared.arrays.items()]
        (found,) = self.backend.compute(context, data, [rows]).outputs
        context.close()
        assert found.shape[0] == prepared.rows
        return np.asarray(found, np.float32)

    def see(self, picture: RGBImage) -> Floats:
        return self.encode(self.vision.prepare(picture))

    def hear(self, samples: Samples) -> Floats:
        """Return the embedding of a sound, of all its parts in order."""
        assert self.model.audio is not None
        parts = self.model.audio.prepare(samples)
        found = [self.encode(part) for part in parts if isinstance(part, MediaItem)]
        return np.concatenate(found)

    def stream(self, parts: Sequence[list[int] | RGBImage]) -> Stream:
        """Lay texts and pictures one after the other, as the model says."""
        tokens: list[int] = []
        positions: list[Array] = []
        images: list[tuple[int, MediaItem]] = []
        place, width = 0, self.model.positions_per_token
        for part in parts:
            if isinstance(part, list):
                tokens += part
                positions.append(_consecutive(place, len(part), width))
                place += len(part)
                continue
            prepared = self.vision.prepare(part)
            lies = prepared.placeholders
            images.append((len(tokens), prepared))
            tokens += lies.tokens.tolist()
            if lies.positions is None:
                positions.append(_consecutive(place, len(lies.tokens), width))
            else:
                positions.append(lies.positions + _consecutive(place, 1, width))
            place += lies.advance
        return Stream(tokens, np.concatenate(positions), images)

    def logits(self, parts: Sequence[list[int] | RGBImage]) -> Floats:
        """Return the logits (inputs, vocabulary) of a sequence."""
        return self.logits_and_choices(parts)[0]

    def logits_and_choices(
        self, parts: Sequence[list[int] | RGBImage]
    ) -> tuple[Floats, list[Choices]]:
        """Return the logits of a sequence, and of each mixture the experts of all inputs.

        The experts are (inputs, experts of each).
        """
        choices: list[Tensor] = []
        stream = self.stream(parts)
        count = len(stream.tokens)
        context = self.backend.context()
        data: list[tuple[Tensor, Array]] = []

        def given(array: Array) -> Tensor:
            contiguous = np.ascontiguousarray(array)
            tensor = context.input("x", contiguous.shape, _TYPES[contiguous.dtype])
            data.append((tensor, contiguous))
            return tensor

        positions = stream.positions.astype(np.int32).T
        batch = Batch(
            given(np.array(stream.tokens, np.int32)),
            given(positions if len(positions) > 1 else positions[0]),
            given(np.arange(count, dtype=np.int32)),
            *self._placed(stream, given),
            cross_attention=self._crossed(stream, given),
        )
        shapes = self.model.cache_shapes()
        store = self.backend.context()
        caches = [
            _cache(stream, shape, given, store.layer(index)) for index, shape in enumerate(shapes)
        ]
        for index, shape in enumerate(shapes):
            if isinstance(shape, LayerShape) and shape.shared_layer is not None:
                caches[index] = caches[shape.shared_layer]
        with noted_choices(choices):
            hidden = self.model.hidden(batch, caches)
        results = [context.output(each) for each in (self.model.head(hidden), *choices)]
        found = self.backend.compute(context, data, results).outputs
        context.close()
        store.close()
        logits, *chosen = found
        return np.asarray(logits, np.float32), [np.asarray(each, np.int64) for each in chosen]

    def _placed(self, stream: Stream, given: Any) -> tuple[Tensor | None, Tensor | None]:
        inside = [(at, image) for at, image in stream.images if not image.placeholders.is_cross]
        if not inside:
            return None, None
        rows = [at + np.flatnonzero(image.placeholders.embedded) for at, image in inside]
        embeddings = np.concatenate([self.encode(image) for _, image in inside])
        return given(embeddings), given(np.concatenate(rows).astype(np.int64))

    def _crossed(self, stream: Stream, given: Any) -> CrossAttentionInputs | None:
        beside = [(at, image) for at, image in stream.images if image.placeholders.is_cross]
        if not beside:
            return None
        embeddings = np.concatenate([self.encode(image) for _, image in beside])
        seeing = np.zeros((len(stream.tokens), 1), np.float32)
        shown = np.zeros((len(stream.tokens), len(embeddings)), np.float16)
        ends = [at for at, _ in beside[1:]] + [len(stream.tokens)]
        first = row = 0
        for (at, image), end in zip(beside, ends, strict=True):
            row += image.rows
            seeing[at:end] = 1
            shown[at:end] = -np.inf
            shown[at:end, first:row] = 0
            first = row if end > at + 1 else first  # images beside one another are seen together
        return CrossAttentionInputs(given(embeddings), given(shown), given(seeing))

    def close(self) -> None:
        self.weights.close()
        if self.second:
            self.second.close()


def _cache(
    stream: Stream, shape: CacheShape, given: Callable[[Array], Tensor], storage: Storage
) -> LayerCache:
    """Return the cache of a layer, which may have attention, states, both or neither."""
    whole, beginning = Whole(None), Beginning(())
    for part in cache_parts(shape):
        if isinstance(part, LayerShape):
            whole = Whole(given(mask(stream, part)), part.latent_rank)
            continue
        states = []
        for each in part.shapes:
            stored, *rows = row_arrays(np.zeros((1, *each), np.float32))
            zeros = storage.zeros(stored.shape, GGMLType.F32)
            states.append(state_rows(each, zeros, *map(given, rows)))
        beginning = Beginning(tuple(states))
    return OneSequence(whole, beginning)


def _consecutive(start: int, count: int, width: int) -> Array:
    return np.repeat(np.arange(start, start + count)[:, None], width, 1)


def mask(stream: Stream, shape: LayerShape) -> npt.NDArray[np.float16]:
    """Return what each input sees: its past, in its window or chunk, and its own image."""
    count = len(stream.tokens)
    ago = np.arange(count)[:, None] - np.arange(count)
    shown = ago >= 0
    for at, image in stream.images:
        if image.placeholders.is_bidirectional and not shape.is_causal:
            for start, length in image.placeholders.groups:
                part = slice(at + start, at + start + length)
                shown[part, part] = True
    if shape.window is not None:
        shown &= ago < shape.window
    if shape.chunk is not None:
        shown &= np.arange(count) >= (np.arange(count) // shape.chunk * shape.chunk)[:, None]
    return np.where(shown, np.float16(0), np.float16(-np.inf))


def picture(height: int, width: int, seed: int = 0) -> RGBImage:
    """Return a picture with soft and hard edges; another seed, another picture."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 127 * np.sin(x / (9 + seed)), 255 * y / height, 127 + 100 * np.cos((x + y) / 5)]
    image = np.stack(waves, -1)
    image[height // 3 : height // 2, width // 4 : width // 2] = (230, 20 + 40 * seed, 30)
    return image.astype(np.uint8)


def start(backend: Backend) -> None:
    """Have the backend's thread begin."""
    context = backend.context(8)
    one = context.input("one", (1,), GGMLType.F32)
    two = context.output(one + one)
    backend.compute(context, [(one, np.ones(1, np.float32))], [two])
    context.close()
