"""`tampu cache`: shows and trims the prefix cache on disk."""

from __future__ import annotations

import json as json_format
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.arguments import AsJSON
from tampu.cli.table import human_age, human_bytes, table
from tampu.errors import RequestError
from tampu.settings.parsers import size as parsed_size
from tampu.settings.settings import Settings

if TYPE_CHECKING:
    from tampu.kvcache.block_folder import KeptModel


class Action(StrEnum):
    """What to do with the prefix cache."""

    LIST = "list"
    PRUNE = "prune"
    CLEAR = "clear"


def cache_command(
    action: Annotated[
        Action, typer.Argument(help="list; prune to a size; or clear, all or of one model.")
    ] = Action.LIST,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="With clear: a name or key of the list.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="With prune: what to keep, such as 5GB (default: the setting)."
        ),
    ] = None,
    json: AsJSON = False,
) -> None:
    """List, prune or clear the computed prompts that TAMPU_PREFIX_CACHE keeps on disk."""
    from tampu.kvcache.block_folder import delete_blocks, kept_models, shrink
    from tampu.store.library import bare_name

    settings = Settings.from_environment()
    root = settings.cache / "prefix"
    if action is Action.PRUNE:
        if not size and not settings.prefix_cache:
            raise RequestError("TAMPU_PREFIX_CACHE is off: say with --size how much to keep")
        freed = shrink(root, _bytes(size) if size else settings.prefix_cache)
        print(f"deleted {human_bytes(freed or 0)}")
        return
    found, names = kept_models(root), _names(settings)
    if action is Action.CLEAR:
        chosen = [
            each
            for each in found
            if not model or each.is_called(model) or bare_name(model) in names.get(each.name, ())
        ]
        if model and not chosen:
            raise RequestError(f"the prefix cache has nothing of '{model}': see `tampu cache`")
        print(f"deleted {human_bytes(sum(delete_blocks(root, each.key) for each in chosen))}")
    elif json:
        print(json_format.dumps([_fields(each, names) for each in found], indent=2))
    else:
        rows = [_row(each, names, time.time()) for each in found]
        print(table(("NAME", "KEY", "SIZE", "BLOCKS", "USED"), rows))


def _bytes(text: str) -> int:
    try:
        return parsed_size(text)
    except ValueError as error:
        raise RequestError(f"--size is {text!r}: {error}") from None


def _names(settings: Settings) -> dict[str, list[str]]:
    """Return the names of the models that each file has, by the file's name."""
    from tampu.store.library import Library, bare_name

    found: dict[str, list[str]] = {}
    for model in Library.from_settings(settings).listing().models:
        found.setdefault(model.path.name, []).append(bare_name(model.name))
    return found


def _fields(each: KeptModel, names: dict[str, list[str]]) -> dict[str, object]:
    return {
        "name": _name(each, names),
        "models": names.get(each.name, []),
        "file": each.name,
        "key": each.key,
        "size": each.size_bytes,
        "blocks": each.blocks,
        "used": each.used_s,
    }


def _name(each: KeptModel, names: dict[str, list[str]]) -> str:
    """Return what the model is called; its file's name if it is not here any more."""
    return ", ".join(names.get(each.name, [each.name]))


def _row(each: KeptModel, names: dict[str, list[str]], now: float) -> tuple[str, ...]:
    age = human_age(max(now - each.used_s, 0))
    return _name(each, names), each.key[:12], human_bytes(each.size_bytes), str(each.blocks), age
