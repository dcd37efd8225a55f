"""Runs programs in this one process, each as a main program: `run_examples.py INPUT PROGRAM...`.

INPUT is what each finds on its standard input. Prints one JSON object: what each printed, and the
exception that ended it, if one did.
"""

from __future__ import annotations

import asyncio
import io
import json
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path


def run(program: str, given: str) -> dict[str, str]:
    printed = io.StringIO()
    sys.stdin = io.StringIO(given)
    sys.argv = [program]
    try:
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            runpy.run_path(program, run_name="__main__")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever ends a program is told
        return {"printed": printed.getvalue(), "error": f"{type(error).__name__}: {error}"}
    return {"printed": printed.getvalue(), "error": ""}


if __name__ == "__main__":
    given, *programs = sys.argv[1:]
    asyncio.set_event_loop(asyncio.new_event_loop())
    outcomes = {Path(program).stem: run(program, given) for program in programs}
    sys.stdout.write(json.dumps(outcomes))
