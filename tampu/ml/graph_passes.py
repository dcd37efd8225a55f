"""Passes over a finished graph: the order of its nodes, and which of them belong on the CPU.

Architectures do not know of devices. What several devices need of a graph is done here, once, when
memory is found for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from tampu.ml.library import TensorPointer, gg

VIEWS = frozenset((gg.GGML_OP_RESHAPE, gg.GGML_OP_VIEW, gg.GGML_OP_PERMUTE, gg.GGML_OP_TRANSPOSE))
"""Operations for which nothing is computed."""

_COPIES = frozenset((gg.GGML_OP_CONT, gg.GGML_OP_CPY, gg.GGML_OP_DUP))
_OF_SCORES = frozenset((gg.GGML_OP_SCALE, gg.GGML_OP_UNARY, gg.GGML_OP_SOFT_MAX))


def written_order(
    operations: npt.NDArray[np.int32], views: npt.NDArray[np.int64], nodes: npt.NDArray[np.int64]
) -> npt.NDArray[np.intp]:
    """Return the indices of nodes in the order in which an architecture's file makes them.

    ggml's own order puts a node right before the first one that reads it. Then keys are stored
    before queries are computed, and a graph whose cache is on the CPU goes to a GPU and back for
    queries, keys and values each. A view comes right after what it views, so that it is not between
    operations that GPUs compute as one:

        made      logits  argsort  view of argsort  view of logits  get_rows
        returned  logits  view of logits  argsort  view of argsort  get_rows

    Args:
        operations: of all tensors of a graph, in the order in which they were made.
        views: the index of each tensor's first operand among them; negative: of another graph.
        nodes: indices of the graph's nodes among them.
    """
    own = np.arange(len(operations))
    is_view = np.isin(operations, [*VIEWS]) & (views >= 0)
    roots = np.where(is_view, views, own)
    while not np.array_equal(further := roots[roots], roots):  # views of views
        roots = further
    return np.lexsort((nodes, roots[nodes]))


def nodes_of_host_caches(
    nodes: Sequence[TensorPointer], caches: AbstractSet[int]
) -> list[TensorPointer]:
    """Return the nodes to compute on the CPU because they read keys and values in its memory.

    ggml would have a GPU compute some of them, and copy the whole cache there for each step. They
    are the operations on the cache and on copies of it, and those that turn scores into weights:

        scores = q · keys      reads the cache
        weights = softmax      of scores, between two that read the cache
        mixed = weights · v    reads the cache

    Args:
        nodes: of a graph, in their order.
        caches: addresses of tensors of keys and values.
    """
    cached, found, on_cpu = set(caches), list[TensorPointer](), set[int]()
    for node in nodes:
        header = node.contents
        address, operation = ctypes.addressof(header), header.op
        operands = [ctypes.addressof(each.contents) for each in header.src if each]
        reads = not cached.isdisjoint(operands)
        if operation in VIEWS:
            cached.update({address} if reads else ())
        elif reads or (operation in _OF_SCORES and operands[0] in on_cpu):
            found.append(node)
            on_cpu.add(address)
            cached.update({address} if operation in _COPIES else ())
    return found
