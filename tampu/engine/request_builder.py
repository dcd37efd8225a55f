"""Builds requests: prompt, grammar, reasoning tags and budget, and the parser of the output.

All requests are built here: those of the server's workers, of `tampu run` and of `Engine`, for both
engines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from tampu.chat.fim import FillInTheMiddle
from tampu.chat.media import Item, length, media_items, prepared_media, sound_seconds, with_media
from tampu.chat.output import ChatFormat
from tampu.chat.output.tool_grammar import (
    ReasoningMode,
    after_reasoning,
    tool_call_grammar,
    tool_calls_or_content,
)
from tampu.chat.prompt import BuiltPrompt, PromptBuilder
from tampu.chat.template_loader import PromptTemplate
from tampu.engine.output import OutputParser
from tampu.engine.prompts import (
    MEDIA_MARKER,
    ChatPrompt,
    FIMPrompt,
    ItemsPrompt,
    Prompt,
    StructuredOutput,
    TextPrompt,
    TokensPrompt,
)
from tampu.engine.ranking import PairBuilder
from tampu.engine.sounds import spoken_tokens
from tampu.errors import ContextLengthError, RequestError
from tampu.runner.generate_options import GenerateOptions, ReasoningTags, log_ignored
from tampu.sampling.grammar import Grammar, grammar_of
from tampu.sandbox.client import ForkServerClient
from tampu.tokenizer import Tokenizer
from tampu.tokenizer.prompts import EmbeddingPrompts

if TYPE_CHECKING:
    from tampu.ml.metadata import Metadata
    from tampu.sampling.constraint import GrammarTrial

_NO_TEMPLATE = "the model has no chat template: send a prompt, not messages"
_NO_PLACE = "the model has no chat template, which would say where images and sounds go"
PrepareFile: TypeAlias = Callable[[bytes], Any]
"""Returns the image, the video or the sound in a file as a model takes it; raises RequestError for
others."""

_MAX_TAG_TOKENS = 16  # of the tag that begins reasoning at the end of a prompt


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request as a backend takes it.

    Attributes:
        tokens: the prompt, with prepared media at their positions.
        options: with the grammar and the reasoning tags.
        output: splits the output.
    """

    tokens: list[Item]
    options: GenerateOptions
    output: OutputParser


