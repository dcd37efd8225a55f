"""The file of MCP servers: what is read, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tampu.errors import SettingsError
from tampu.server.features.mcp.configuration import read_mcp_file

FILE = """
max_rounds = 3

[mcp_servers.files]
command = "npx"
args = ["-y", "a-server"]
env = {TOKEN = "secret"}
env_vars = ["PATH"]
run_tools = ["read_*"]

[mcp_servers.docs]
url = "https://example.com/mcp"
http_headers = {Authorization = "Bearer secret"}
enabled_tools = ["search"]
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    place = tmp_path / "mcp.toml"
    place.write_text(FILE)
    options = read_mcp_file(place, {"PATH": "/bin"}.get)
    files, docs = options.servers
    assert options.max_rounds == 3
    assert files.command == ("npx", "-y", "a-server")
    assert files.env == {"PATH": "/bin", "TOKEN": "secret"}
    assert (files.offers("any"), files.runs("read_file"), files.runs("write_file")) == (
        True, True, False,
    )  # fmt: skip
    assert (docs.url, docs.offers("search"), docs.offers("any")) == (
        "https://example.com/mcp", True, False,
    )  # fmt: skip
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[mcp_servers.a]\n", "mcp_servers.a: it needs either command or url"),
        ('[mcp_servers.a]\ncommand = "x"\nurl = "http://x"\n', "either command or url"),
        ('[mcp_servers.a]\nurl = "file:///x"\n', "url must begin with http"),
        ('[mcp_servers.a]\ncommand = "x"\nenv_vars = ["NOT_SET"]\n', "NOT_SET is not set"),
        ('[mcp_servers."a b"]\ncommand = "x"\n', "a name has letters"),
        ('[mcp_servers.a]\ncommand = "x"\ntool_timeout_sec = 0\n', "tool_timeout_sec"),
        ('[mcp_servers.a]\ncommand = "x"\nallow = 1\n', "allow"),
        ("x = 1\n", "x"),
        ("", "mcp_servers"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    place = tmp_path / "mcp.toml"
    place.write_text(text)
    with pytest.raises(SettingsError, match=told) as error:
        read_mcp_file(place, lambda _name: None)
    assert str(place) in str(error.value)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=r"pip install 'tampu\[mcp\]'"):
        read_mcp_file(tmp_path / "mcp.toml", lambda _name: None)
