"""Questions to models that are made for decisions; other models answer as in `decide`."""

from __future__ import annotations

import numpy as np

from tampu.engine.backend import Handlers
from tampu.engine.completion import RequestHandle
from tampu.engine.decision_prompts import DecisionPrompt, state_of
from tampu.engine.handlers import decide as by_text
from tampu.engine.native import NativeModel
from tampu.engine.questions import Decisions, check_questions
from tampu.engine.requests import Decide, Decided
from tampu.engine.scoring import AT_ONCE, run_all
from tampu.errors import ContextLengthError
from tampu.ml.vectors import check_finite
from tampu.runner.sequence import RowCollector, Rows, Sink


def decide(model: NativeModel, request: Decide) -> Decided:
    """Return the answers to questions about an input.

    Raises:
        RequestError: for invalid questions, and an input with images.
        ContextLengthError: naming the question that is too long with the input.
        ComputeError: if a score is NaN or infinite.
    """
    prompts = model.decision_prompts
    if prompts is None:
        return by_text.decide(model, request)
    check_questions(request.questions)
    state = state_of(request.prompt.messages)
    asked = [prompts.prompt(state, question) for question in request.questions]
    for index, prompt in enumerate(asked):
        if len(prompt.tokens) > model.context:
            what = f"questions[{index}] with the input is too long"
            raise ContextLengthError.of(len(prompt.tokens), model.context, what)
    scores = _scores(model, request, asked)
    check_finite(scores, "scores", "questions")
    pairs = zip(request.questions, scores, strict=True)
    answers = tuple(prompts.decision(question, found.tolist()) for question, found in pairs)
    return Decided(Decisions(answers, sum(len(prompt.tokens) for prompt in asked), 0))


def _scores(model: NativeModel, request: Decide, asked: list[DecisionPrompt]) -> list[Rows]:
    """Return the scores of the options of each question, (options,)."""
    found: list[list[Rows]] = [[] for _ in asked]
    options = request.engine_options

    def begin(given: tuple[int, DecisionPrompt], sink: Sink) -> RequestHandle:
        index, prompt = given
        segments = [prompt.type] * len(prompt.tokens)
        collector = RowCollector(found[index].append)
        return model.inputs.collect(prompt.tokens, collector, sink, options, segments=segments)

    run_all([*enumerate(asked)], begin, at_once=AT_ONCE)
    rows = (np.concatenate(parts)[:, 0] for parts in found)
    return [own[prompt.markers] for own, prompt in zip(rows, asked, strict=True)]


HANDLERS: Handlers = {Decide: decide}
