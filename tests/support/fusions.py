"""Which nodes of a graph ggml's backends for CUDA and Vulkan compute as one.

The sequences and their conditions are those of ggml-cuda.cu and ggml-vulkan.cpp, as far as steps of
one token meet them. The Vulkan backend changes the order of a graph's nodes when it is planned, so
for Vulkan only a graph that was computed there has the true counts.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tampu.ml import Context
from tampu.ml.library import gg

_VIEWS = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})  # compute nothing
_MAX_ADDS = 8


@dataclass(frozen=True)
class Pattern:
    """Neighbouring nodes that are computed as one: others read only the last one's result.

    Attributes:
        operations: of the nodes.
        kept: nodes whose results others read too.
        is_chain: whether each node reads the one before and has its shape.
        full: nodes whose operands must have one shape, as a bias has only for one token.
        is_apart: whether what the first nodes read must not be in the memory of the result.
    """

    operations: str
    kept: frozenset[int] = frozenset()
    is_chain: bool = False
    full: tuple[int, ...] = ()
    is_apart: bool = False


_EXPERTS = Pattern("ARGSORT VIEW GET_ROWS RESHAPE SOFT_MAX RESHAPE", kept=frozenset({1}))
_STORED = Pattern("ROPE VIEW SET_ROWS")
_NORM = Pattern("RMS_NORM MUL", is_chain=True)
_BIAS = Pattern("MUL_MAT ADD", is_chain=True, full=(1,))
_EXPERT_BIAS = Pattern("MUL_MAT_ID ADD_ID", is_chain=True)

PATTERNS: Mapping[str, Sequence[Pattern]] = {
    "CUDA": (
        _EXPERTS,
        _STORED,
        Pattern("MUL_MAT ADD MUL_MAT ADD GLU", full=(1, 3), is_apart=True),
        Pattern("MUL_MAT MUL_MAT GLU", is_apart=True),
        Pattern("MUL_MAT_ID ADD_ID MUL_MAT_ID ADD_ID GLU", is_apart=True),
        Pattern("MUL_MAT_ID MUL_MAT_ID GLU", is_apart=True),
        _BIAS,
        _EXPERT_BIAS,
        Pattern("RMS_NORM MUL ADD", is_chain=True),
        _NORM,
        Pattern("UNARY MUL", is_chain=True, full=(1,)),
    ),
    "Vulkan": (
        Pattern("MUL_MAT ADD ADD", is_chain=True, full=(1, 2)), _BIAS,
        Pattern("MUL_MAT_ID ADD_ID MUL", is_chain=True), _EXPERT_BIAS,
        Pattern("MUL_MAT_ID MUL", is_chain=True), Pattern("RMS_NORM MUL ROPE VIEW SET_ROWS"),
        Pattern("RMS_NORM MUL ROPE", is_chain=True), _NORM, _STORED, _EXPERTS,
    ),
}  # fmt: skip
"""What each backend looks for at a node, in its order, after sums of sums (`ADD ADD`)."""


@dataclass(frozen=True)
class Fused:
    """How often a backend finds each pattern in a graph, and how many operations it computes."""

    patterns: Mapping[str, int]
    operations: int


def fused(context: Context, backend: str) -> Fused:
    """Return what a backend of `PATTERNS` makes of a graph that was computed."""
    graph = context.graph
    count = gg.ggml_graph_n_nodes(graph)
    nodes = _Nodes([gg.ggml_graph_node(graph, n).contents for n in range(count)])
    found: Counter[str] = Counter()
    place = operations = 0
    while place < count:
        name, length = nodes.pattern_at(place, backend)
        if name:
            found[name] += 1
        operations += bool(name) or nodes.operations[place] not in _VIEWS
        place += length
    return Fused(dict(found), operations)


class _Nodes:
    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self.operations = [gg.ggml_op_name(node.op).decode() for node in nodes]
        self.uses = Counter(address for node in nodes for address in _operands(node))

    def pattern_at(self, place: int, backend: str) -> tuple[str, int]:
        """Return the pattern that begins at a node, "" if none does, and its number of nodes."""
        if (adds := self._sums(place, backend)) > 1:
            return "ADD ADD", adds
        for pattern in PATTERNS[backend]:
            if self._is_at(place, pattern):
                return pattern.operations, len(pattern.operations.split())
        return "", 1

    def _sums(self, place: int, backend: str) -> int:
        """Return how many sums follow one another from a node on, each with the one before."""
        shape, count = _shape(self.nodes[place]), 0
        for index in range(place, min(place + _MAX_ADDS, len(self.nodes))):
            operands = _operands(self.nodes[index])
            is_sum = self.operations[index] == "ADD"
            if not is_sum or any(_shape(_node(each)) != shape for each in operands):
                break
            if count:
                before = ctypes.addressof(self.nodes[index - 1])
                known = operands[:1] if backend == "CUDA" else operands
                if before not in known or self.uses[before] != 1:
                    break
            count += 1
        return count

    def _is_at(self, place: int, pattern: Pattern) -> bool:
        operations = pattern.operations.split()
        nodes = self.nodes[place : place + len(operations)]
        if self.operations[place : place + len(operations)] != operations:
            return False
        addresses = [ctypes.addressof(node) for node in nodes]
        for index, address in enumerate(addresses[:-1]):
            inside = sum(_operands(node).count(address) for node in nodes[index + 1 :])
            if index not in pattern.kept and inside != self.uses[address]:
                return False
            after = nodes[index + 1]
            follows = address in _operands(after) and _shape(after) == _shape(nodes[index])
            if pattern.is_chain and not follows:
                return False
        if operations[-1] == "SET_ROWS" and nodes[-1].type > gg.GGML_TYPE_F16:
            return False
        given = {each for node in nodes for each in _operands(node)} - {*addresses}
        if pattern.is_apart and any(_overlap(_node(each), nodes[-1]) for each in given):
            return False
        full = [{_shape(_node(each)) for each in _operands(nodes[n])} for n in pattern.full]
        return all(len(shapes) == 1 for shapes in full)


def _node(address: int) -> Any:
    return gg.ggml_tensor.from_address(address)


def _operands(node: Any) -> list[int]:
    return [ctypes.addressof(each.contents) for each in node.src if each]


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.ne)


def _overlap(one: Any, other: Any) -> bool:
    sizes = [gg.ggml_nbytes(ctypes.pointer(each)) for each in (one, other)]
    return bool(one.data < other.data + sizes[1] and other.data < one.data + sizes[0])
