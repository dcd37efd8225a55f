"""Writes what is captured of many prompts to one safetensors file while they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tampu.chat.media import Item, token_ids
from tampu.engine.captures import Capture, CapturePlan, data_type
from tampu.engine.completion import RequestHandle
from tampu.engine.handlers.capture import begin, planned
from tampu.engine.native import NativeModel
from tampu.engine.safetensors_data import ArrayShape, Layout, lay_out
from tampu.engine.scoring import AT_ONCE, run_all
from tampu.errors import RequestError
from tampu.ml.atomic_file import atomic_file, check_free_space, translate_os_errors, write_all
from tampu.nn.points import ATTENTIONS, MEDIA, Point
from tampu.runner.capture import Positions, Values
from tampu.runner.sequence import Sink


@dataclass(slots=True)
class _Prompt:
    """One prompt, and where its next rows are in the file's tensors."""

    request: Capture
    tokens: list[Item]
    plan: CapturePlan
    row: int

    @property
    def positions(self) -> Positions:
        """The positions of its rows, I32."""
        if self.plan.positions is None:
            return np.arange(self.plan.most, dtype=np.int32)
        return self.plan.positions


@dataclass(frozen=True, slots=True)
class _File:
    """The file, while it is written."""

    descriptor: int
    path: Path
    layout: Layout

    def write(self, name: str, row: int, rows: npt.NDArray[np.generic]) -> None:
        """Write rows of a tensor, from one row on."""
        if not len(rows):
            return
        offset = self.layout.offsets[name] + row * (rows.nbytes // len(rows))
        with translate_os_errors(self.path):
            write_all(self.descriptor, rows.tobytes(), offset)

    def write_rows(
        self, prompt: _Prompt, positions: Positions, values: Mapping[Point, Values]
    ) -> None:
        """Write the values of some tokens of a prompt after those before."""
        for point, rows in values.items():
            self.write(_key(point), prompt.row, rows)
        prompt.row += len(positions)


def write_captures(model: NativeModel, path: Path, requests: Sequence[Capture]) -> int:
    """Write what requests for the same points capture; return the number of rows.

    Raises:
        StoreError: if the file cannot be written.
        TampuError: as for each request; then there is no file.
    """
    prompts, total = _planned(model, requests)
    layout = _layout(prompts[0].plan, total)
    with translate_os_errors(path), atomic_file(path) as opened:
        check_free_space(path, layout.size_bytes)
        file = _File(opened.fileno(), path, layout)
        write_all(file.descriptor, layout.head, 0)
        _write_index(file, prompts)

        def computed(prompt: _Prompt, sink: Sink) -> RequestHandle:
            def take(positions: Positions, values: Mapping[Point, Values]) -> None:
                file.write_rows(prompt, positions, values)

            return begin(model, prompt.tokens, prompt.request, prompt.plan.begin(take), sink)

        run_all(prompts, computed, at_once=AT_ONCE)
    return total


def _planned(model: NativeModel, requests: Sequence[Capture]) -> tuple[list[_Prompt], int]:
    """Return the prompts with the first row of each, and the number of all rows."""
    prompts, total = [], 0
    for request in requests:
        tokens = model.requests.prompt(request.prompt).tokens
        prompt = _Prompt(request, tokens, planned(model, tokens, request), total)
        for name, _ in prompt.plan.points:
            if name == ATTENTIONS or name in MEDIA:
                reason = "do not have a row for each token: use capture"
                raise RequestError(f"capture_file: {name} {reason}")
        prompts.append(prompt)
        total += len(prompt.positions)
    return prompts, total


def _layout(plan: CapturePlan, total: int) -> Layout:
    values = {
        _key(point): ArrayShape("I32" if data_type(point) is np.int32 else "F32", (total, width))
        for point, width in zip(plan.points, plan.features, strict=True)
    }
    index = dict.fromkeys(("prompts", "positions", "tokens"), ArrayShape("I32", (total,)))
    return lay_out({**index, **values}, {})


def _write_index(file: _File, prompts: Sequence[_Prompt]) -> None:
    """Write which prompt, position and token each row is of."""
    positions = [prompt.positions for prompt in prompts]
    numbers = np.repeat(np.arange(len(prompts), dtype=np.int32), [*map(len, positions)])
    tokens = [
        np.array(token_ids(prompt.tokens), np.int32)[own]
        for prompt, own in zip(prompts, positions, strict=True)
    ]
    file.write("prompts", 0, numbers)
    file.write("positions", 0, np.concatenate(positions))
    file.write("tokens", 0, np.concatenate(tokens))


def _key(point: Point) -> str:
    return f"{point.name}.{point.layer}"
