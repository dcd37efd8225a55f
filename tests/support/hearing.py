"""How transformers' models take sounds: one entry for each family that hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import WhisperFeatureExtractor
from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import (
    Gemma4UnifiedAudioFeatureExtractor,
)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Hearing:
    """One family.

    Attributes:
        process: sounds -> the model's keyword arguments.
        audio: the token in whose place an embedding's row stands.
        laid: what tampu lays there, if that is another token.
        marks: an argument that is 0 for every token, for models that want it.
    """

    process: Callable[[Sequence[Floats]], dict[str, Any]]
    audio: int
    laid: int | None = None
    marks: str | None = None

    def read(self, model: Any, tokens: Sequence[int], sounds: Sequence[Floats]) -> Floats:
        """Return the logits of every input."""
        ids = torch.tensor([[self.audio if token == self.laid else token for token in tokens]])
        inputs = self.process(sounds)
        if self.marks:
            inputs[self.marks] = torch.zeros_like(ids)
        found: Floats = model(input_ids=ids, **inputs).logits[0].float().numpy()
        return found


def _frames(sounds: Sequence[Floats]) -> dict[str, Any]:
    found = Gemma4UnifiedAudioFeatureExtractor()(list(sounds), return_tensors="pt")
    return {name: found[name] for name in ("input_features", "input_features_mask")}


def _mel(samples: Floats, bins: int, multiple: int) -> torch.Tensor:
    """Return transformers' spectrogram (bins, frames) of samples filled up to a multiple."""
    extractor = WhisperFeatureExtractor(feature_size=bins)
    found = extractor(
        samples,
        sampling_rate=16_000,
        padding="longest",
        pad_to_multiple_of=multiple,
        truncation=False,
        return_tensors="pt",
    )
    features: torch.Tensor = found["input_features"][0]
    return features


def _ultravox(sounds: Sequence[Floats]) -> dict[str, Any]:
    """Split each sound in windows of 200 frames."""
    mels = (_mel(np.pad(each, (0, max(0, 480 - len(each)))), 80, 160) for each in sounds)
    windows = [window for mel in mels for window in torch.split(mel, 200, dim=1)]
    return {"windows": windows, "audio_token": 5}


def _voxtral(sounds: Sequence[Floats]) -> dict[str, Any]:
    """As `VoxtralProcessor`, for windows of 200 frames."""
    mels = (_mel(each, 128, 200 * 160) for each in sounds)
    windows = [mel.reshape(128, -1, 200).transpose(0, 1) for mel in mels]
    return {"input_features": torch.cat(windows)}


HEARINGS: dict[str, Hearing] = {
    "gemma4_unified_hearing": Hearing(_frames, audio=11, laid=0, marks="mm_token_type_ids"),
    "ultravox": Hearing(_ultravox, audio=5),
    "voxtral": Hearing(_voxtral, audio=7),
}
