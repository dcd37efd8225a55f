"""Questions to templates: which fields they use, and what of them comes before a field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tampu.chat.gotemplate.nodes import (
    Action,
    Call,
    Chain,
    Field,
    If,
    Node,
    Nodes,
    Operand,
    Pipeline,
    Range,
    Template,
    With,
)


def fields_used(template: Template) -> frozenset[str]:
    """Return the names of all fields that a template asks for, of whatever value."""
    found = set(_fields(template.nodes))
    for nodes in template.definitions.values():
        found |= set(_fields(nodes))
    return frozenset(found)


def until_field(template: Template, name: str) -> Template:
    """Return the template up to and including the action that writes a field, in reading order."""
    nodes, _ = _until(template.nodes, name)
    return replace(template, nodes=nodes)


def _fields(nodes: Nodes) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, If | With | Range):
            yield from _of_operand(node.pipeline)
            yield from _fields(node.body)
            yield from _fields(node.otherwise)
        elif isinstance(node, Action | Call) and node.pipeline is not None:
            yield from _of_operand(node.pipeline)


def _of_operand(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Field):
        yield from operand.names
    elif isinstance(operand, Chain):
        yield from operand.names
        yield from _of_operand(operand.operand)
    elif isinstance(operand, Pipeline):
        for command in operand.commands:
            for part in command:
                yield from _of_operand(part)


def _until(nodes: Nodes, name: str) -> tuple[Nodes, bool]:
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Action) and name in _of_operand(node.pipeline):
            return (*kept, node), True
        if isinstance(node, If | With | Range):
            body, found = _until(node.body, name)
            if found:
                return (*kept, replace(node, body=body, otherwise=())), True
            otherwise, found = _until(node.otherwise, name)
            if found:
                return (*kept, replace(node, otherwise=otherwise)), True
        kept.append(node)
    return tuple(kept), False
