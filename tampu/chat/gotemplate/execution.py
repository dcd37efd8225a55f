"""Rendering a template: a walk over its nodes, within a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tampu.chat.budget import Budget
from tampu.chat.gotemplate.functions import call
from tampu.chat.gotemplate.nodes import (
    Action,
    Branch,
    Call,
    Chain,
    Field,
    Function,
    Literal,
    Nodes,
    Operand,
    Pipeline,
    Template,
    Text,
    Variable,
)
from tampu.chat.gotemplate.values import GoTemplateError, Record, fault, is_true, kind_of, text_of

MAX_STEPS = 4_000_000
MAX_CALLS = 100

_STEPS_BETWEEN_CLOCKS = 256


class _Jump(Exception):  # noqa: N818  # not an error: `break` and `continue` of a range
    pass


def execute(template: Template, values: Mapping[str, Any]) -> list[str]:
    """Return what a template writes, piece by piece; text from outside keeps its marks.

    Args:
        template: what `parse` returned.
        values: its data, by name.

    Raises:
        RequestError: if it fails on these values, or goes beyond its budget.
    """
    walk = _Walk(template)
    walk.nodes(template.nodes, values)
    return walk.output


class _Walk:
    """One rendering."""

    def __init__(self, template: Template) -> None:
        self.output: list[str] = []
        self._template = template
        self._variables: list[tuple[str, Any]] = []
        self._budget = Budget(fault)
        self._steps = 0
        self._calls = 0
        self._line = 1

    def nodes(self, nodes: Nodes, value: Any) -> None:
        """Write a template's nodes with its own variables, and `value` as `.` and `$`."""
        before, self._variables = self._variables, [("$", value)]
        self._list(nodes, value)
        self._variables = before

    # -- nodes -----------------------------------------------------------------------------------

    def _list(self, nodes: Nodes, dot: Any) -> None:
        known = len(self._variables)
        for node in nodes:
            self._step()
            if isinstance(node, Text):
                self._write(node.text)
            elif isinstance(node, Action):
                value = self._pipeline(node.pipeline, dot)
                if not node.pipeline.names:
                    self._write("<no value>" if value is None else text_of(value))
            elif isinstance(node, Branch):
                self._range(node, dot) if node.keyword == "range" else self._branch(node, dot)
            elif isinstance(node, Call):
                self._call(node, dot)
            else:
                raise _Jump(node.keyword)
        del self._variables[known:]

    def _branch(self, node: Branch, dot: Any) -> None:
        known = len(self._variables)
        value = self._pipeline(node.pipeline, dot)
        if is_true(value):
            self._list(node.body, value if node.keyword == "with" else dot)
        else:
            self._list(node.otherwise, dot)
        del self._variables[known:]

    def _range(self, node: Branch, dot: Any) -> None:
        known = len(self._variables)
        names, is_new = node.pipeline.names, not node.pipeline.is_assignment
        value = self._pipeline(node.pipeline, dot, binds=False)
        try:
            pairs = list(_items(value))
        except GoTemplateError as error:
            raise self._located(error) from error
        if not pairs:
            self._list(node.otherwise, dot)
        for key, item in pairs:
            self._step()
            inside = len(self._variables)
            bound = [item] if len(names) == 1 else [key, item]
            for name, part in zip(names, bound, strict=False):
                self._set(name, part, is_new=is_new)
            try:
                self._list(node.body, item)
            except _Jump as jump:
                if jump.args == ("break",):
                    break
            finally:
                del self._variables[inside:]
        del self._variables[known:]

    def _call(self, node: Call, dot: Any) -> None:
        nodes = self._template.definitions.get(node.name)
        if nodes is None:
            raise fault(f"line {node.line}: template {node.name!r} is not defined")
        value = self._pipeline(node.pipeline, dot) if node.pipeline else None
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise fault(f"more than {MAX_CALLS} templates inside of each other")
        self.nodes(nodes, value)
        self._calls -= 1

    # -- values ----------------------------------------------------------------------------------

    def _pipeline(self, pipeline: Pipeline, dot: Any, *, binds: bool = True) -> Any:
        self._step()
        self._line = pipeline.line
        value: Any = None
        try:
            for place, command in enumerate(pipeline.commands):
                last = [value] if place else []
                value = self._command(command, dot, last)
        except GoTemplateError as error:
            raise self._located(error) from error
        if binds:
            for name in pipeline.names:
                self._set(name, value, is_new=not pipeline.is_assignment)
        return value

    def _located(self, error: GoTemplateError) -> GoTemplateError:
        reason = str(error).removeprefix("the model's template: ")
        return error if reason.startswith("line ") else fault(f"line {self._line}: {reason}")

    def _command(self, command: Sequence[Operand], dot: Any, last: list[Any]) -> Any:
        first, *rest = command
        if isinstance(first, Function):
            value = self._function(first.name, rest, dot, last)
            if isinstance(value, str):
                self._budget.spend_work(len(value))
            return value
        if rest or last:
            raise fault("arguments are given to something that is not a function")
        if isinstance(first, Literal) and first.value is None:
            raise fault("nil is not a command")
        return self._operand(first, dot)

    def _function(self, name: str, operands: Sequence[Operand], dot: Any, last: list[Any]) -> Any:
        if name in ("and", "or"):
            return self._logic(name, operands, dot, last)
        return call(name, [*(self._operand(operand, dot) for operand in operands), *last])

    def _logic(self, name: str, operands: Sequence[Operand], dot: Any, last: list[Any]) -> Any:
        """Evaluate operands until one decides."""
        if not operands and not last:
            raise fault(f"{name} takes 1 or more arguments, not 0")
        value: Any = None
        for operand in operands:
            value = self._operand(operand, dot)
            if is_true(value) == (name == "or"):
                return value
        return last[0] if last else value

    def _operand(self, operand: Operand, dot: Any) -> Any:
        self._step()
        if isinstance(operand, Literal):
            return operand.value
        if isinstance(operand, Field):
            return self._fields(dot, operand.names)
        if isinstance(operand, Variable):
            return self._variable(operand.name)
        if isinstance(operand, Chain):
            return self._fields(self._operand(operand.operand, dot), operand.names)
        if isinstance(operand, Pipeline):
            return self._pipeline(operand, dot)
        return self._function(operand.name, [], dot, [])

    def _fields(self, value: Any, names: Iterable[str]) -> Any:
        for name in names:
            if isinstance(value, Record):
                if name not in value.fields:
                    raise fault(f"a record has no field {name}")
                value = value.fields[name]
            elif isinstance(value, Mapping):
                value = value.get(name)
            else:
                raise fault(f"{kind_of(value)} has no field {name}")
        return value

    def _variable(self, name: str) -> Any:
        for known, value in reversed(self._variables):
            if known == name:
                return value
        raise fault(f"variable {name} is not set here")

    def _set(self, name: str, value: Any, *, is_new: bool) -> None:
        if is_new:
            self._variables.append((name, value))
            if len(self._variables) > MAX_STEPS:
                raise fault("too many variables")
            return
        for place in range(len(self._variables) - 1, -1, -1):
            if self._variables[place][0] == name:
                self._variables[place] = (name, value)
                return
        raise fault(f"variable {name} is not set here")

    # -- the budget ------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        self._budget.spend_output(len(text))
        self.output.append(text)

    def _step(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_CLOCKS == 0:
            self._budget.check_time()
        if self._steps > MAX_STEPS:
            raise fault(f"it takes more than {MAX_STEPS} steps")


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and items of what a range goes over; maps in the order of their keys."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [(key, value[key]) for key in sorted(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        if value > MAX_STEPS:
            raise fault(f"a range over {value}")
        return [(number, number) for number in range(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(enumerate(value))
    raise fault(f"a range over {kind_of(value)}")
