"""`topics serve` whose kernel refuses every `fdatasync` with EIO, from SIGUSR1 on.

The filter is the kernel's own (seccomp), in every thread: the server knows nothing of it.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import sys

from topics_engine.cli import main

# fdatasync, fsync and seccomp by machine.
NUMBERS = {"x86_64": (75, 74, 317), "aarch64": (83, 82, 277)}
EIO = 5
PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, ALL_THREADS = 1, 1
LOAD_SYSCALL, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


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


def refuse(_signal: int, _frame: object) -> None:
    """From now on no file is made durable."""
    fdatasync, fsync, seccomp = NUMBERS[platform.machine()]
    steps = (Instruction * 5)(
        Instruction(LOAD_SYSCALL, 0, 0, 0),
        Instruction(JUMP_IF_EQUAL, 1, 0, fdatasync),
        Instruction(JUMP_IF_EQUAL, 0, 1, fsync),
        Instruction(RETURN, 0, 0, ERRNO | EIO),
        Instruction(RETURN, 0, 0, ALLOW),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = Program(len(steps), steps)
    if libc.syscall(seccomp, SET_MODE_FILTER, ALL_THREADS, ctypes.byref(program)) != 0:
        sys.exit(f"no filter: errno {ctypes.get_errno()}")
    print("syncs are refused", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, refuse)
    sys.exit(main())
