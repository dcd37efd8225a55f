"""What may befall a store: errors of the disk, changed bytes, other processes, signals."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import handmade_checkpoints as handmade
from support.full_disk import fail_at_each_write
from support.local_http import Answer, Request
from support.registries import RogueRegistry, described, manifest, ranged
from support.stores import add_model, blob_names, files, names
from support.tiny_model import Tiny, write_tiny
from support.waiting import PATIENCE_S, wait_until

from tampu.cli import app
from tampu.convert import convert
from tampu.convert.quantize import quantize_file
from tampu.store import ModelName, Store
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.manifests import CONFIG_TYPE
from tampu.store.modelfile import parse_modelfile
from tampu.store.verify import verify_store

pytestmark = pytest.mark.slow

ERRORS = (errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE, errno.EDQUOT, errno.ENAMETOOLONG)


# -- F5: errors of the disk ------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_any_write_error_leaves_a_consistent_store(tmp_path: Path, error: int) -> None:
    write_tiny(tmp_path / "m.gguf", Tiny(embedding=32, layers=1))
    library = Library(tmp_path / "store")
    store = library.store
    old = add_model(store, "old", license=b"x")
    mine, spec = ModelName.parse("mine"), parse_modelfile("FROM m.gguf\nSYSTEM x")

    def make() -> None:
        create(library, mine, CreateSpec(modelfile=spec, folder=tmp_path))

    def check() -> None:
        assert names(store) in (["old:latest"], ["mine:latest", "old:latest"])
        assert verify_store(store).problems == ()
        assert list(store.layout.incoming.iterdir()) == []
        if store.find(mine) is not None:
            store.delete(mine)
        store.collect_garbage(0)
        assert set(blob_names(store)) == {b.digest.file_name for b in old.manifest.blobs()}

    assert fail_at_each_write(make, check, error) > 20
    check()
    fail_at_each_write(lambda: store.copy(ModelName.parse("old"), mine), check, error)
    check()


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_any_write_error_leaves_the_old_file(tmp_path: Path, error: int) -> None:
    write_tiny(tmp_path / "m.gguf", Tiny(embedding=32, layers=1))
    source, out = handmade.write(tmp_path / "tiny"), tmp_path / "out.gguf"
    before = {path.name for path in tmp_path.iterdir()} | {"out.gguf"}
    for work in (
        lambda: convert(source, out, "F16", threads=1),
        lambda: quantize_file(tmp_path / "m.gguf", out, "Q8_0", threads=1),
    ):
        out.write_bytes(b"old")

        def check() -> None:
            assert out.read_bytes()[:4] in (b"old", b"GGUF")
            assert {path.name for path in tmp_path.iterdir()} == before

        assert fail_at_each_write(work, check, error) > 3
        assert out.read_bytes()[:4] == b"GGUF"


# -- F6: changed bytes -----------------------------------------------------------------------------


def test_each_of_five_hundred_changed_bytes_is_found_and_repaired(store: Store) -> None:
    """One byte of any blob, or of a manifest, is changed; nothing else is blamed."""
    chance = random.Random(4)
    models = [add_model(store, f"m{i}", license=b"%d" % i, system=b"%d!" % i) for i in range(3)]
    blobs = sorted({blob.digest for model in models for blob in model.manifest.blobs()}, key=str)
    for turn in range(500):
        digest = chance.choice(blobs)
        path = store.layout.blob(digest)
        whole = path.read_bytes()
        harmed = bytearray(whole)
        harmed[chance.randrange(len(whole))] ^= chance.randrange(1, 256)
        path.chmod(0o644)
        path.write_bytes(harmed)
        (problem,) = verify_store(store).problems
        assert problem.digest == digest
        assert problem.models
        if turn % 10:
            path.write_bytes(whole)
        else:  # as a pull or another create does it
            path.unlink()
            with store.lease() as lease:
                store.blobs.put(whole, lease)
    assert verify_store(store).problems == ()


# -- F7: other processes ---------------------------------------------------------------------------

LOOP = """
    import sys
    from pathlib import Path
    sys.path[:0] = [{tests!r}]
    from support.stores import add_model
    from tampu.errors import ModelNotFoundError, StoreError
    from tampu.store import ModelName, Store
    store, me = Store(Path({root!r})), sys.argv[1]
    for turn in range(25):
        name = ModelName.parse("shared" if turn % 3 else me)
        add_model(store, name.short, model=b"same for all", license=b"%d" % turn)
        for work in (
            lambda: store.copy(name, ModelName.parse(f"copy-{{me}}")),
            lambda: store.collect_garbage(0),
            lambda: store.delete(name),
        ):
            try:
                work()
            except (ModelNotFoundError, StoreError):  # another has removed it in between
                assert name.short == "shared:latest"
        assert not store.listing().damaged