class RequestBuilder:
    """Builds the requests of one model. Any thread may call it.

    Attributes:
        tokenizer: the model's.
        context: the maximum number of tokens of a prompt.
        prepare_file: returns an image, a video or a sound as the model takes it.
        prompts: renders conversations; None without a chat template.
        pairs: pairs queries with documents; None: the model has no rank head.
        embedding_prompts: texts before those that are embedded.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: int,
        prepare_file: PrepareFile,
        prompts: PromptBuilder | None,
        fim: FillInTheMiddle | None = None,
        pairs: PairBuilder | None = None,
        fork_server: ForkServerClient | None = None,
        embedding_prompts: EmbeddingPrompts | None = None,
    ) -> None:
        """Build requests of a model.

        Args:
            tokenizer: and what follows, as the attributes.
            context: see there.
            prepare_file: see there.
            prompts: see there.
            fim: None: it does not support fill-in-the-middle.
            pairs: see there.
            fork_server: for the sandbox that tries formats; None: a new one.
            embedding_prompts: None: none.
        """
        self.tokenizer, self.context, self.prepare_file = tokenizer, context, prepare_file
        self.prompts, self.pairs = prompts, pairs
        self.embedding_prompts = embedding_prompts or EmbeddingPrompts()
        self._fim = fim
        self._style = prompts.style if prompts else None
        self._fork_server = fork_server

    @classmethod
    def for_model(
        cls,
        tokenizer: Tokenizer,
        context: int,
        prepare_file: PrepareFile,
        template: PromptTemplate | None,
        metadata: Metadata,
        fork_server: ForkServerClient,
        parser: str = "",
    ) -> RequestBuilder:
        """Return the builder for a model; templates are rendered in a sandbox.

        `parser` is the name of the output parser in the Modelfile; "": by the template.
        """
        prompts = PromptBuilder.for_model(template, tokenizer, metadata, fork_server, parser)
        fim = FillInTheMiddle.for_model(template, tokenizer, metadata, fork_server)
        pairs = PairBuilder.for_model(metadata, tokenizer)
        before = EmbeddingPrompts.read(metadata)
        return cls(tokenizer, context, prepare_file, prompts, fim, pairs, fork_server, before)

    def build(
        self,
        prompt: Prompt,
        options: GenerateOptions,
        structure: StructuredOutput | None = None,
        *,
        streams_calls: bool = False,
        max_calls: int | None = None,
        choice: int = 0,
        is_transcript: bool = False,
    ) -> ModelRequest:
        """Return a request.

        Args:
            prompt: of any kind.
            options: of the request; `truncate` also allows dropping messages.
            structure: the structure of the output; None: the grammar of `options`.
            streams_calls: whether the output's calls are passed on while they are written.
            max_calls: as in `Generate`.
            choice: as in `Generate`.
            is_transcript: as in `Generate`.

        Raises:
            RequestError: if the model has no template, its template rejects the conversation, or
                its format has no tool calls.
            ContextLengthError: for a prompt that is too long, unless it may be shortened.
            GrammarError: for a grammar that is invalid or not supported.
        """
        built = self.prompt(prompt, truncate=options.truncate)
        if is_transcript:
            options = replace(options, max_tokens=_most_spoken(options, built))
        items = isinstance(prompt, ItemsPrompt)  # the engine knows where media may be cut
        tokens = built.tokens if items else self._fitting(built, options)
        dropped = built.dropped + len(built.tokens) - len(tokens)
        if structure is not None:
            options = replace(options, grammar=self._grammar(structure, prompt, built))
        parser = None
        if self._style is not None and isinstance(prompt, ChatPrompt):
            options = replace(options, shown=self._style.markers)
            style = self._style
            if prompt.keeps_reasoning:
                style = style.with_reasoning_in_content()
            parser = style.parser(
                prompt.tools or (),
                in_reasoning=built.ends_in_reasoning,
                streams_calls=streams_calls,
                must_call=structure is not None and structure.must_call,
            )
        options = self.with_reasoning_tags(options, ends_in_reasoning=built.ends_in_reasoning)
        output = OutputParser(parser, dropped, max_calls=max_calls, choice=choice)
        return ModelRequest(tokens, options, output)

    def prompt(
        self, prompt: Prompt, *, truncate: bool = False, context: int | None = None
    ) -> BuiltPrompt:
        """Return a prompt's tokens.

        Args:
            prompt: of any kind.
            truncate: drop the oldest messages of a conversation that is too long.
            context: the maximum number of tokens; None: the model's context.

        Raises:
            As `build`.
        """
        tokenizer = self.tokenizer
        match prompt:
            case TextPrompt(text=text, media=media):
                if media:
                    prepared = prepared_media(media, self.prepare_file, prompt.places)
                    more = length(prepared) - len(prepared)
                    seconds = sound_seconds(prepared)
                    items = media_items(tokenizer, text, prepared, MEDIA_MARKER)
                    return BuiltPrompt(items, more=more, seconds=seconds)
                return self._raw(tokenizer.encode(text))
            case TokensPrompt(tokens=tokens):
                return self._raw(known_tokens(tokens, tokenizer))
            case ItemsPrompt(items=items):
                return self._raw([*items])
            case FIMPrompt(prefix=prefix, suffix=suffix):
                if self._fim is None:
                    raise RequestError(
                        "the model does not support fill-in-the-middle (no FIM tokens or template)"
                    )
                return BuiltPrompt([*self._fim.tokens(prefix, suffix)])
        return self._chat_prompt(prompt, truncate=truncate, most=context or self.context)

    def _chat_prompt(self, prompt: ChatPrompt, *, truncate: bool, most: int) -> BuiltPrompt:
        """Return the tokens of a conversation, at most so many."""
        before = list(prompt.before)
        if self.prompts is None:
            if prompt.plain is None:
                raise RequestError(_NO_TEMPLATE)
            if any(message.get("media") for message in prompt.messages):
                raise RequestError(_NO_PLACE)
            return self._raw(before + self.tokenizer.encode(prompt.plain, add_special=not before))
        messages = with_media(prompt.messages, self.prepare_file, prompt.places)
        seconds = sum(sound_seconds(each.get("media") or ()) for each in messages)
        built = self.prompts.build(
            messages,
            # One less, so that the first token of the answer drops nothing.
            limit=max(most - 1 - len(before), 1) if truncate else None,
            tools=prompt.tools,
            variables=prompt.variables,
            think=prompt.think,
            add_generation_prompt=prompt.add_generation_prompt,
        )
        if before or seconds:
            built = dataclasses.replace(built, tokens=before + built.tokens, seconds=seconds)
        if len(built) > most and not truncate:
            raise ContextLengthError.of(len(built), most)
        return built

    def prompt_text(self, prompt: ChatPrompt) -> str:
        """Return a conversation as the template writes it, without the begin token.

        Raises:
            RequestError: if the model has no template or its template rejects the conversation.
        """
        if self.prompts is not None:
            return self.prompts.text(
                prompt.messages,
                tools=prompt.tools,
                variables=prompt.variables,
                think=prompt.think,
                add_generation_prompt=prompt.add_generation_prompt,
            )
        if prompt.plain is None:
            raise RequestError(_NO_TEMPLATE)
        return prompt.plain

    def check_format(self, wanted: object) -> None:
        """Try an output format, as `grammar_of` takes it; nothing is generated.

        Raises:
            GrammarError: as `GrammarTrial.check`.
        """
        if grammar := grammar_of(wanted):
            self._trial.check(grammar)

    @cached_property
    def _trial(self) -> GrammarTrial:
        from tampu.sampling.constraint import GrammarTrial  # slow, and seldom needed

        return GrammarTrial(self.tokenizer, self._fork_server or ForkServerClient())

    def ends_in_reasoning(self, tokens: Sequence[Item]) -> bool:
        """Return whether a prompt ends inside reasoning."""
        if self._style is None or self._style.reasoning is None:
            return False
        text_of = self.tokenizer.token_text
        end = [token for token in tokens[-_MAX_TAG_TOKENS:] if isinstance(token, int)]
        return self._style.ends_in_reasoning("".join(map(text_of, end)))

    def with_reasoning_tags(
        self, options: GenerateOptions, *, ends_in_reasoning: bool
    ) -> GenerateOptions:
        """Return options with the model's reasoning tags, which a `think_budget` needs."""
        if self._style is None or self._style.reasoning is None:
            return options
        tags = ReasoningTags(
            begin=self._style.reasoning.begin,
            end=self._style.reasoning.end,
            is_open=ends_in_reasoning,
            anywhere=self._style.read is not None,
            markers=self._style.markers,
        )
        return replace(options, reasoning_tags=tags)

    def _fitting(self, built: BuiltPrompt, options: GenerateOptions) -> list[Item]:
        """Return a prompt without its middle if it is too long, before anything is made of it.

        One with media is left to the backend.

        Raises:
            ContextLengthError: if it is too long and must not be cut.
        """
        tokens, context = built.tokens, self.context
        count = len(tokens)
        if count <= context or built.more:
            return tokens
        if not options.truncate:
            raise ContextLengthError.of(count, context)
        keep = context - 1 if options.keep < 0 else min(options.keep, context - 1)
        return tokens[:keep] + tokens[count - context + keep :]

    def _raw(self, tokens: list[Item]) -> BuiltPrompt:
        return BuiltPrompt(tokens, self.ends_in_reasoning(tokens))

    def _grammar(
        self, structure: StructuredOutput, prompt: Prompt, built: BuiltPrompt
    ) -> Grammar | None:
        """Return the grammar of an output; None: any text."""
        grammar, style = grammar_of(structure.format), self._style
        if not structure.warnings:  # else the request's response has them
            log_ignored(grammar)
        if style is None or not isinstance(prompt, ChatPrompt):
            if structure.must_call:
                raise RequestError("tool_choice needs a chat template, and this model has none")
            return grammar
        tokens = self.tokenizer.control_tokens(style.markers)
        reasoning = _reasoning_mode(style, prompt, ends_in_reasoning=built.ends_in_reasoning)
        tools, parallel = prompt.tools or (), structure.is_parallel
        if structure.must_call:
            return tool_call_grammar(
                style, tools, tokens, name=structure.tool, parallel=parallel, reasoning=reasoning
            )
        if grammar and structure.may_call and style.call is not None:
            return tool_calls_or_content(
                grammar, style, tools, tokens, parallel=parallel, reasoning=reasoning
            )
        return grammar and after_reasoning(grammar, style, tokens, reasoning)


def _most_spoken(options: GenerateOptions, built: BuiltPrompt) -> int:
    """Return how many tokens a transcript has at most."""
    most = spoken_tokens(built.seconds)
    return most if options.max_tokens is None else min(options.max_tokens, most)


def _reasoning_mode(
    style: ChatFormat, prompt: ChatPrompt, *, ends_in_reasoning: bool
) -> ReasoningMode:
    if ends_in_reasoning:
        return "begun"
    return "no" if prompt.think is False or style.reasoning is None else "may"


def known_tokens(tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return tokens of a client as a list.

    Raises:
        RequestError: naming the first that is not in the vocabulary.
    """
    limit = tokenizer.vocabulary_size
    wrong = next((token for token in tokens if not 0 <= token < limit), None)
    if wrong is not None:
        named = f"token {wrong}" if abs(wrong) < 2**63 else "a token of more than 63 bits"
        raise RequestError(f"{named} is not in the vocabulary of {limit} tokens")
    return list(tokens)
