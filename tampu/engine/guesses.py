"""What guesses the next tokens of a model's answers: texts, and the model's own layer for that."""

from __future__ import annotations

import logging

from tampu.engine.bound_model import BoundModel
from tampu.engine.load_options import LoadOptions
from tampu.kvcache import KVCacheManager
from tampu.runner.assistant_drafter import AssistantDrafter
from tampu.runner.graph_cache import GraphCache
from tampu.runner.mtp_drafter import MTPDrafter, first_tokens
from tampu.runner.speculation import Speculation
from tampu.store.draft import is_assistant

log = logging.getLogger("tampu")

_HEADS = ("output.weight", "token_embd.weight")


def find_guesses(
    bound: BoundModel,
    manager: KVCacheManager,
    graphs: GraphCache,
    candidates: tuple[int, ...],
    options: LoadOptions,
) -> Speculation | None:
    """Return what guesses next tokens; None: nothing does.

    Args:
        bound: the model.
        manager: of its cache.
        graphs: its graphs.
        candidates: how many of the best logits its device can find.
        options: with which it is loaded.
    """
    if options.spec_type == "none":
        return None
    tree = manager.prefixes.tree
    if bound.model.mtp is None and bound.model.assistant is None:
        return Speculation(tree)
    sizes = {name: tensor.size_bytes for name, tensor in bound.file.tensors.items()}
    vocabulary = bound.file.tensors[_HEADS[-1]].shape[0]
    if bound.model.assistant is not None:
        file = next(each.file for each in bound.others if is_assistant(each.file))
        cost = sum(each.size_bytes for each in file.tensors.values()) / sum(sizes.values())
        log.info("%s: the assistant %s guesses next tokens", bound.info.name, file.path.name)
        return Speculation(tree, model=AssistantDrafter(graphs, vocabulary=vocabulary, cost=cost))
    head = next(sizes[name] for name in _HEADS if name in sizes)
    head = head * first_tokens(vocabulary) // vocabulary
    prefix = bound.model.mtp_prefixes[0]  # only the first such layer is used
    own = sum(size for name, size in sizes.items() if name.startswith(prefix))
    drafter = MTPDrafter(
        graphs,
        manager,
        vocabulary=vocabulary,
        cost=(own + head) / sum(sizes.values()),
        positions_per_token=bound.model.positions_per_token,
        candidates=1 if 1 in candidates else 0,
    )
    log.info("%s: multi-token prediction guesses next tokens", bound.info.name)
    return Speculation(tree, model=drafter)
