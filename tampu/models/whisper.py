"""Whisper's encoder, and the two projectors behind it: Ultravox's and Voxtral's.

Two convolutions make one position of two frames of 10 ms, and neighbouring positions are projected
together. Voxtral encodes whole windows of 30 s, the last filled with silence; Ultravox stops where
the sound does.

Sources: arXiv:2212.04356 (Whisper), arXiv:2507.13264 (Voxtral), Fixie's ultravox_model.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tampu import nn
from tampu.audio import HOP, check_length, whisper_log_mel
from tampu.ml import Context, Tensor
from tampu.ml.gates import silu_gate

_MAX_SECONDS = 7200
_SHORTEST = 3 * HOP  # samples: half a frame is mirrored at both ends
_STRIDE = 2  # frames of a position


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = nn.option("audio.block_count", at_most=1024)
    heads: int = nn.option("audio.attention.head_count", at_most=4096)
    epsilon: float = nn.option("audio.attention.layer_norm_epsilon", default=1e-5)
    bins: int = nn.option("audio.num_mel_bins", at_most=1024)
    stack: int = nn.option("audio.projector.stack_factor", at_most=64)  # positions of a token


class WhisperEncoder(nn.Module):
    first: nn.Conv1d = nn.gguf("conv1d.1")
    second: nn.Conv1d = nn.gguf("conv1d.2")
    position: nn.Embedding = nn.gguf("position_embd")
    layers: list[nn.EncoderLayer] = nn.gguf("blk", count="layers")
    norm: nn.LayerNorm = nn.gguf("post_ln")

    @property
    def window(self) -> int:
        """The most frames that are encoded at once."""
        return _STRIDE * self.position.weight.shape[0]

    def __call__(self, context: Context, inputs: Mapping[str, Tensor], o: Options) -> Tensor:
        """Return (positions, features) for `frames` (n, bins) and `places`."""
        return self.norm(self.hidden(context, inputs, o.heads, o.epsilon), o.epsilon)

    def hidden(
        self, context: Context, inputs: Mapping[str, Tensor], heads: int, epsilon: float
    ) -> Tensor:
        """Return the result of the last layer, before the norm."""
        x = self.first(inputs["frames"]).gelu_exact()
        x = self.second(x, _STRIDE).gelu_exact() + self.position(inputs["places"])
        activate = Tensor.gelu_exact
        for layer in self.layers:
            x = layer(context.pause(x), heads=heads, epsilon=epsilon, activate=activate)
        return x


class UltravoxProjector(nn.Module):
    norm: nn.RMSNorm = nn.gguf("norm_pre")
    first: nn.Linear = nn.gguf("mlp.1")
    middle_norm: nn.RMSNorm = nn.gguf("norm_mid")
    second: nn.Linear = nn.gguf("mlp.2")

    epsilon: ClassVar[float] = 1e-6

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, outputs) for stacked positions (n, inputs)."""
        up, gate = self.first(self.norm(x, self.epsilon)).split(2)
        return self.second(self.middle_norm(silu_gate(gate, up), self.epsilon))


class Ultravox(nn.AudioModel):
    encoder: WhisperEncoder = nn.gguf("a")
    projector: UltravoxProjector = nn.gguf("mm.a")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("ultravox",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "audio": (("<|eot_id|>",), ("<|im_end|>",), ("</s>",))  # the end of a turn stands there
    }
    options: Options

    def prepare(self, samples: nn.Samples) -> tuple[int | nn.MediaItem, ...]:
        check_length(samples, _MAX_SECONDS)
        length = max(_SHORTEST, len(samples) + -len(samples) % HOP)
        frames = whisper_log_mel(_filled(samples, length), self.options.bins)
        return _parts(frames, self.encoder.window, self.options, self.tokens["audio"][0])

    def largest(self) -> nn.MediaItem:
        return _largest(self.encoder.window, self.options)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        return self.projector(_stacked(self.encoder(context, inputs, self.options), self.options))


class Voxtral(nn.AudioModel):
    encoder: WhisperEncoder = nn.gguf("a")
    projector: nn.GeluProjector = nn.gguf("mm.a")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ("voxtral",)
    special_tokens: ClassVar[nn.SpecialTokens] = {
        "start": (("[BEGIN_AUDIO]",),),
        "audio": (("[AUDIO]",),),
    }
    options: Options

    def prepare(self, samples: nn.Samples) -> tuple[int | nn.MediaItem, ...]:
        check_length(samples, _MAX_SECONDS)
        window = self.encoder.window
        length = len(samples) + -len(samples) % (window * HOP)
        frames = whisper_log_mel(_filled(samples, length), self.options.bins)
        parts = _parts(frames, window, self.options, self.tokens["audio"][0])
        return (*self.tokens["start"], *parts)

    def largest(self) -> nn.MediaItem:
        return _largest(self.encoder.window, self.options)

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        return self.projector(_stacked(self.encoder(context, inputs, self.options), self.options))


def _filled(samples: nn.Samples, length: int) -> nn.Samples:
    """Return the samples with silence behind them."""
    return np.pad(samples, (0, length - len(samples)))


def _parts(frames: nn.Samples, window: int, o: Options, token: int) -> tuple[nn.MediaItem, ...]:
    """Return what is encoded of frames (n, bins): windows, of which the last may be shorter."""
    starts = range(0, len(frames), window)
    return tuple(_part(frames[start : start + window], o, token) for start in starts)


def _part(frames: nn.Samples, o: Options, token: int) -> nn.MediaItem:
    positions = -(-len(frames) // _STRIDE)
    rows = -(-positions // o.stack)
    arrays = {"frames": frames, "places": np.arange(positions, dtype=np.int32)}
    lies = nn.audio_placeholders(token, rows)
    return nn.MediaItem(arrays, len(frames), rows, lies, is_audio=True)


def _largest(window: int, o: Options) -> nn.MediaItem:
    return _part(np.zeros((window, o.bins), np.float32), o, 0)


def _stacked(x: Tensor, o: Options) -> Tensor:
    """Return (rows, stack * features): neighbours side by side, behind the last of them zeros."""
    missing = -x.shape[0] % o.stack
    whole = x.concat(nn.zero_rows(x, missing), 0) if missing else x
    return whole.reshape(-1, o.stack * x.shape[1])
