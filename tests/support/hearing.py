"""How transformers' models take sounds: one entry for each family that hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    Gemma4AudioFeatureExtractor,
    Qwen3ASRFeatureExtractor,
    WhisperFeatureExtractor,
)
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
        masked: whether it takes the positions of images and sounds from a mask of the tokens.
        layers: to how many layers an image adds something, and a sound nothing.
    """

    process: Callable[[Sequence[Floats]], dict[str, Any]]
    audio: int
    laid: int | None = None
    marks: str | None = None
    masked: bool = False
    layers: int = 0

    def embed(self, model: Any, heard: Floats) -> Floats:
        """Return the embedding of a sound, with what it adds to layers: (rows, features)."""
        inputs = self.process([heard])
        if "windows" in inputs:
            parts = [model.hear(frames) for frames in inputs["windows"]]
            return np.asarray(torch.cat(parts).numpy(), np.float32)
        owner = model if hasattr(model, "get_audio_features") else model.model
        found = owner.get_audio_features(**inputs)
        mask = getattr(found, "attention_mask", None)
        rows = found.pooler_output if mask is None else found.pooler_output[mask]
        embedding: Floats = rows.float().numpy()
        return np.pad(embedding, ((0, 0), (0, self.layers * embedding.shape[1])))

    def read(self, model: Any, tokens: Sequence[int], sounds: Sequence[Floats]) -> Floats:
        """Return the logits of every input."""
        ids = torch.tensor([[self.audio if token == self.laid else token for token in tokens]])
        inputs = self.process(sounds)
        if self.marks:
            inputs[self.marks] = torch.zeros_like(ids)
        if self.masked:
            inputs["attention_mask"] = torch.ones_like(ids)
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


def _qwen3(sounds: Sequence[Floats]) -> dict[str, Any]:
    """Return the sounds' spectrograms, as `Qwen3ASRProcessor`."""
    extractor = Qwen3ASRFeatureExtractor(feature_size=32)
    asked: dict[str, Any] = {"padding": True, "return_attention_mask": True}
    found = [extractor(each, sampling_rate=16_000, **asked) for each in sounds]
    width = max(each["input_features"].shape[-1] for each in found)

    def padded(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(values, (0, width - values.shape[-1]))

    return {
        "input_features": torch.cat([padded(each["input_features"]) for each in found]),
        "input_features_mask": torch.cat([padded(each["attention_mask"]) for each in found]),
    }


def _qwen25_omni(sounds: Sequence[Floats]) -> dict[str, Any]:
    """As `Qwen2_5OmniProcessor`, which fills every sound with silence to one length."""
    extractor = WhisperFeatureExtractor(feature_size=32)
    asked: dict[str, Any] = {"padding": "max_length", "return_attention_mask": True}
    found = extractor(list(sounds), sampling_rate=16_000, return_tensors="pt", **asked)
    return {
        "input_features": found["input_features"],
        "feature_attention_mask": found["attention_mask"],
    }


def _qwen3_omni(sounds: Sequence[Floats]) -> dict[str, Any]:
    """As `Qwen3OmniMoeProcessor` of sounds one by one, of half a second at least.

    The last second of a sound is filled with zeros. transformers does so only beside a whole
    second: its chunks are handed in here.
    """
    filled = [np.pad(each, (0, max(0, 8000 - len(each)))) for each in sounds]
    extractor = WhisperFeatureExtractor(feature_size=32)
    asked: dict[str, Any] = {"padding": True, "truncation": False, "return_tensors": "pt"}
    mels = [extractor(each, sampling_rate=16_000, **asked)["input_features"][0] for each in filled]
    counts = [mel.shape[1] for mel in mels]
    features = torch.zeros(len(mels), 32, max(counts))
    mask = torch.zeros(len(mels), max(counts), dtype=torch.long)
    chunks = []
    for row, (mel, count) in enumerate(zip(mels, counts, strict=True)):
        features[row, :, :count], mask[row, :count] = mel, 1
        chunks += [*torch.split(mel, 100, dim=1)]
    padded = [torch.nn.functional.pad(each, (0, 100 - each.shape[1])) for each in chunks]
    return {
        "input_features": features,
        "feature_attention_mask": mask,
        "audio_padded_feature": torch.stack(padded),
        "audio_chunk_lengths": torch.tensor([each.shape[1] for each in chunks]),
    }


def _gemma4(sounds: Sequence[Floats]) -> dict[str, Any]:
    found = Gemma4AudioFeatureExtractor()(list(sounds), return_tensors="pt")
    return {name: found[name] for name in ("input_features", "input_features_mask")}


HEARINGS: dict[str, Hearing] = {
    "gemma4_unified_hearing": Hearing(_frames, audio=11, laid=0, marks="mm_token_type_ids"),
    "ultravox": Hearing(_ultravox, audio=5),
    "gemma4_small_hearing": Hearing(_gemma4, audio=11, laid=0, marks="mm_token_type_ids"),
    "qwen25_omni": Hearing(_qwen25_omni, audio=10, masked=True),
    "qwen3_omni": Hearing(_qwen3_omni, audio=10, masked=True, layers=2),
    "qwen3_asr": Hearing(_qwen3, audio=7),
    "voxtral": Hearing(_voxtral, audio=7),
}
