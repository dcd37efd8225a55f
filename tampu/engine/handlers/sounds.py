"""Sounds that are measured and cut; nothing of the model is computed."""

from __future__ import annotations

from collections.abc import Iterator

from tampu.audio.formats import SAMPLE_RATE
from tampu.audio.pieces import cut
from tampu.audio.wav import wav_file
from tampu.cancellation import check_cancelled
from tampu.engine.backend import Handlers
from tampu.engine.native import NativeModel
from tampu.engine.sounds import CutSound, SoundPiece, SoundPieces


def cut_sound(model: NativeModel, request: CutSound) -> Iterator[SoundPieces]:
    """Yield the pieces of a sound, each as a part, so that no message has them all.

    Raises:
        RequestError: if the model takes no sounds, or the file cannot be decoded.
    """
    samples = model.media.decode_audio(request.file)
    spans = cut(samples, request.cutting)
    seconds = len(samples) / SAMPLE_RATE
    yield SoundPieces(seconds, (), has_more=bool(spans))
    for left, span in zip(range(len(spans) - 1, -1, -1), spans, strict=True):
        check_cancelled()
        file = wav_file(samples[span.start : span.end])
        piece = SoundPiece(span.start / SAMPLE_RATE, span.end / SAMPLE_RATE, file)
        yield SoundPieces(seconds, (piece,), has_more=left > 0)


HANDLERS: Handlers = {CutSound: cut_sound}
