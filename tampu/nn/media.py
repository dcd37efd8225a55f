"""The interface of encoders to the runner: their graphs, and the placeholders of what they encode.

The runner prepares an image, or a part of a sound, as an item. It computes the encoder's graph
once, caches the embedding, and puts the placeholders into the sequence.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError, RequestError
from tampu.ml import Context, Tensor
from tampu.ml.metadata import Metadata
from tampu.nn.module import Module

RGBImage: TypeAlias = npt.NDArray[np.uint8]
"""A decoded image: RGB, (height, width, 3)."""

Samples: TypeAlias = npt.NDArray[np.float32]
"""A decoded sound: mono, (samples,), 16,000 a second, between -1 and 1."""

SpecialTokens: TypeAlias = Mapping[str, tuple[tuple[str, ...], ...]]
"""The spellings of each special token, or sequence of tokens; the preferred one first."""


@dataclass(frozen=True, slots=True, eq=False)
class Placeholders:
    """The inputs of one item: one token for each entry of the cache.

    Attributes:
        tokens: I32, (n,): exactly as they will sit in the cache.
        embedded: bool, (n,): which of them take the rows of the embedding, in order. None if the
            embedding goes to layers with cross-attention.
        groups: (start, length) of the inputs that must share a batch. They begin with the item's
            own inputs, never with a start token that prompts with other images share.
        is_bidirectional: whether the embedded tokens of a group attend to one another both ways.
        positions: I32, (n, k): rows relative to the item's start; None: consecutive positions.
        advance: how far the position moves over the item.
        is_cross: whether the embedding goes to layers with cross-attention, not into the stream.
    """

    tokens: npt.NDArray[np.int32]
    embedded: npt.NDArray[np.bool_]
    groups: tuple[tuple[int, int], ...]
    advance: int
    is_bidirectional: bool = False
    positions: npt.NDArray[np.int32] | None = None
    is_cross: bool = False


def blank_square(pixels: float) -> RGBImage:
    """Return a blank image of at most so many pixels."""
    side = int(pixels**0.5)
    return np.zeros((side, side, 3), np.uint8)


def grid_placeholders(
    tokens: Mapping[str, tuple[int, ...]], rows: int, columns: int
) -> Placeholders:
    """Return the inputs of a grid: one token between a start and an end for each of its places.

    They have one time, and their row and column (arXiv:2409.12191); the fourth number is the time.

    Args:
        tokens: `start`, `image` and `end`.
        rows: of the grid.
        columns: of the grid.
    """
    count, after = rows * columns, 1 + max(rows, columns)
    whole = np.array([*tokens["start"], *tokens["image"] * count, *tokens["end"]], np.int32)
    positions = np.ones((count + 2, 4), np.int32)
    positions[1:-1, 1:3] += np.indices((rows, columns), np.int32).reshape(2, -1).T
    positions[0], positions[-1] = 0, after
    return Placeholders(
        whole,
        whole == tokens["image"][0],
        groups=((1, count),),
        advance=after + 1,
        positions=positions,
    )


def audio_placeholders(token: int, count: int) -> Placeholders:
    """Return the inputs of a part of a sound: one token for each row of its embedding."""
    tokens = np.full(count, token, np.int32)
    return Placeholders(tokens, np.ones(count, np.bool_), groups=(), advance=count)


@dataclass(frozen=True, slots=True, eq=False)
class MediaItem:
    """The input of an encoder for an image, for frames of a video or for a part of a sound.

    Attributes:
        arrays: data of the encoder's inputs, by name: F32, F16, I32 or I64.
        key: items with equal keys use the same encoder graph.
        rows: how many rows the embedding has.
        placeholders: its tokens.
        is_audio: whether the audio encoder computes it, not the vision encoder.
    """

    arrays: Mapping[str, npt.NDArray[np.generic]] = field(repr=False)
    key: Hashable
    rows: int
    placeholders: Placeholders
    is_audio: bool = False

    def digest(self) -> bytes:
        """Return a digest of the encoder's inputs."""
        digest = hashlib.sha256(repr((self.is_audio, self.key)).encode())
        for name, array in self.arrays.items():
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


