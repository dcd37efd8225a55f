"""`tampu launch`: points a coding agent at this server, and undoes it."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.errors import ModelNotFoundError, RequestError, SettingsError
from tampu.settings.address import is_loopback
from tampu.settings.settings import Settings, variable

if TYPE_CHECKING:
    from tampu.cli.agents.agents import Agent, Target
    from tampu.cli.agents.record import Edit, Record


def launch_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[AGENT]", help="Its name (default: list them).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model it uses (default: TAMPU_DEFAULT_MODEL)."),
    ] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Put its settings back as they were.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Write the settings that point a coding agent at this server; ask before that."""
    from tampu.cli.agents.agents import AGENTS, agent
    from tampu.cli.agents.record import Record, read_record, write, write_record

    settings = Settings.from_environment()
    folder = settings.state / "launch"
    if name is None:
        for each, known in AGENTS.items():
            is_set = read_record(folder / f"{each}.json").files
            print(f"{each:10} {known.title:12} {'set' if is_set else ''}".rstrip())
        return
    chosen = agent(name)
    place = folder / f"{name}.json"
    record = read_record(place)
    if restore:
        if not record.files:
            raise RequestError(f"nothing was written for {chosen.title}")
        edits, new = _restored(chosen, record), Record()
    else:
        edits, new = _pointed(chosen, record, _target(settings, model))
    shown = [edit for edit in edits if edit.text != edit.before]
    if not shown:
        write_record(place, new)
        print(f"{chosen.title}: nothing to change")
        return
    _show(shown)
    if not yes and not _is_confirmed():
        print("nothing is written")
        return
    if not restore:
        write_record(place, new)  # first: what is not written then is undone without harm
    for edit in shown:
        write(edit)
    if restore:
        write_record(place, new)
    done = "settings are as they were" if restore else f"start it with: {chosen.command}"
    print(f"{chosen.title}: {done}")


def _target(settings: Settings, model: str | None) -> Target:
    """Return the server and the model; a model that is not here may be on the server's machine."""
    from tampu.cli.agents.agents import Target
    from tampu.store.catalog import Catalog
    from tampu.store.library import Library

    model = model or settings.default_model
    if not model:
        raise RequestError("say which model with --model, or set TAMPU_DEFAULT_MODEL")
    try:
        entry = Catalog(library=Library.from_settings(settings)).describe(model)
        if "tools" not in entry.info.capabilities:
            print(f"{model} cannot call tools, which agents need", file=sys.stderr)
    except ModelNotFoundError:
        _check_server(settings, model)
    if settings.api_keys and not settings.use_api_keys:
        raise SettingsError(
            "the server needs a key, and that of TAMPU_API_KEY may do everything: set "
            "TAMPU_USE_API_KEY to one for agents"
        )
    key = settings.use_api_keys[0] if settings.use_api_keys else None
    return Target(url=str(settings.address.for_clients).rstrip("/"), model=model, key=key)


def _check_server(settings: Settings, model: str) -> None:
    """Check that a server on this machine has a model that the store has not: an adapter.

    Raises:
        ModelNotFoundError: if it has not, or does not run.
    """
    from urllib.parse import quote

    from tampu.cli.server_client import HTTPServer, ServerError

    if not (settings.socket or is_loopback(settings.address.host)):
        print(f"{model} is not on this machine", file=sys.stderr)
        return
    try:
        HTTPServer(settings).ask("GET", f"/v1/models/{quote(model)}")
    except ServerError as error:
        raise ModelNotFoundError(
            f"there is no model {model!r} on this machine, and the server at {settings.address} "
            f"has none ({error}): `tampu list` shows the models"
        ) from None


def _pointed(agent: Agent, record: Record, target: Target) -> tuple[list[Edit], Record]:
    """Return the edits that point an agent at a server, also when it was at another one."""
    from tampu.cli.agents.record import Record, changed, read_text, undone

    found = []
    for file in agent.files:
        path = file.path(Path("~").expanduser(), variable)
        now = before = read_text(path)
        earlier = record.of(path)
        if earlier is not None:
            before = undone(earlier, file.kind, now).text
        found.append(changed(path, before, now, file.kind, tuple(file.changes(target))))
    files = tuple(each for _, each in found)
    paths = {each.path for each in files}
    # Files elsewhere: the agent's variable named another folder then. They can still be undone.
    others = tuple(each for each in record.files if each.path not in paths)
    return [edit for edit, _ in found], Record((*files, *others))


def _restored(agent: Agent, record: Record) -> list[Edit]:
    from tampu.cli.agents.record import read_text, undone

    kinds = {Path(file.name).name: file.kind for file in agent.files}
    edits = [
        undone(each, kinds[Path(each.path).name], read_text(Path(each.path)))
        for each in record.files
    ]
    for edit in edits:
        for key in edit.kept:
            print(f"{edit.path}: {key} was changed since, and stays", file=sys.stderr)
    return edits


def _show(edits: list[Edit]) -> None:
    """Print what changes in each file."""
    for edit in edits:
        before, after = (edit.before or "").splitlines(), (edit.text or "").splitlines()
        old = str(edit.path) if edit.before is not None else "/dev/null"
        new = str(edit.path) if edit.text is not None else "/dev/null"
        for line in difflib.unified_diff(before, after, old, new, n=1, lineterm=""):
            print(line)


def _is_confirmed() -> bool:
    if not sys.stdin.isatty():
        raise RequestError("there is no terminal to ask on: add --yes to write these changes")
    return input("Write these changes? [y/N] ").strip().lower() in ("y", "yes")
