"""`tampu ui`: the server's page in a browser."""

from __future__ import annotations

import sys
import webbrowser

from tampu.cli.server_client import HTTPServer, ServerError
from tampu.errors import SettingsError
from tampu.settings.settings import Settings

_TIMEOUT_S = 10.0


def ui_command() -> None:
    """Open the page of the running server in a browser, and print its address."""
    settings = Settings.from_environment()
    if settings.socket:
        raise SettingsError(
            f"a browser cannot connect to the Unix socket {settings.socket}: "
            "start the server with an address, and unset TAMPU_SOCKET"
        )
    server = HTTPServer(settings)
    software = server.software(_TIMEOUT_S)
    if not software.startswith("tampu/"):
        raise ServerError(f"the server at {server} is not tampu's, and has no page")
    url = f"{settings.address.for_clients}/"
    print(url, flush=True)
    if not webbrowser.open(url):
        print("No browser was found; open this address in one.", file=sys.stderr)
