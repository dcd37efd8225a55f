"""The safe defaults, each by its name; what they do is shown where they are used.

Who may call: test_http.py, test_every_route.py. Limits of connections: test_listening.py.
Sandboxes: tests/sandbox/test_process.py, tests/chat, tests/sampling. Files:
tests/ml/test_gguf.py, tests/store.
"""

from __future__ import annotations

import pytest

from tampu.chat import budget
from tampu.chat.sandboxed_template import RENDER_LIMITS
from tampu.engine import load_options
from tampu.errors import SettingsError
from tampu.ml import gguf
from tampu.sampling import parameters, schema
from tampu.sampling.constraint import COMPILE_LIMITS
from tampu.server import serve
from tampu.server.fields import conversation, logit_bias, options, tools
from tampu.server.front import body, connection, trusted_host
from tampu.server.options import ServerOptions
from tampu.server.serve import check_exposure
from tampu.settings.settings import Settings
from tampu.store import manifests
from tampu.store.registry import session
from tampu.vision import ImageLimits
from tests.server.conftest import Site

KIB, MIB = 1 << 10, 1 << 20
SETTINGS = Settings.from_environment({"HOME": "/home/runa"})
IMAGES = ImageLimits()


@pytest.mark.parametrize(
    ("value", "default"),
    [
        pytest.param(SETTINGS.address.host, "127.0.0.1", id="bind: this machine alone"),
        pytest.param(SETTINGS.address.port, 11434, id="bind: port"),
        pytest.param(SETTINGS.api_keys + SETTINGS.use_api_keys, (), id="auth: off on loopback"),
        pytest.param(SETTINGS.origins, (), id="origins: no page of strangers"),
        pytest.param(trusted_host.MAX_HEADER_BYTES, 64 * KIB, id="http: header block"),
        pytest.param(trusted_host.MAX_HEADERS, 100, id="http: headers"),
        pytest.param(trusted_host.MAX_TARGET_LENGTH, 8 * KIB, id="http: address"),
        pytest.param(body.MAX_BODY, 64 * MIB, id="http: JSON body"),
        pytest.param(connection.HEADER_SECONDS, 10, id="http: time for headers"),
        pytest.param(body.IDLE_SECONDS, 30, id="http: pause in a body"),
        pytest.param(serve.KEEP_ALIVE_SECONDS, 75, id="http: idle connection"),
        pytest.param(connection.WRITE_SECONDS, 60, id="http: client that reads nothing"),
        pytest.param(connection.MAX_CONNECTIONS, 2_048, id="http: connections"),
        pytest.param(SETTINGS.max_queue, 512, id="queue: length"),
        pytest.param(SETTINGS.slots, None, id="queue: parallel requests of a model"),
        pytest.param(load_options.UNIFIED_SLOTS, 8, id="queue: that share one context"),
        pytest.param(SETTINGS.load_timeout_s, 300, id="queue: loading without progress"),
        pytest.param(SETTINGS.hang_s, 60, id="runner: time without progress"),
        pytest.param(SETTINGS.max_repeated_tokens, 30, id="runner: repeats of a token"),
        pytest.param(SETTINGS.max_crashes, 3, id="runner: deaths within a minute"),
        pytest.param(conversation.MAX_MESSAGES, 10_000, id="request: messages"),
        pytest.param(conversation.MAX_MEDIA, 16, id="request: images"),
        pytest.param(tools.MAX_TOOLS, 128, id="request: tools"),
        pytest.param(parameters.MAX_STOPS, 16, id="request: stop strings"),
        pytest.param(parameters.MAX_STOP_LENGTH, KIB, id="request: length of a stop string"),
        pytest.param(logit_bias.MAX_BIASES, 1_024, id="request: logit_bias"),
        pytest.param(options.MAX_INPUTS, 2_048, id="request: texts to embed"),
        pytest.param(schema.MAX_BYTES, 256 * KIB, id="request: schema"),
        pytest.param(schema.MAX_DEPTH, 64, id="request: depth of a schema"),
        pytest.param(budget.MAX_SECONDS, 2, id="templates: time"),
        pytest.param(budget.MAX_OUTPUT, 8 * MIB, id="templates: output"),
        pytest.param(RENDER_LIMITS.memory_bytes, 256 * MIB, id="templates: memory"),
        pytest.param(COMPILE_LIMITS.memory_bytes, 256 * MIB, id="grammars: memory"),
        pytest.param(COMPILE_LIMITS.cpu_s, 2, id="grammars: time"),
        pytest.param(gguf.MAX_KEYS, 65_536, id="files: keys"),
        pytest.param(gguf.MAX_TENSORS, 65_536, id="files: tensors"),
        pytest.param(gguf.MAX_STRING_BYTES, 16 * MIB, id="files: string"),
        pytest.param(gguf.MAX_ARRAY_LENGTH, 64 * MIB, id="files: array"),
        pytest.param(gguf.MAX_ALIGNMENT, 4_096, id="files: alignment"),
        pytest.param(IMAGES.size_bytes, 20 * MIB, id="images: size"),
        pytest.param(IMAGES.pixels, 50_000_000, id="images: pixels"),
        pytest.param(IMAGES.side, 16_384, id="images: side"),
        pytest.param(session.MAX_REDIRECTS, 5, id="registry: redirects"),
        pytest.param(session.MAX_TOKEN_BYTES, 64 * KIB, id="registry: token"),
        pytest.param(manifests.MAX_MANIFEST_BYTES, 4 * MIB, id="registry: manifest"),
    ],
)
def test_the_safe_default_holds(
    value: str | tuple[str, ...] | float | None, default: str | int | tuple[()]
) -> None:
    assert value == default


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_other_machines_are_kept_out_without_a_key(host: str) -> None:
    with pytest.raises(SettingsError, match="TAMPU_API_KEY"):
        check_exposure(host, has_keys=False, is_allowed=False)
    check_exposure(host, has_keys=True, is_allowed=False)
    for own in ("127.0.0.1", "::1", "localhost"):
        check_exposure(own, has_keys=False, is_allowed=False)


def test_unsupported_features_have_no_route(site: Site) -> None:
    paths = {route.path for route in site.app.state.routes}
    words = ("debug", "pprof", "rpc", "profile", "update", "telemetry", "exec", "mcp")
    assert [path for path in paths for word in words if word in path] == []
    assert ServerOptions().use_api_keys == ServerOptions().api_keys == ()
