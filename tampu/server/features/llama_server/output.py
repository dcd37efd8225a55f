"""llama-server's own API: from the events of a request to a stream, or to one object."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tampu.engine.events import Started
from tampu.errors import TampuError
from tampu.runner.events import Done, PromptProgress, ReasoningDelta, TextDelta, TokenLogprob
from tampu.runner.generate_options import GenerateOptions
from tampu.sampling.parameters import Use, names_of
from tampu.server.fields.telemetry import Telemetry, timings
from tampu.server.front.errors import code_of, llama_server_error, public_message, status_of
from tampu.server.front.http_response import SSE
from tampu.server.openai.output import logprobs_of, text_of, to_event
from tampu.server.serving.events import Event
from tampu.server.serving.generation_request import GenerationRequest

_NO_SEED = 0xFFFFFFFF  # llama-server's word for a random one
_SETTINGS = (*(name for name in names_of(Use.SAMPLING) if name != "infill"), "ignore_eos")


class LlamaCompletionWriter:
    """The response to `POST /completion` and `POST /infill`."""

    media_type = SSE

    def __init__(
        self,
        request: GenerationRequest,
        prompts: Sequence[str],
        *,
        telemetry: Telemetry,
        returns_tokens: bool,
        fields: Sequence[str],
    ) -> None:
        """Respond to a request; `prompts` are their texts, `fields` those of a whole answer."""
        self._request = request
        self._prompts = prompts
        self._telemetry = telemetry
        self._returns_tokens = returns_tokens
        self._fields = fields
        self._prompt_tokens: dict[int, int] = {}
        self._begins: dict[int, str] = {}
        self._generated: dict[int, int] = {}
        self._has_new_line: set[int] = set()

    def write(self, event: Event) -> bytes:
        """Return the chunks of an event."""
        return b"".join(map(to_event, self._chunks(event)))

    def end(self) -> bytes:
        """Return nothing: the last chunk has `stop`."""
        return b""

    def fail(self, error: TampuError) -> bytes:
        """Return a chunk with the error."""
        message = public_message(error)
        return to_event(llama_server_error(status_of(error), message, code_of(error)))

    def whole(self, events: Sequence[Event]) -> Any:
        """Return the one object of a response, or a list of one for each of several answers."""
        for event in events:
            self._count(event)
        found = [
            self._object(index, [event for event in events if event.choice == index])
            for index in sorted({event.choice for event in events})
        ]
        return found if len(found) > 1 else found[0]

    def _chunks(self, event: Event) -> Iterator[dict[str, Any]]:
        self._count(event)
        more = self._telemetry.of(event)
        if isinstance(event, PromptProgress) and self._telemetry.wants_progress:
            yield self._piece(event.choice, "", ()) | more
        elif isinstance(event, Done):
            if event.end is not None:
                probabilities = self._probabilities(event.end.logprobs)
                yield self._piece(event.choice, "", event.end.tokens) | probabilities
            yield self._selected(self._piece(event.choice, "", ()) | self._last(event))
        elif isinstance(event, TextDelta | ReasoningDelta) and (event.text or event.tokens):
            pieces = [(event.text, event.tokens, event.logprobs)]
            if event.logprobs:  # one token at a time
                texts = [event.text] + [""] * (len(event.logprobs) - 1)
                pieces = [
                    (text, (entry.token,), (entry,))
                    for text, entry in zip(texts, event.logprobs, strict=True)
                ]
            for text, tokens, logprobs in pieces:
                piece = self._piece(event.choice, text, tokens) | self._probabilities(logprobs)
                yield piece | more

    def _count(self, event: Event) -> None:
        """Record what the objects tell."""
        if isinstance(event, Started):
            self._prompt_tokens[event.choice] = len(event.tokens)
            self._begins[event.choice] = event.begin
        elif isinstance(event, TextDelta | ReasoningDelta):
            tokens = self._generated.get(event.choice, 0) + len(event.tokens)
            self._generated[event.choice] = tokens
            if "\n" in event.text:
                self._has_new_line.add(event.choice)
        elif isinstance(event, Done) and event.end is not None:
            self._generated[event.choice] = self._generated.get(event.choice, 0) + 1

    def _piece(self, choice: int, text: str, tokens: Sequence[int]) -> dict[str, Any]:
        return {
            "index": choice,
            "content": text,
            "tokens": [*tokens],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._generated.get(choice, 0),
            "tokens_evaluated": self._prompt_tokens.get(choice, 0),
        }

    def _last(self, event: Done) -> dict[str, Any]:
        usage, options = event.usage, self._request.options
        stop_type = "word" if event.stop else "limit" if event.reason == "length" else "eos"
        total = usage.prompt_tokens + usage.generated_tokens
        cut = stop_type == "limit" and usage.generated_tokens != options.max_tokens
        return {
            "stop": True,
            "model": self._request.model,
            "tokens_predicted": usage.generated_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": generation_settings(options),
            "prompt": self._begins.get(event.choice, "")
            + self._prompts[event.choice // self._request.choices],
            "has_new_line": event.choice in self._has_new_line,
            "truncated": cut or usage.dropped_tokens > 0,
            "stop_type": stop_type,
            "stopping_word": event.stop or "",
            "tokens_cached": max(total - 1, 0),
            "timings": timings(usage),
        }

    def _object(self, choice: int, events: Sequence[Event]) -> dict[str, Any]:
        parts = [event for event in events if isinstance(event, TextDelta | ReasoningDelta)]
        ends = [event.end for event in events if isinstance(event, Done) and event.end]
        tokens = [t for part in (*parts, *ends) for t in part.tokens if self._returns_tokens]
        piece = self._piece(choice, "".join(part.text for part in parts), tokens)
        for event in events:
            if isinstance(event, Done):
                piece |= self._last(event)
        logprobs = [*logprobs_of(events), *(entry for end in ends for entry in end.logprobs)]
        return self._selected(piece | self._probabilities(logprobs))

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the likeliest tokens at each place; nothing if they were not requested."""
        if not logprobs:
            return {}
        entry = _prob if self._request.options.post_sampling_probs else _logprob
        listed = "top_probs" if entry is _prob else "top_logprobs"
        found = [
            entry(one.token, one.logprob, one.token_bytes)
            | {
                listed: [
                    entry(token, logprob, data)
                    for (token, logprob), data in zip(one.top, one.top_bytes, strict=True)
                ]
            }
            for one in logprobs
        ]
        return {"completion_probabilities": found}

    def _selected(self, whole: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that the request wants, those inside another by their paths."""
        if not self._fields:
            return whole
        found = {}
        for path in self._fields:
            value: Any = whole
            for name in path.split("/"):
                value = value.get(name, msgspec.UNSET) if isinstance(value, dict) else msgspec.UNSET
            if value is not msgspec.UNSET:
                found[path] = value
        return found


def generation_settings(options: GenerateOptions) -> dict[str, Any]:
    """Return how an answer is generated, under llama-server's names."""
    return {
        "seed": _NO_SEED if options.seed is None else options.seed,
        **{name: getattr(options, name) for name in _SETTINGS},
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "n_keep": options.keep,
        "n_probs": options.top_logprobs,
        "stop": options.stop,
        "logit_bias": [
            {"token": token, "bias": bias} for token, bias in options.logit_bias.items()
        ],
    }


def _logprob(token: int, logprob: float, data: bytes) -> dict[str, Any]:
    return {"id": token, "token": text_of(data), "bytes": [*data], "logprob": logprob}


def _prob(token: int, logprob: float, data: bytes) -> dict[str, Any]:
    """Return the same after sampling; rounding must not make it more than 1."""
    prob = min(math.exp(logprob), 1.0)
    return {"id": token, "token": text_of(data), "bytes": [*data], "prob": prob}
