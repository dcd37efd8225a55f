"""Loads a model together with the draft model that guesses its next tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from tampu.engine.load_options import DEFAULT_BATCH, LoadOptions
from tampu.engine.model_loader import LoadedModel, load_model
from tampu.errors import (
    LoadCancelledError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    TampuError,
    UnsupportedModelError,
)
from tampu.gguf_compat import read_model
from tampu.ml.gguf import GGUFFile
from tampu.runner.draft_model import DraftModel
from tampu.runner.speculation import Speculation
from tampu.store.draft import check_draft, is_assistant

log = logging.getLogger("tampu")

_MTP_LAYERS = "nextn_predict_layers"
_FOLLOWING = 3  # guesses of a graph after its first one: more take longer to build
_UNUSED = "the draft model %s is not used: %s"
_SMALL = 16 << 20  # bytes: of these a guess takes less time than preparing and launching its graph


def load_with_draft(
    path: Path,
    options: LoadOptions,
    *,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> LoadedModel:
    """Load a model, and its draft model if it has one; arguments and errors as in `Engine.load`.

    A draft model that does not fit is named in the log, and the model is loaded without it. It is
    loaded first: GPUs have room for all of it, and the model takes what is left.
    """
    options, file = _with_fitting_draft(path, options)
    has_assistant = file is not None and is_assistant(file)
    draft = None if file is None or has_assistant else _load_draft(file, options, cancelled)
    try:
        model = _load_target(path, options, progress, cancelled, has_assistant=has_assistant)
    except OutOfMemoryError as error:
        if draft is None:
            raise
        draft.close()
        log.warning(_UNUSED, options.draft, f"with it {error}")
        return load_model(path, options, progress=progress, cancelled=cancelled)
    except BaseException:
        if draft is not None:
            draft.close()
        raise
    if draft is not None:
        _attach(draft, model)
    return model


def _load_target(
    path: Path,
    options: LoadOptions,
    progress: Callable[[float], None] | None,
    cancelled: Callable[[], bool] | None,
    *,
    has_assistant: bool,
) -> LoadedModel:
    """Load a model, without an assistant or a layer of multi-token prediction that does not fit."""
    try:
        return load_model(path, options, progress=progress, cancelled=cancelled)
    except (ModelFileError, UnsupportedModelError) as error:
        if has_assistant:
            plain = msgspec.structs.replace(options, draft=None)
            model = _load_target(path, plain, progress, cancelled, has_assistant=False)
            log.warning(_UNUSED, options.draft, error)
            return model
        if not options.uses_mtp or not read_model(path).metadata.integer(_MTP_LAYERS, default=0):
            raise
        plain = msgspec.structs.replace(options, spec_type="ngram-simple")
        model = load_model(path, plain, progress=progress, cancelled=cancelled)
        log.warning("%s: multi-token prediction is not used: %s", path.name, error)
        return model


def _with_fitting_draft(path: Path, options: LoadOptions) -> tuple[LoadOptions, GGUFFile | None]:
    """Return the options without a draft model that does not fit; and its file, if it does.

    The log names one that does not.
    """
    if options.draft is None or options.spec_type == "none":
        return options, None
    try:
        file = read_model(options.draft)
        check_draft(file, read_model(path))
    except TampuError as error:
        log.warning(_UNUSED, options.draft, error)
        return msgspec.structs.replace(options, draft=None), None
    return options, file


def _load_draft(
    file: GGUFFile, options: LoadOptions, cancelled: Callable[[], bool] | None
) -> LoadedModel | None:
    """Return a draft model; None if it cannot be loaded.

    A small one is deterministic if it can be: what its graphs read is then the same for all answers
    of about the same length, wherever their cells are, so that few graphs are built.
    """
    plain = _draft_options(options)
    try:
        if file.size_bytes <= _SMALL:
            with suppress(RequestError, UnsupportedModelError):
                in_order = msgspec.structs.replace(plain, deterministic=True)
                return load_model(file.path, in_order, cancelled=cancelled)
        return load_model(file.path, plain, cancelled=cancelled)
    except LoadCancelledError:
        raise
    except TampuError as error:
        log.warning(_UNUSED, options.draft, error)
        return None


def _draft_options(options: LoadOptions) -> LoadOptions:
    """Return how a draft model is loaded: as the model, without what belongs to the model alone."""
    return msgspec.structs.replace(
        options,
        draft=None,
        spec_type="none",
        gpu_layers=-1 if options.gpu_layers else 0,
        n_cpu_moe=0,
        prefix_cache=None,
        prefix_cache_memory=0,
        template="",
        parser="",
        adapters=(),
        projector=None,
        name="",
    )


def _attach(draft: LoadedModel, model: LoadedModel) -> None:
    """Let a draft model guess the next tokens of a model, which owns it from then on."""
    model.attach(draft.close)
    chains = draft.options.deterministic and draft.info.size_bytes <= _SMALL
    guessing = DraftModel(
        draft.graphs,
        draft.scheduler.kv_manager,
        context=draft.options.context,
        batch=draft.options.batch or DEFAULT_BATCH,
        vocabulary=model.tokenizer.vocabulary_size,
        cost=draft.info.size_bytes / model.info.size_bytes,
        positions_per_token=draft.graphs.positions_per_token,
        candidates=1 if 1 in draft.scheduler.candidates else 0,
        ends=model.tokenizer.eos,
        max_following=min(draft.graphs.max_following, _FOLLOWING) if chains else 0,
    )
    tree = model.scheduler.kv_manager.prefixes.tree
    model.scheduler.drafts.source = Speculation(tree, model=guessing)
    log.info("draft model %s: %d tokens of context", draft.info.name, draft.options.context)
