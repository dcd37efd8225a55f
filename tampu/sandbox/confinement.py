"""Irrevocable limits on a process's system calls and files, where the kernel supports them.

    forbid(MACHINE, families=(socket.AF_UNIX,))          # a worker: no network
    forbid(MACHINE, PROCESSES)                           # a sandbox: no sockets, no processes
    forbid_files(readable=sys.path)

They use Linux's seccomp and Landlock, called through the C library: what is forbidden fails with
EPERM or EACCES, in all threads and all children, and cannot be allowed again. On kernels without
them, other systems and other CPU architectures nothing changes, and the functions return False.
(seccomp(2), landlock(7), linux/bpf_common.h.)
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

# System call numbers on x86-64 and on 64-bit ARM (-1: does not exist there).
_NUMBERS: Final = {
    "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51), "clone": (56, 220),
    "clone3": (435, 435), "delete_module": (176, 106), "execve": (59, 221),
    "execveat": (322, 281), "finit_module": (313, 273), "fork": (57, -1), "fsopen": (430, 430),
    "init_module": (175, 105), "io_uring_setup": (425, 425), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129),
    "landlock_create_ruleset": (444, 444), "memfd_create": (319, 279), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "mq_open": (240, 180),
    "msgget": (68, 186), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "reboot": (169, 142),
    "request_key": (249, 218), "seccomp": (317, 277), "semget": (64, 190), "setns": (308, 268),
    "shmget": (29, 194), "socket": (41, 198), "socketpair": (53, 199), "swapoff": (168, 225),
    "swapon": (167, 224), "tgkill": (234, 131), "tkill": (200, 130), "umount2": (166, 39),
    "unshare": (272, 97), "userfaultfd": (323, 282), "vfork": (58, -1),
}  # fmt: skip
_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH_...
_FOREIGN = 0x40000000  # x86-64: from here on numbers are of the x32 ABI, for the same calls

MACHINE: Final = frozenset({
    "add_key", "bpf", "chroot", "delete_module", "finit_module", "fsopen", "init_module",
    "io_uring_setup", "kexec_file_load", "kexec_load", "keyctl", "mount", "mount_setattr",
    "move_mount", "open_by_handle_at", "open_tree", "perf_event_open", "pidfd_getfd", "pivot_root",
    "process_vm_readv", "process_vm_writev", "ptrace", "reboot", "request_key", "setns", "swapoff",
    "swapon", "umount2", "unshare", "userfaultfd",
})  # fmt: skip
"""Calls that administer the machine, inspect other processes, or bypass this filter."""

PROCESSES: Final = frozenset({
    "clone", "clone3", "execve", "execveat", "fork", "kill", "memfd_create", "mq_open", "msgget",
    "pidfd_open", "pidfd_send_signal", "semget", "shmget", "socketpair", "tgkill", "tkill", "vfork",
})  # fmt: skip
"""Calls that start, signal or contact other processes; threads and own signals stay allowed."""

# BPF instructions, struct sock_filter: code, jump if true, jump if false, value.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_CLONE_THREAD = 0x10000
_ALL_THREADS, _KEEP_SPEED = 1, 1 << 2  # older kernels slow a filtered process by default

_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # Landlock ABI version: number of access rights
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_PATH_BENEATH = 1

_PRCTL_DEATH_SIGNAL, _PRCTL_NO_NEW_PRIVILEGES = 1, 38

_Instruction = tuple[int, int, int, int]


def end_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it exits."""
    if sys.platform == "linux":
        _library().prctl(_PRCTL_DEATH_SIGNAL, signal_number, 0, 0, 0)


def set_no_new_privileges() -> None:
    """Give up gaining privileges through execve; seccomp and Landlock require it."""
    if sys.platform == "linux":
        _library().prctl(_PRCTL_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def set_oom_score(score: int) -> None:
    """Set how soon the system kills this process when memory is short; 1000 is first."""
    with suppress(OSError):  # other systems lack the file; some containers forbid writing it
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


def forbid(*calls: Iterable[str], families: Sequence[int] = ()) -> bool:
    """Make system calls fail from now on, and sockets of all families but these.

    `clone` still makes threads, and `kill` and `tgkill` still reach this process itself.

    Args:
        calls: sets of names, such as `MACHINE`.
        families: socket families that stay allowed, such as `socket.AF_UNIX`.

    Returns:
        Whether the kernel supports it.
    """
    column, architecture = _MACHINES.get(os.uname().machine, (0, 0))
    if sys.platform != "linux" or not architecture:
        return False
    set_no_new_privileges()
    program = _program(set().union(*calls), families, column, architecture)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    instructions = ctypes.create_string_buffer(code)
    header = struct.pack("@HP", len(program), ctypes.addressof(instructions))  # struct sock_fprog
    set_filter = 1
    return _call(_NUMBERS["seccomp"][column], set_filter, _ALL_THREADS | _KEEP_SPEED, header) == 0


def _program(
    calls: set[str], families: Sequence[int], column: int, architecture: int
) -> list[_Instruction]:
    refused = _FAIL | errno.EPERM
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, refused),  # 32-bit programs use other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _FOREIGN),
        (_RETURN, 0, 0, refused),
    ]
    numbers = {name: _NUMBERS[name][column] for name in sorted(calls | {"socket"})}
    for name, number in numbers.items():
        rule: list[_Instruction] = [(_RETURN, 0, 0, refused)]
        if name == "socket":
            rule = _unless(_EQUAL, families)
        elif name in {"kill", "tgkill"}:
            rule = _unless(_EQUAL, [os.getpid()])
        elif name == "clone":
            rule = _unless(_ANY_BIT, [_CLONE_THREAD])
        elif name == "clone3":  # its flags are in memory; the C library falls back to clone
            rule = [(_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
        if number >= 0:
            program += [(_EQUAL, 0, len(rule), number), *rule]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _unless(test: int, values: Sequence[int]) -> list[_Instruction]:
    """Return instructions that refuse a call unless its first argument passes a test."""
    tests = [(test, len(values) - index, 0, value) for index, value in enumerate(values)]
    ends = [(_RETURN, 0, 0, _FAIL | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return [(_LOAD, 0, 0, _FIRST_ARGUMENT), *tests, *ends]


def forbid_files(readable: Iterable[str | Path]) -> bool:
    """Deny the calling thread and its children all files except those in folders.

    Open files stay open. Files in the folders can be read, but not written or executed.

    Returns:
        Whether the kernel supports it.
    """
    if sys.platform != "linux":
        return False
    version = _call(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    set_no_new_privileges()
    count = max(count for least, count in _FILE_RIGHTS.items() if least <= version)
    rules = _call(_LANDLOCK_CREATE, struct.pack("=Q", (1 << count) - 1), 8, 0)
    if rules < 0:
        return False
    try:
        for folder in filter(os.path.isdir, readable):
            place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", _READ_FILE | _READ_FOLDER, place)
            _call(_LANDLOCK_ADD, rules, _PATH_BENEATH, rule, 0)
            os.close(place)
        return _call(_LANDLOCK_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Return the result of a system call; -1 if it fails."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    syscall = _library().syscall
    syscall.restype = ctypes.c_long
    return int(syscall(ctypes.c_long(number), *words))
