"""A kernel filter (seccomp) for sync calls. The filtered process needs no change."""

from __future__ import annotations

import ctypes
import platform
import sys

# fdatasync, fsync and seccomp by machine.
NUMBERS = {"x86_64": (75, 74, 317), "aarch64": (83, 82, 277)}
PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, ALL_THREADS, NEW_LISTENER = 1, 1, 8
LOAD_SYSCALL, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO, NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000


class Instruction(ctypes.Structure):
    """One step of a filter (`struct sock_filter`)."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class Program(ctypes.Structure):
    """A filter (`struct sock_fprog`)."""

    _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction)))


def filter_syncs(action: int, flags: int) -> int:
    """Applies `action` to every later sync of the thread and of its children. Returns the
    listener if `flags` request one."""
    fdatasync, fsync, seccomp = NUMBERS[platform.machine()]
    steps = (Instruction * 5)(
        Instruction(LOAD_SYSCALL, 0, 0, 0),
        Instruction(JUMP_IF_EQUAL, 1, 0, fdatasync),
        Instruction(JUMP_IF_EQUAL, 0, 1, fsync),
        Instruction(RETURN, 0, 0, action),
        Instruction(RETURN, 0, 0, ALLOW),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = Program(len(steps), steps)
    made: int = libc.syscall(seccomp, SET_MODE_FILTER, flags, ctypes.byref(program))
    if made < 0:
        sys.exit(f"no filter: errno {ctypes.get_errno()}")
    return made