@dataclass(frozen=True, slots=True)
class VideoSampling:
    """Which frames of a video a model takes, and their size.

    Attributes:
        multiple: divides both sides of a frame.
        max_pixels: of all frames together.
        min_pixels: of all frames together.
        fps: frames taken of each second.
        min_frames: at least so many are taken, if the video has them.
        max_frames: at most so many are taken.
    """

    multiple: int
    max_pixels: int
    min_pixels: int = 4096
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768


class Encoder(Module):
    """An encoder of images or sounds with its projector, in the text model's file or its own.

    Attributes:
        options_type: the dataclass of its options, under the file's architecture or under `clip`.
        projectors: what a projector's file calls this kind, in `clip.projector_type`.
        unused: prefixes of tensors that files may hold and that it does not use.
        special_tokens: those that stand for what is encoded and around it, by name; the first of
            the spellings that the vocabulary has is used.
        options: of this file.
        tokens: the ids of the special tokens, by the same names.
    """

    options_type: ClassVar[type[Any]]
    projectors: ClassVar[tuple[str, ...]]
    unused: ClassVar[tuple[str, ...]] = ()
    special_tokens: ClassVar[SpecialTokens] = {}
    options: Any
    tokens: Mapping[str, tuple[int, ...]]

    @abstractmethod
    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:
        """Build the encoder's graph and return its embedding, F32, (rows, features).

        Args:
            context: of the graph.
            key: of the items that the graph is for.
            inputs: tensors of the shapes and types of `MediaItem.arrays`, under their names.
        """

    @abstractmethod
    def largest(self) -> MediaItem:
        """Return the input whose encoding takes most memory; its content is blank."""


class VisionModel(Encoder):
    """An encoder of images."""

    @property
    def video(self) -> VideoSampling | None:
        """Which frames it takes of a video; None: it takes no videos."""
        return None

    def prepare_frames(self, frames: npt.NDArray[np.uint8]) -> MediaItem:
        """Return two frames (2, height, width, 3) of a video, in the size that `video` asks for.

        Raises:
            RequestError: if it takes no videos.
        """
        raise RequestError(f"the model takes images, but no videos: {frames.shape}")

    @abstractmethod
    def prepare(self, image: RGBImage) -> MediaItem:
        """Resize, cut and normalize an image; on the host alone, from any thread.

        Raises:
            RequestError: for an image that the model cannot take.
        """


class AudioModel(Encoder):
    """An encoder of sounds."""

    @abstractmethod
    def prepare(self, samples: Samples) -> tuple[int | MediaItem, ...]:
        """Return a sound as tokens and parts that are encoded one by one, in order.

        The same beginning of two sounds has the same parts, as far as the features allow it: a
        sound that grows is encoded from where it was. On the host alone, from any thread.

        Args:
            samples: of the whole sound, 16,000 a second.

        Raises:
            RequestError: for a sound that the model cannot take.
        """


def read_colors(
    metadata: Metadata, key: str, usual: tuple[float, float, float], *, is_divisor: bool = False
) -> tuple[float, float, float]:
    """Return a number for each color.

    Args:
        metadata: of the file.
        key: under the architecture's prefix.
        usual: the numbers if the file does not have the key.
        is_divisor: whether they must be above 0.

    Raises:
        ModelFileError: for other than three numbers, or one of 0 or less that divides.
    """
    numbers = metadata.numbers(key, usual).tolist()
    if len(numbers) != 3 or (is_divisor and not min(numbers) > 0):
        reason = f"{numbers} are not of three colors"
        raise ModelFileError(f"key '{metadata.full_key(key)}'", reason)
    return numbers[0], numbers[1], numbers[2]


def find_special_tokens(
    metadata: Metadata, special_tokens: SpecialTokens
) -> dict[str, tuple[int, ...]]:
    """Return the ids of each special token in a file's vocabulary.

    Raises:
        ModelFileError: naming a token that it lacks under all its spellings.
    """
    if not special_tokens:
        return {}
    key = "tokenizer.ggml.tokens"
    ids = {text: index for index, text in enumerate(metadata.strings(key))}
    found = {}
    for name, spellings in special_tokens.items():
        known = next((each for each in spellings if all(text in ids for text in each)), None)
        if known is None:
            raise ModelFileError(key, f"has no {spellings[0][0]!r}, which images or sounds need")
        found[name] = tuple(ids[text] for text in known)
    return found
