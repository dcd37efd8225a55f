"""The keys of preprocessor_config.json of models that hear: how a sound becomes a spectrogram.

What an encoder has as constants is an error with another value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tampu.convert.config import Config
from tampu.convert.keys.table import GENERATED, LIBRARY, REQUEST, Keys

_OF_SOUNDS = frozenset(
    {"n_samples", "nb_max_frames", "chunk_length", "padding_side", "return_attention_mask",
     "feature_size", "sampling_rate", "hop_length", "n_fft", "dither", "padding_value"}
)  # fmt: skip
_BATCH = "it is about how transformers holds several sounds"


@dataclass(frozen=True, kw_only=True, slots=True)
class SoundSteps:
    """What an encoder does to each sound, as constants of its code: Whisper's spectrogram.

    Attributes:
        hop: samples from one frame to the next.
        transformed: samples of a frame.
        others: further keys that have only these values.
    """

    hop: int = 160
    transformed: int = 400
    others: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def divide_settings(settings: Config) -> tuple[Config, Config]:
    """Return what one file says of pictures, and what it says of sounds."""
    heard = {key: value for key, value in settings.values.items() if key in _OF_SOUNDS}
    seen = {key: value for key, value in settings.values.items() if key not in _OF_SOUNDS}
    return settings.changed(seen), settings.changed(heard)


def check_sounds(
    sound: Config, steps: SoundSteps, parameters: Mapping[str, object]
) -> Iterator[str]:
    """Yield what the settings of the feature extractor say that the encoder does not do.

    Args:
        sound: the settings.
        steps: of the family.
        parameters: the model's keys.
    """
    keys = Keys(
        irrelevant={
            **dict.fromkeys(("feature_extractor_type", "processor_class", "auto_map"), LIBRARY),
            **dict.fromkeys(("n_samples", "nb_max_frames", "chunk_length"), GENERATED),
            **dict.fromkeys(("padding_side", "return_attention_mask"), _BATCH),
            "return_tensors": REQUEST,
        },
        neutral={
            "feature_size": (parameters.get("audio.num_mel_bins"),),
            "sampling_rate": (16_000,),
            "hop_length": (steps.hop,),
            "n_fft": (steps.transformed,),
            "dither": (0.0,),
            "padding_value": (0.0,),
            **steps.others,
        },
    )
    for key, value in sound.values.items():
        if why := keys.refused(key, value):
            yield f"{sound.where}: {key} {why}"
