"""Four ways in which a process of this machine can be made to die, from outside and at any moment.

`exit` is a real exit: the process itself calls `exit_group`, whatever it was doing, because that call is written under
its program counter.
"""

import ctypes
import os
import platform
import signal

PTRACE_POKETEXT, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_ATTACH, PTRACE_DETACH = 4, 12, 13, 16, 17
WAIT_ALL = 0x40000000
SYSCALL = 0x050F
EXIT_GROUP = 231
STATUS = 7
"""The exit status of who is made to exit."""


REGISTERS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip


class Registers(ctypes.Structure):
    """`struct user_regs_struct` of x86-64."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in REGISTERS]


def kill(pid, kind):
    """Kills in this way. Raises ProcessLookupError if there is no such process."""
    if kind == "exit":
        make_exit(pid, STATUS)
    else:
        os.kill(pid, signal.Signals[kind])


def make_exit(pid, status):
    """Has a process end with this status, wherever it is."""
    assert platform.machine() == "x86_64", "the system call's number and registers are those of x86-64"
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes, ptrace.restype = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p), ctypes.c_long

    def call(request, address=None, data=None):
        if ptrace(request, pid, address, data) == -1:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    call(PTRACE_ATTACH)
    os.waitpid(pid, WAIT_ALL)
    registers = Registers()
    call(PTRACE_GETREGS, data=ctypes.addressof(registers))
    call(PTRACE_POKETEXT, registers.rip, SYSCALL)
    registers.rax, registers.rdi = EXIT_GROUP, status
    registers.orig_rax = 2**64 - 1  # it is in no system call that would be begun again
    call(PTRACE_SETREGS, data=ctypes.addressof(registers))
    call(PTRACE_DETACH)
