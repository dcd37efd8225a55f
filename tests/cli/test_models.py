"""`tampu list`, `cp`, `rm`, `verify-store`, `ps`, `stop`: their output and effects."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.piped import piped
from support.stores import add_model, names
from support.tiny_gguf import write_gguf

from tampu.cli import app, processes, server_client
from tampu.cli.completion import complete_model
from tampu.cli.processes import processor, until
from tampu.store import ModelName, Store
from tampu.version import __version__
from tests.cli.conftest import Run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")  # no server
    for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def store(home: Path) -> Store:
    return Store(home / ".local/share/tampu/models")


def test_the_list_has_ollamas_columns(store: Store, run: Run) -> None:
    model = add_model(store, "runa/m:1b", model=b"x" * 4_000_000)
    before = (datetime.now(UTC) - timedelta(days=21)).timestamp()
    os.utime(store.layout.manifest(model.name), (before, before))
    code, out, _ = run("list")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["NAME", "ID", "SIZE", "MODIFIED"]
    built_in = {"demo:latest", "digits:latest", "demo-draft:latest"}
    assert {line.split()[0] for line in lines[1:4]} == built_in
    assert lines[4] == f"runa/m:1b            {model.digest.short}    4.0 MB    3 weeks ago"
    assert run("ls", "RUNA/")[1].split() == f"{lines[0]} {lines[4]}".split()


def test_list_as_json(store: Store, run: Run) -> None:
    add_model(store, "m")
    rows = json.loads(run("list", "m", "--json")[1])
    assert [(row["name"], row["origin"]) for row in rows] == [("m:latest", "store")]


FEW = {"typer", "numpy", "rich"}
OF_RUN = {"typer", "pydantic", "rich", "prompt_toolkit", "starlette", "uvicorn", "urllib3", "PIL"}
OF_RUN |= {"llguidance", "tokenizers", "tampu.chat.gotemplate", "argparse"}
NO_SERVER = "Error: no server is running at http://127.0.0.1:1: "


@pytest.mark.parametrize(
    ("command", "heavy", "code", "out", "error"),
    [
        (["--version"], {*FEW, "msgspec"}, 0, f"tampu version {__version__}\n", ""),
        (["list"], FEW, 0, "good:latest", "library/bad/latest: the manifest is damaged"),
        (["ps"], {*FEW, "msgspec", "asyncio", "pydantic", "tampu.store"}, 2, "", NO_SERVER),
        (["run", "demo", "What is 27 + 58?"], OF_RUN, 0, "85\n", ""),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_plain_commands_import_only_what_they_need(
    store: Store, command: list[str], heavy: set[str], code: int, out: str, error: str
) -> None:
    """No parser of options, no web server, and nothing for images, grammars and Go templates."""
    add_model(store, "good")
    add_model(store, "bad")
    store.layout.manifest(ModelName.parse("bad")).write_bytes(b"")
    program = (
        f"import sys; sys.argv = ['tampu', *{command}]\n"
        "from tampu.cli.entry import main\n"
        "try: main()\n"
        f"finally: assert not {heavy} & sys.modules.keys(), {heavy} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert out in done.stdout
    assert error in done.stderr
    assert done.stderr.count("\n") <= 1


def test_plain_run_collects_no_garbage_among_its_imports_but_does_afterwards() -> None:
    program = (
        "import gc, sys; sys.argv = ['tampu', 'run', 'demo', 'What is 27 + 58?']\n"
        "begun = []; gc.callbacks.append(lambda phase, _: begun.append(phase))\n"
        "from tampu.cli import entry, run_model\n"
        "del begun[:]\n"
        "select = run_model.select_backend\n"
        "def watched(*args, **more):\n"
        "    found = select(*args, **more); assert not begun; return found\n"
        "run_model.select_backend = watched\n"
        "try: entry.main()\n"
        "finally: assert gc.isenabled()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "85\n"), done.stderr


@pytest.mark.parametrize(
    "start",
    [
        "from tampu.worker import entry, main; main.main = serve; entry.main()",
        "from tampu.cli import app, entry; from tampu.server.serve import prepare_process\n"
        "sys.argv = ['tampu', 'serve']\n"
        "app.run = lambda _: assert_off() or prepare_process() or serve()\n"
        "entry.main()",
    ],
    ids=["a model", "serve"],
)
def test_garbage_is_collected_once_all_is_imported(start: str) -> None:
    program = (
        "import gc, sys\n"
        "def assert_off(): assert not gc.isenabled()\n"
        "def serve(): print(gc.isenabled(), gc.get_freeze_count() > 10_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + start], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.usefixtures("home")
def test_plain_list_prints_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMPU_NONSENSE", "1")
    done = subprocess.run([sys.executable, "-m", "tampu.cli.entry", "ls"], capture_output=True)
    assert done.returncode == 2
    assert done.stderr.startswith(b"Error: TAMPU_NONSENSE in the environment")
    assert done.stderr.count(b"\n") == 1


def test_a_model_is_copied_and_removed(store: Store, run: Run) -> None:
    add_model(store, "m")
    assert run("cp", "m", "runa/n:x") == (0, "copied 'm' to 'runa/n:x'\n", "")
    assert run("rm", "m") == (0, "deleted 'm'\n", "")
    assert names(store) == ["runa/n:x"]


def test_several_models_are_removed_only_if_all_are_there(store: Store, run: Run) -> None:
    add_model(store, "m")
    assert run("rm", "m", "Mine3") == (2, "", "Error: model 'Mine3' not found\n")
    assert names(store) == ["m:latest"]


@pytest.mark.parametrize("source", ["loose", "demo", "hf.co/u/r:Q4_0"])
def test_any_model_gets_a_second_name(store: Store, run: Run, home: Path, source: str) -> None:
    loose = store.root / "loose.gguf"
    snapshot = home / ".cache/huggingface/hub/models--u--r/snapshots/1"
    for folder in (store.root, snapshot):
        folder.mkdir(parents=True)
    write_gguf(loose)
    write_gguf(snapshot / "r-Q4_0.gguf")
    before = run("show", source, "--json")[1]
    assert run("cp", source, "alias") == (0, f"copied '{source}' to 'alias'\n", "")
    after = run("show", "alias", "--json")[1]
    assert json.loads(after)["metadata"] == json.loads(before)["metadata"]
    assert names(store) == ["alias:latest"]
    weights = store.model(ModelName.parse("alias")).model_path
    assert weights.is_relative_to(store.root / "blobs") == (source == "demo")
    code, _, error = run("cp", source, "loose")
    assert (code, "loose:latest is the name of a file of the models' folder" in error) == (2, True)


def test_an_import_says_that_it_replaces_a_model(store: Store, run: Run, home: Path) -> None:
    add_model(store, "m")
    file = str(home / "m.tar")
    assert run("export", "m", "-o", file)[0] == 0
    assert run("import", file) == (0, "imported 'm:latest'\n", "'m:latest' is replaced\n")
    assert run("import", file, "--name", "n") == (0, "imported 'n:latest'\n", "")


@pytest.mark.parametrize(
    ("answer", "code", "told"), [("y", 0, "imported 'm:latest'"), ("n", 130, "")]
)
def test_an_import_asks_on_a_terminal(
    store: Store,
    run: Run,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    told: str,
) -> None:
    add_model(store, "m")
    file = str(home / "m.tar")
    assert run("export", "m", "-o", file)[0] == 0
    typed = piped(f"{answer}\n")
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", typed)
    found, out, error = run("import", file)
    assert found == code
    assert told in out
    assert "There is a model 'm:latest'. Replace it?" in error


@pytest.mark.usefixtures("home")
def test_damaged_models_can_be_removed(store: Store, run: Run) -> None:
    model = add_model(store, "whole")
    for name, content in (("empty", b""), ("half", b'{"schemaVersion":2')):
        add_model(store, name)
        store.layout.manifest(ModelName.parse(name)).write_bytes(content)
    add_model(store, "lost").model_path.unlink()
    for name in ("empty", "half", "lost"):
        assert run("rm", name) == (0, f"deleted '{name}'\n", "")
    assert store.listing().damaged == []
    assert [each.digest for each in store.listing().models] == [model.digest]


def test_missing_models_are_errors(run: Run) -> None:
    assert run("rm", "nothing") == (2, "", "Error: model 'nothing' not found\n")
    assert run("cp", "nothing", "m")[0] == 2
    code, _, error = run("cp", "../x", "m")
    assert code == 2
    assert "is not valid" in error


def test_verify_store_reports_and_repairs_damage(store: Store, run: Run) -> None:
    model = add_model(store, "m")
    assert run("verify-store")[:2] == (0, "1 model, 2 blobs, 58 B: all sound\n")
    model.model_path.chmod(0o644)
    model.model_path.write_bytes(b"x")
    code, out, _ = run("verify-store")
    assert code == 1
    assert "is damaged" in out
    assert "(needed by m:latest)" in out
    (problem,) = json.loads(run("verify-store", "--json")[1])["problems"]
    assert problem["models"] == ["m:latest"]
    assert "removed 1 damaged blob:" in run("verify-store", "--repair")[1]
    assert not model.blobs.has(model.manifest.layers[0].digest)


def test_repair_removes_unused_blobs(store: Store, run: Run) -> None:
    add_model(store, "m")
    with store.lease() as lease:
        nameless = store.blobs.path(store.blobs.put(b"of a model that was never complete", lease))
    partial = store.layout.incoming / f"sha256-{'0' * 64}"
    partial.write_bytes(b"a download that nobody goes on with")
    for path in (nameless, partial):
        os.utime(path, (0, 0))
    run("verify-store")
    assert nameless.exists()
    assert "removed 1 blob that no model needs" in run("verify-store", "--repair")[1]
    assert not nameless.exists()
    assert not partial.exists()
    assert run("verify-store")[1] == "1 model, 2 blobs, 58 B: all sound\n"


def test_model_names_are_completed(store: Store) -> None:
    add_model(store, "Llama3:1b")
    add_model(store, "llama3")
    assert complete_model("lla") == ["Llama3:1b", "llama3", "llama3:latest"]
    assert complete_model("x") == []


@pytest.mark.usefixtures("home")
def test_invalid_environment_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMPU_NONSENSE", "1")
    assert complete_model("") == []


# -- the models in memory --------------------------------------------------------------------------


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:  # noqa: ARG001 - a fixture cannot use fixtures otherwise
    """A server with one model in memory, which records its requests."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: dict[Any, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            model = {"name": "m:latest", "digest": "ab" * 32, "size": 1000, "size_vram": 250,
                     "slots": 4, "slot_size": 512,
                     "engine": "native", "context_length": 4096,
                     "expires_at": "2318-01-01T00:00:00Z"}  # fmt: skip
            self.answer(200, {"models": [model]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            known = body["model"] == "m"
            self.answer(200, {}) if known else self.answer(404, {"error": "model 'x' not found"})

        def log_message(self, *arguments: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv("TAMPU_HOST", f"127.0.0.1:{httpd.server_port}")
    yield asked
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.mark.usefixtures("server")
def test_the_models_in_memory_are_listed(run: Run) -> None:
    lines = run("ps")[1].splitlines()
    titles = ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "ENGINE", "SLOTS", "UNTIL"]
    row = ["m:latest", "abababababab", "1.0 KB", "75%/25% CPU/GPU", "4096", "native", "4 x 512 B"]
    assert [re.split(r" {2,}", line) for line in lines] == [titles, [*row, "Forever"]]
    assert json.loads(run("ps", "--json")[1])[0]["size_vram"] == 250
    assert len(run("ps", "other")[1].splitlines()) == 1


@pytest.mark.usefixtures("server")
def test_where_a_model_is_follows_the_list_on_a_machine_with_a_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = server_client.loaded_models
    share = {"experts": [], "has_embedding": False, "weights": 2 * 10**9, "cache": 5 * 10**6}
    gpu = {**share, "name": "CUDA.0", "layers": [3, 4, 5], "graphs": 12_000_000}
    cpu = {**share, "name": "CPU.0", "layers": [0, 1, 2, 6], "graphs": 0,
           "experts": [3, 4], "has_embedding": True}  # fmt: skip
    told = {"devices": [gpu, cpu], "placement": "3 of 7 layers are on CUDA.0: why"}
    monkeypatch.setattr(processes, "loaded_models", lambda _: [loaded(_)[0] | told])
    lines = run("ps")[1].splitlines()[2:]
    assert lines[:2] == ["", "m:latest: 3 of 7 layers are on CUDA.0: why"]
    assert [re.split(r" {2,}", line) for line in lines[2:]] == [
        ["DEVICE", "LAYERS", "WEIGHTS", "CACHE", "GRAPHS", "ALSO"],
        ["CUDA.0", "3-5", "2.0 GB", "5.0 MB", "12 MB"],
        ["CPU.0", "0-2, 6", "2.0 GB", "5.0 MB", "0 B", "experts of 3-4, token embeddings"],
    ]


def test_a_model_is_stopped(server: list[tuple[str, Any]], run: Run) -> None:
    assert run("stop", "m") == (0, "", "")
    assert server == [("/api/generate", {"model": "m", "keep_alive": 0, "stream": False})]
    assert run("stop", "x") == (2, "", "Error: model 'x' not found\n")


def test_loaded_model_is_unloaded_before_removal(
    server: list[tuple[str, Any]], store: Store, run: Run
) -> None:
    add_model(store, "m")
    add_model(store, "n")
    assert run("rm", "n", "m")[0] == 0
    assert [body["model"] for _, body in server] == ["m"]


@pytest.mark.usefixtures("home")
def test_ps_without_a_server_is_an_error(run: Run) -> None:
    code, _, error = run("ps")
    assert code == 2
    assert error.startswith("Error: no server is running at http://127.0.0.1:1")


def test_processor_and_until_columns() -> None:
    assert processor(0, 0) == processor(1, 2) == "Unknown"
    assert (processor(5, 0), processor(5, 5)) == ("100% CPU", "100% GPU")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert until("2026-01-01T00:04:00+00:00", now) == "4 minutes from now"
    assert until("2025-12-31T23:59:59Z", now) == "Stopping..."
    assert until("2250-01-01T00:00:00Z", now) == "Forever"
    assert until("soon", now) == "Unknown"


def completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> list[str]:
    """What bash shows when Tab is pressed after these words."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_TAMPU_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit) as ended:
        app.app([], prog_name="tampu", standalone_mode=False)
    assert ended.value.code == 0
    return capsys.readouterr().out.split()


COMMANDS = ("run", "show", "pull", "push", "list", "ls", "ps", "stop", "cp", "cp x", "rm", "rm x",
            "export", "create", "bench")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_complete_model_names(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    add_model(store, "llama3")
    add_model(store, "other")
    assert completed(monkeypatch, capsys, f"tampu {command} lla") == ["llama3", "llama3:latest"]


@pytest.mark.parametrize("words", ["quantize a b", "convert d --type", "create x --quantize"])
@pytest.mark.usefixtures("home")
def test_weight_types_are_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert completed(monkeypatch, capsys, f"tampu {words} Q5_K") == ["Q5_K_M", "Q5_K_S"]
    assert completed(monkeypatch, capsys, f"tampu {words} q6") == ["q6_k"]


def test_shell_completion_runs_the_program(store: Store) -> None:
    add_model(store, "llama3")
    asked = {"COMP_WORDS": "tampu rm lla", "COMP_CWORD": "2", "_TAMPU_COMPLETE": "complete_bash"}
    environment = {"HOME": str(store.root.parents[3]), "PATH": "/usr/bin:/bin", **asked}
    command = [sys.executable, "-c", "from tampu.cli.app import run; run([])"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["llama3", "llama3:latest"], done.stderr


@pytest.mark.parametrize("arguments", [("rm", "demo"), ("export", "demo"), ("push", "demo")])
@pytest.mark.usefixtures("store")
def test_read_only_model_error_says_how_to_copy_it(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, error = run(*arguments)
    assert (code, out) == (2, "")
    assert error == (
        "Error: demo:latest is not in tampu's own store (built in), so it is read-only; "
        "`tampu create` with FROM demo makes a copy that can be changed\n"
    )


@pytest.mark.parametrize(
    "arguments", [("list",), ("show", "demo"), ("verify-store",), ("devices",), ("config",)]
)
@pytest.mark.usefixtures("store")
def test_commands_with_tables_print_json(run: Run, arguments: tuple[str, ...]) -> None:
    code, text, _ = run(*arguments)
    assert code == 0
    as_json = run(*arguments, "--json")[1]
    assert json.loads(as_json)
    assert text != as_json


def test_show_json_has_the_modelfiles_values(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "Modelfile").write_text(
        "FROM demo\nSYSTEM Be kind.\nPARAMETER seed 1\nLICENSE MIT\nMESSAGE user Hi\n"
    )
    assert run("create", "mine")[0] == 0
    shown = json.loads(run("show", "mine", "--json")[1])
    assert (shown["system"], shown["options"], shown["license"]) == ("Be kind.", {"seed": 1}, "MIT")
    assert shown["messages"] == [{"role": "user", "content": "Hi"}]
