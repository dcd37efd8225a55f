"""Rows of the report, how steps print them, and the files that hold them.

It uses the standard library alone, since it runs before anything is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        what: what was tried or measured.
        value: the figure, or the reason why there is none.
        passed: whether it is as it should be; None: a figure or a reason, nothing to pass.
    """

    what: str
    value: str
    passed: bool | None = None


def print_row(what: str, value: str, *, passed: bool | None = None) -> None:
    """Print a row for the program that started this step."""
    print(json.dumps({"row": asdict(Row(what, value, passed))}), flush=True)


def print_begin(part: str) -> None:
    """Print which part of the step begins: the next process skips it if it ends this one."""
    print(json.dumps({"begin": part}), flush=True)


def read_line(line: str) -> Row | str | None:
    """Return a row, the part that begins, or None for a line of any other kind."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    match content:
        case {"row": dict(row)}:
            return Row(**row)
        case {"begin": str(part)}:
            return part
        case _:
            return None


@dataclass
class Report:
    """Rows by step, written to `report.md` and `report.json` after each one.

    Attributes:
        folder: where the files are.
        steps: the rows of each step, in the order in which the steps began.
        abouts: what a step's rows mean, for those steps that say so.
    """

    folder: Path
    steps: dict[str, list[Row]] = field(default_factory=dict)
    abouts: dict[str, str] = field(default_factory=dict)

    def add(self, step: str, row: Row) -> None:
        """Add a row, print it, and write both files."""
        self.steps.setdefault(step, []).append(row)
        print(f"{step}: {_line(row)}", flush=True)
        for name, text in (("report.md", self.markdown()), ("report.json", self.json())):
            partial = self.folder / f"{name}.partial"
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.folder / name)

    @property
    def failures(self) -> int:
        """How many rows did not pass."""
        return sum(row.passed is False for _, row in self._rows())

    def _rows(self) -> Iterator[tuple[str, Row]]:
        return ((step, row) for step, rows in self.steps.items() for row in rows)

    def markdown(self) -> str:
        """Return the report for people."""
        lines = ["# tampu on a GPU", "", *self._summary()]
        for step, rows in self.steps.items():
            lines += [f"## {step}", ""]
            lines += [self.abouts[step], ""] if step in self.abouts else []
            lines += ["| what | result | |", "|---|---|---|"]
            lines += [f"| {_cell(row.what)} | {_cell(row.value)} | {_mark(row)} |" for row in rows]
            lines.append("")
        return "\n".join(lines)

    def _summary(self) -> Iterator[str]:
        checked = sum(row.passed is not None for _, row in self._rows())
        yield f"{checked - self.failures} of {checked} checks passed, {self.failures} failed."
        yield "Rows without a mark are figures, or say why there is none."
        yield ""
        failed = [(step, row) for step, row in self._rows() if row.passed is False]
        yield from (
            f"* FAILED: {step}: {_cell(row.what)}: {_cell(row.value)}" for step, row in failed
        )
        if failed:
            yield ""

    def json(self) -> str:
        """Return the report for programs."""
        content = {step: [asdict(row) for row in rows] for step, rows in self.steps.items()}
        return json.dumps({"failures": self.failures, "steps": content}, indent=1) + "\n"


def _mark(row: Row) -> str:
    return {True: "ok", False: "FAILED", None: ""}[row.passed]


def _line(row: Row) -> str:
    return f"{row.what}: {row.value}" + (f" ({_mark(row)})" if row.passed is not None else "")


def _cell(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "<br>".join(filter(None, lines)).replace("|", "\\|")
