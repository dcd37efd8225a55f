"""How models are asked for a transcript: in the form that they were trained with, or in a chat.

Sources: Voxtral's `encode_transcription` in mistral-common, Qwen3-ASR's
`apply_transcription_request` in transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tampu.engine.prompts import MEDIA_MARKER, ChatPrompt, TextPrompt
from tampu.errors import RequestError, require
from tampu.server.fields.conversation import check_can
from tampu.server.fields.options import ModelBody, parse_limited
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults

TRANSCRIPT_MARK = "<asr_text>"
"""Of Qwen3-ASR: its answer is `language English<asr_text>` and then the text."""

HEARING = "completion audio"
"""What a model that transcribes can do; one that embeds sounds does not write."""

_TRANSCRIBE_MARK = "[TRANSCRIBE]"
_TRANSCRIBE = "Transcribe the speech exactly as it is spoken. Answer with the transcript alone."
_TRANSLATE = "Translate the speech into English. Answer with the translation alone."
_NAMES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fr": "French",
    "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "mk": "Macedonian", "ms": "Malay", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "th": "Thai",
    "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
}  # fmt: skip
_ISO_639_1 = {
    "aa", "ab", "ae", "af", "ak", "am", "an", "ar", "as", "av", "ay", "az", "ba", "be", "bg",
    "bi", "bm", "bn", "bo", "br", "bs", "ca", "ce", "ch", "co", "cr", "cs", "cu", "cv", "cy",
    "da", "de", "dv", "dz", "ee", "el", "en", "eo", "es", "et", "eu", "fa", "ff", "fi", "fj",
    "fo", "fr", "fy", "ga", "gd", "gl", "gn", "gu", "gv", "ha", "he", "hi", "ho", "hr", "ht",
    "hu", "hy", "hz", "ia", "id", "ie", "ig", "ii", "ik", "io", "is", "it", "iu", "ja", "jv",
    "ka", "kg", "ki", "kj", "kk", "kl", "km", "kn", "ko", "kr", "ks", "ku", "kv", "kw", "ky",
    "la", "lb", "lg", "li", "ln", "lo", "lt", "lu", "lv", "mg", "mh", "mi", "mk", "ml", "mn",
    "mr", "ms", "mt", "my", "na", "nb", "nd", "ne", "ng", "nl", "nn", "no", "nr", "nv", "ny",
    "oc", "oj", "om", "or", "os", "pa", "pi", "pl", "ps", "pt", "qu", "rm", "rn", "ro", "ru",
    "rw", "sa", "sc", "sd", "se", "sg", "si", "sk", "sl", "sm", "sn", "so", "sq", "sr", "ss",
    "st", "su", "sv", "sw", "ta", "te", "tg", "th", "ti", "tk", "tl", "tn", "to", "tr", "ts",
    "tt", "tw", "ty", "ug", "uk", "ur", "uz", "ve", "vi", "vo", "wa", "wo", "xh", "yi", "yo",
    "za", "zh", "zu",
}  # fmt: skip
_CODES = {name.lower(): code for code, name in _NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTask:
    """What is wanted of a sound.

    Attributes:
        translates: into English; else the language that is spoken is kept.
        language: that is spoken, as a code or in English; "": unknown.
        prompt: words and style that are likely; "": none.
    """

    translates: bool = False
    language: str = ""
    prompt: str = ""

    def __post_init__(self) -> None:
        """Raise RequestError for what is not a language, and for that of a translation."""
        if not self.language:
            return
        message = "language is not supported here: a translation is in English"
        require(not self.translates, message)
        given = self.language.lower()
        is_known = given in _ISO_639_1 or given in _NAMES or given in _CODES
        told = f"language must be a code of ISO 639-1 such as en, not {self.language[:50]!r}"
        require(is_known, told)

    @property
    def language_name(self) -> str:
        """The language in English, if it is a known code; else as it was given."""
        return _NAMES.get(self.language.lower(), self.language.capitalize())

    @property
    def instruction(self) -> str:
        """What a model is asked to do in a chat."""
        parts = [_TRANSLATE if self.translates else _TRANSCRIBE]
        if self.language:
            parts.append(f"The language is {self.language}.")
        if self.prompt:
            parts.append(f"Words and style that are likely: {self.prompt}")
        return "\n".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechForm:
    """How one model is asked for the transcript of sounds.

    Attributes:
        task: what is wanted.
        text: the prompt, with a marker for the sound; None: the model is asked in a chat.
        says_language: whether its answer begins with the language; `TranscriptText` leaves it out.
        before_begun: what is put before the start of a transcript that the answer continues.
        warnings: what of the task it does not take.
    """

    task: SpeechTask
    text: str | None = None
    says_language: bool = False
    before_begun: str = ""
    warnings: tuple[str, ...] = ()

    def prompt(self, file: bytes, begun: str = "") -> TextPrompt | ChatPrompt:
        """Return the prompt for a sound."""
        if self.text is not None:
            return TextPrompt(self.text + (self.before_begun + begun if begun else ""), (file,))
        told = self.task.instruction
        messages: list[dict[str, Any]] = [{"role": "user", "content": told, "media": [file]}]
        if begun:
            messages.append({"role": "assistant", "content": begun})
        return ChatPrompt(messages=tuple(messages), think=False, plain=told)


def speech_form(task: SpeechTask, model: str, defaults: ModelDefaults) -> SpeechForm:
    """Return how a model is asked, by the marks in its vocabulary.

    Raises:
        RequestError: if the model does not hear, for a translation by a model that only
            transcribes, and for a language that it does not know.
    """
    check_can(defaults, "audio", model, "audio")
    vocabulary = defaults.info.metadata.strings("tokenizer.ggml.tokens")
    if TRANSCRIPT_MARK in vocabulary:
        return _qwen(task, model)
    if _TRANSCRIBE_MARK in vocabulary and not task.translates:
        return _voxtral(task)
    return SpeechForm(task=task)


def transcription_request(
    form: SpeechForm,
    sounds: Sequence[bytes],
    model: str,
    defaults: ModelDefaults,
    *,
    begun: str = "",
    temperature: float = 0.0,
    is_streamed: bool = False,
    logprobs: bool = False,
) -> GenerationRequest:
    """Return the request for the transcripts of sounds; each is a choice of its events.

    A transcript has at most as many tokens as can be spoken: a model that repeats itself does not
    go on to the end of the context.

    Args:
        form: how the model is asked.
        sounds: the files.
        model: its name as the client wrote it.
        defaults: of the model.
        begun: the start of the transcript, which the answer continues. Qwen3-ASR should know the
            language then.
        temperature: of sampling.
        is_streamed: whether the text is wanted as it is generated.
        logprobs: whether the log-probabilities of tokens are wanted.
    """
    request = parse_limited(
        ModelBody(model=model),
        defaults,
        ("max_tokens", None),
        fields={"temperature": temperature},
        is_streamed=is_streamed,
        logprobs=logprobs,
    )
    return replace(
        request,
        prompts=tuple(form.prompt(sound, begun) for sound in sounds),
        is_transcript=True,
        warnings=(*request.warnings, *form.warnings),
    )


def _voxtral(task: SpeechTask) -> SpeechForm:
    code = _CODES.get(task.language.lower(), task.language.lower())
    spoken = f"lang:{code}" if code else ""
    told = ("prompt is ignored: Voxtral takes none for a transcription",) if task.prompt else ()
    text = f"[INST]{MEDIA_MARKER}[/INST]{spoken}{_TRANSCRIBE_MARK}"
    return SpeechForm(task=task, text=text, warnings=told)


def _qwen(task: SpeechTask, model: str) -> SpeechForm:
    if task.translates:
        raise RequestError(f'"{model[:200]}" only transcribes: choose another model to translate')
    if task.language and task.language_name.lower() not in _CODES:
        raise RequestError(
            f"language must be one that Qwen3-ASR knows ({', '.join(_NAMES)}), "
            f"not {task.language[:50]!r}"
        )
    spoken = f"language {task.language_name}{TRANSCRIPT_MARK}" if task.language else ""
    text = (
        f"<|im_start|>system\n{task.prompt}<|im_end|>\n<|im_start|>user\n{MEDIA_MARKER}<|im_end|>\n"
        f"<|im_start|>assistant\n{spoken}"
    )
    is_free = not task.language
    mark = TRANSCRIPT_MARK if is_free else ""
    return SpeechForm(task=task, text=text, says_language=is_free, before_begun=mark)
