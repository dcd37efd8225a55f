"""Confinement is irrevocable; without kernel support nothing changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = """
import errno, os, socket, sys, threading
from pathlib import Path
from tampu.sandbox import confinement

def cause(deed):
    try:
        deed()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


def said(program: str, *arguments: str) -> list[str]:
    """What a process of its own prints."""
    command = [sys.executable, "-c", TOOLS + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_worker_keeps_unix_sockets_and_children_but_no_network() -> None:
    assert said("""
waits, told = threading.Event(), []
def other():
    waits.wait()
    told.append(cause(lambda: socket.socket(socket.AF_INET)))
thread = threading.Thread(target=other)
thread.start()  # one that is there already is bound too
print(confinement.forbid(confinement.MACHINE, families=(socket.AF_UNIX, 16)))
waits.set()
thread.join()
print(*told, cause(lambda: socket.socket(socket.AF_INET6)))
print(cause(lambda: socket.socket(socket.AF_UNIX).close()), cause(socket.socketpair))
print(cause(lambda: os.waitpid(os.spawnv(os.P_NOWAIT, "/bin/true", ["true"]), 0)))
print(cause(lambda: os.kill(os.getppid(), 0)))
print(os.waitstatus_to_exitcode(os.system(
    f"{sys.executable} -c 'import socket; socket.socket()' 2>/dev/null")))
""") == ["True", "EPERM", "EPERM", "done", "done", "done", "done", "1"]


def test_only_files_in_readable_folders_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    assert said(
        """
place = Path(sys.argv[1])
held = (place / "b").open()
print(confinement.forbid_files([place / "open", place / "none"]))
print(cause((place / "open" / "a").read_text), cause((place / "b").read_text), held.read())
print(cause(lambda: (place / "open" / "a").write_text("x")))
print(cause(lambda: (place / "open" / "c").touch()), cause((place / "open" / "a").unlink))
print(cause(lambda: os.execv("/bin/true", ["true"])))
""",
        str(tmp_path),
    ) == ["True", "done", "EACCES", "b", "EACCES", "EACCES", "EACCES", "EACCES"]


@pytest.mark.parametrize("lacking", ["landlock_create_ruleset", "seccomp"])
def test_kernel_without_support_changes_nothing(lacking: str) -> None:
    program = """
print(confinement.forbid([sys.argv[1]], families=range(16)))
files = confinement.forbid_files([])
calls = confinement.forbid(["swapon"])
print(files, calls, cause(lambda: socket.socket().close()))
"""
    has_files = lacking != "landlock_create_ruleset"
    can_call = "done" if has_files else "EPERM"
    assert said(program, lacking) == ["True", str(has_files), str(not has_files), can_call]


def test_other_architectures_and_systems_are_not_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    from tampu.sandbox import confinement

    monkeypatch.setattr(confinement, "_MACHINES", {})
    assert not confinement.forbid(confinement.MACHINE)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not confinement.forbid(confinement.MACHINE)
    assert not confinement.forbid_files([])
