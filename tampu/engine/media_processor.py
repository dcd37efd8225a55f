"""From files of images, videos and sounds to what a model takes in their place."""

from __future__ import annotations

from typing import cast

from tampu.audio import is_audio
from tampu.audio.formats import SAMPLE_RATE
from tampu.audio.sandboxed import SandboxedAudioDecoder
from tampu.chat.media import Item, PreparedMedia
from tampu.engine.model_loader import LoadedModel
from tampu.errors import RequestError, UnsupportedRequestError
from tampu.nn import AudioModel, MediaItem, RGBImage, Samples, VisionModel
from tampu.runner.layout import NumberedMedia
from tampu.sandbox.client import ForkServerClient
from tampu.vision.sandboxed import SandboxedDecoder
from tampu.vision.sandboxed_video import SandboxedVideoDecoder
from tampu.vision.video import VideoSettings, is_video

_FRAMES = 2  # that are encoded together


class MediaProcessor:
    """Prepares the images, videos and sounds of one model's requests."""

    def __init__(self, model: LoadedModel, fork_server: ForkServerClient) -> None:
        self._name = model.info.name
        self._is_deterministic = model.options.deterministic
        self._encoder = model.vision
        self._audio_encoder = model.audio
        self._encoder_cache = model.scheduler.encoder_cache
        self._tokenizer = model.tokenizer
        self._decoder = SandboxedDecoder(fork_server)
        self._video_decoder = SandboxedVideoDecoder(fork_server)
        self._audio_decoder = SandboxedAudioDecoder(fork_server)

    def prepare_image(self, image: bytes | RGBImage) -> NumberedMedia:
        """Return an image as the model takes it; see `Engine.prepare_image`."""
        vision = self._vision("images")
        pixels = self._decoder.decode(image) if isinstance(image, bytes) else image
        number = self._encoder_cache.number(pixels)
        item = vision.prepare(pixels)
        if self._is_deterministic and item.placeholders.is_cross:
            raise UnsupportedRequestError(
                f"deterministic does not support images of {self._name}: its layers read those of "
                "all requests at once; load it without"
            )
        return NumberedMedia(item, number)

    def prepare_video(self, file: bytes) -> PreparedMedia:
        """Return a video as the model takes it: frames, with their times as text.

        Raises:
            RequestError: if the model takes no videos, or cannot take this one; without PyAV.
        """
        vision = self._vision("videos")
        wanted = vision.video
        if wanted is None:
            raise RequestError(f"{self._name} takes no videos, only images")
        settings = VideoSettings(
            wanted.fps,
            wanted.min_frames,
            wanted.max_frames,
            wanted.multiple,
            wanted.min_pixels,
            wanted.max_pixels,
        )
        video = self._video_decoder.decode(file, settings)
        items: list[Item] = []
        for first in range(0, len(video.frames), _FRAMES):
            part = slice(first, first + _FRAMES)
            text = f"<{video.times[part].mean():.1f} seconds>"
            items += self._tokenizer.encode_inside(text)
            number = self._encoder_cache.number(video.frames[part])
            items.append(NumberedMedia(vision.prepare_frames(video.frames[part]), number))
        return PreparedMedia(tuple(items))

    def prepare_audio(self, sound: bytes | Samples) -> PreparedMedia:
        """Return a sound as the model takes it: tokens, and parts that are encoded one by one.

        Raises:
            RequestError: if the model takes no sounds, or cannot take this one.
        """
        encoder = self._audio()
        samples = self.decode_audio(sound) if isinstance(sound, bytes) else sound
        items = (
            self._numbered(item) if isinstance(item, MediaItem) else item
            for item in encoder.prepare(samples)
        )
        return PreparedMedia(tuple(items), len(samples) / SAMPLE_RATE)

    def decode_audio(self, file: bytes) -> Samples:
        """Return the sound in a file.

        Raises:
            RequestError: if the model takes no sounds, or the file cannot be decoded.
        """
        self._audio()
        return self._audio_decoder.decode(file)

    def prepare_file(self, file: bytes | RGBImage | Samples) -> NumberedMedia | PreparedMedia:
        """Return the image, the video or the sound in a file as the model takes it."""
        if not isinstance(file, bytes):
            if file.ndim == 1:
                return self.prepare_audio(cast("Samples", file))
            return self.prepare_image(cast("RGBImage", file))
        if is_audio(file):
            return self.prepare_audio(file)
        return self.prepare_video(file) if is_video(file) else self.prepare_image(file)

    def _numbered(self, part: MediaItem) -> NumberedMedia:
        return NumberedMedia(part, self._encoder_cache.number_of(part.digest()))

    def _audio(self) -> AudioModel:
        if self._audio_encoder is None:
            raise RequestError(
                f"{self._name} takes no audio: it has no audio encoder; choose a model with the "
                "capability audio"
            )
        return self._audio_encoder

    def _vision(self, what: str) -> VisionModel:
        if self._encoder is None:
            raise RequestError(f"{self._name} takes no {what}: it has no vision encoder")
        return self._encoder

    def warm_up(self) -> None:
        """Set up ahead of time what the first image will need."""
        if self._encoder is not None:
            self._decoder.prepare()

    def close(self) -> None:
        """End the sandboxes that decode."""
        self._decoder.close()
        self._video_decoder.close()
        self._audio_decoder.close()
