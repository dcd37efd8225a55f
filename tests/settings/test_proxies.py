"""Which proxy a request goes through, and what is shown of it."""

from __future__ import annotations

import pytest

from tampu.errors import SettingsError
from tampu.settings.proxies import Proxies, parse_proxy, shown_proxy
from tampu.settings.settings import Settings

PROXY = "http://runa:secret@proxy.example:3128"


@pytest.mark.parametrize(
    ("without", "url", "is_used"),
    [
        ("", "https://registry.example/v2/", True),
        ("*", "https://registry.example/v2/", False),
        ("registry.example", "https://registry.example/v2/", False),
        ("example", "https://registry.example/v2/", False),
        (".example", "https://registry.example/v2/", False),
        ("*.example", "https://Registry.Example/v2/", False),
        ("ample", "https://registry.example/v2/", True),
        ("registry.example:443", "https://registry.example/v2/", False),
        ("registry.example:5000", "https://registry.example/v2/", True),
        ("registry.example:5000", "https://registry.example:5000/v2/", False),
        ("10.0.0.0/8", "https://10.1.2.3/v2/", False),
        ("10.0.0.0/8", "https://11.1.2.3/v2/", True),
        ("10.1.2.3", "https://10.1.2.3:5000/v2/", False),
        ("fd00::1", "https://[fd00::1]/v2/", False),
        ("[fd00::1]:443", "https://[fd00::1]/v2/", False),
        ("3", "https://10.1.2.3/v2/", True),
        ("", "https://localhost:5000/v2/", False),
        ("", "https://127.0.0.1:5000/v2/", False),
        ("", "https://[::1]:5000/v2/", False),
    ],
)
def test_hosts_without_a_proxy(without: str, url: str, is_used: bool) -> None:
    entries = tuple(filter(None, [without]))
    assert Proxies(https=PROXY, without=entries).for_url(url) == (PROXY if is_used else None)


def test_each_scheme_has_its_own_proxy() -> None:
    proxies = Proxies(http="http://a:1", https="http://b:2")
    assert proxies.for_url("http://registry.example/") == "http://a:1"
    assert proxies.for_url("https://registry.example/") == "http://b:2"
    assert Proxies(http="http://a:1").for_url("https://registry.example/") is None


def test_variables_are_read_in_upper_and_lower_case() -> None:
    settings = Settings.from_environment({
        "HOME": "/", "https_proxy": "proxy.example:3128", "HTTP_PROXY": PROXY,
        "no_proxy": "a.example, 10.0.0.0/8",
    })  # fmt: skip
    assert settings.proxies == Proxies(
        PROXY, "http://proxy.example:3128", ("a.example", "10.0.0.0/8")
    )
    assert settings.sources["HTTPS_PROXY"].origin == "https_proxy"
    assert settings.sources["HTTP_PROXY"].value == "http://proxy.example:3128"
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("text", ["socks5://proxy:1", "http://", "ftp://proxy"])
def test_invalid_proxies_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="HTTPS_PROXY: it must be http://host:port"):
        Settings.from_environment({"HOME": "/", "HTTPS_PROXY": text})


def test_passwords_are_hidden() -> None:
    assert shown_proxy(parse_proxy("runa:secret@proxy:1")) == "http://proxy:1"
