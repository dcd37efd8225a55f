"""`tampu ps` and `tampu stop`: the models that the server has in memory."""

from __future__ import annotations

from tampu.cli.arguments import AsJSON, NamePrefix, StoredModel
from tampu.cli.processes import print_processes
from tampu.cli.server_client import HTTPServer, stop_model
from tampu.settings.settings import Settings


def processes_command(prefix: NamePrefix = "", json: AsJSON = False) -> None:
    """List the models that the server has in memory."""
    print_processes(prefix, Settings.from_environment(), as_json=json)


def stop_command(model: StoredModel) -> None:
    """Unload a model from the server's memory."""
    stop_model(HTTPServer(Settings.from_environment()), model)
