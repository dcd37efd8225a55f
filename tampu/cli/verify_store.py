"""`tampu verify-store`: reads every byte of the models and checks their digests."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.arguments import AsJSON
from tampu.cli.table import counted, human_bytes
from tampu.settings.settings import Settings
from tampu.store.store import Store

if TYPE_CHECKING:
    from tampu.store.verify import VerifyResult


def verify_store_command(
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Remove damaged blobs, which a pull fetches again, and unused ones."
        ),
    ] = False,
    json: AsJSON = False,
) -> None:
    """Check all models on disk for damage.

    The exit code is 1 if there is any.
    """
    from tampu.cli.progress import progress_bar
    from tampu.store.verify import remove_damaged, verify_store

    store = Store(Settings.from_environment().models)
    with progress_bar("verifying") as progress:
        found = verify_store(store, progress)
    removed = remove_damaged(store, found) if repair and found.problems else []
    unneeded = store.collect_garbage() if repair else []
    print(_as_json(found) if json else _as_text(found))
    if removed and not json:
        count = counted(len(removed), "damaged blob")
        print(f"removed {count}: pull or create their models again")
    if unneeded and not json:
        print(f"removed {counted(len(unneeded), 'blob')} that no model needs")
    if found.problems:
        raise typer.Exit(1)


def _as_text(found: VerifyResult) -> str:
    lines = []
    for problem in found.problems:
        needed = f" (needed by {', '.join(problem.models)})" if problem.models else ""
        lines.append(f"{problem.what}: {problem.reason}{needed}")
    state = counted(len(lines), "problem") if lines else "all sound"
    what = (counted(found.models, "model"), counted(found.blobs, "blob"))
    return "\n".join([*lines, f"{', '.join(what)}, {human_bytes(found.size_bytes)}: {state}"])


def _as_json(found: VerifyResult) -> str:
    report = asdict(found)
    for problem in report["problems"]:
        del problem["digest"]
    return json_format.dumps(report, indent=2)