"""


def test_concurrent_creates_copies_removals_and_collections_lose_nothing(
    store: Store, request: pytest.FixtureRequest
) -> None:
    add_model(store, "stays", model=b"same for all")
    tests = str(request.config.rootpath / "tests")
    program = textwrap.dedent(LOOP).format(tests=tests, root=str(store.root))
    running = [
        subprocess.Popen([sys.executable, "-c", program, f"p{i}"], stderr=subprocess.PIPE)
        for i in range(3)
    ]
    for process in running:
        assert process.communicate(timeout=200)[1] == b""
    left = names(store)
    assert [name for name in left if name != "shared:latest"] == [
        "copy-p0:latest", "copy-p1:latest", "copy-p2:latest", "stays:latest",
    ]  # fmt: skip
    store.collect_garbage(0)
    found = verify_store(store)
    assert found.problems == ()
    wanted = {b.digest for model in store.listing().models for b in model.manifest.blobs()}
    assert found.blobs == len(wanted)
    assert list(store.layout.leases.iterdir()) == []


def test_locks_and_leases_of_dead_processes_do_not_block(store: Store) -> None:
    model = add_model(store, "m")
    for path in (store.layout.lock, store.layout.blob_lock(model.manifest.config.digest)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (store.layout.leases / "999-0123456789abcdef").write_text(f"{model.manifest.config.digest}\n")
    store.delete(ModelName.parse("m"))  # would wait for ever
    assert blob_names(store) == []


# -- F12: Ctrl-C -----------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("phase", ["manifest", "blob"])
def test_ctrl_c_ends_a_pull(tmp_path: Path, phase: str) -> None:
    weights = random.Random(1).randbytes(6 << 20)
    config = b'{"model_format":"gguf"}'
    content = manifest([described(weights)], described(config, CONFIG_TYPE))
    with RogueRegistry(content, (weights, config)) as registry:

        def stall(request: Request) -> Answer | None:
            if f"/{phase}s/" not in request.path:
                return None
            blob = registry.blobs.get(request.path.rpartition("/")[2])
            answer = ranged(request, blob) if blob else Answer(body=content)
            assert isinstance(answer.body, bytes)
            answer.stall_after = min(len(answer.body), 100_000) // 2
            return answer

        registry.before = stall
        arguments = ["pull", "--insecure", f"{registry.host}/a/m"]
        environment = os.environ | {"HOME": str(tmp_path), "TAMPU_MODELS": str(tmp_path / "s")}  # noqa: TID251
        with subprocess.Popen(
            [sys.executable, "-m", "tampu.cli.entry", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            started = time.monotonic()
            wait_until(lambda: registry.sent >= 50, "the pull is under way")
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
            assert time.monotonic() - began < 3 * (began - started)  # as long as it took to start
            assert b"Traceback" not in process.stderr.read()
    store = Store(tmp_path / "s")
    assert names(store) == []
    assert list(store.layout.leases.iterdir()) == []


# -- F15: homes that are not in order --------------------------------------------------------------


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    def run(*arguments: str) -> tuple[int, Any, Any]:
        code = app.run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


PLACES: dict[str, Callable[[Path], Path | str]] = {
    "a file": lambda folder: folder / "file",
    "below a file": lambda folder: folder / "file" / "models",
    "a device": lambda _: "/dev/null",
    "below a device": lambda _: "/dev/null/models",
    "a name of 300 letters": lambda folder: folder / ("x" * 300),
    "a file system that takes nothing": lambda _: "/proc/models",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "arguments",
    [("list",), ("cp", "a", "b"), ("rm", "a"), ("create", "x"), ("pull", "127.0.0.1:1/a/m"),
     ("verify-store",), ("show", "a"), ("export", "a"), ("import", "file"), ("push", "a")],
    ids=" ".join,
)  # fmt: skip
def test_an_invalid_model_folder_is_a_one_line_error(
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    arguments: tuple[str, ...],
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "Modelfile").write_text("FROM demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAMPU_MODELS", str(PLACES[place](tmp_path)))
    before = files(Store(tmp_path))
    code, out, err = run(*arguments)
    if arguments[0] in ("list", "verify-store"):
        assert code in (0, 2)
    else:
        assert code == 2
        assert out == "" or arguments[0] in ("create", "pull", "push")
    assert err.count("Error: ") == (code == 2)
    assert "Traceback" not in err
    assert files(Store(tmp_path)) == before


@pytest.mark.parametrize("arguments", [("list",), ("ps",), ("show", "demo")])
def test_commands_work_without_a_home_folder(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.delenv("HOME")
    code, _, err = run(*arguments)
    assert code in (0, 2)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "variable", ["TAMPU_HOST", "OLLAMA_HOST", "TAMPU_CONNECTIONS", "TAMPU_LIMIT_RATE"]
)
@pytest.mark.parametrize("value", ["x:y:z", "-5", "1e99h", "%", "[::1"])
def test_garbage_settings_are_a_one_line_error_or_the_default(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("TAMPU_HOST", raising=False)
    monkeypatch.setenv(variable, value)
    code, _, err = run("list")
    assert code in (0, 2)
    assert len(err.splitlines()) <= 1
