"""How native code leaves a launch early: the stop word that it polls, and the codes it returns.

The stop word of a launch is 0, `STOP`, or the identifier of the OS thread that shall run Python's
signal handlers. If it is not 0, native code calls ``nbrt_attend``. That returns 0 to continue,
`STOPPED` to end the launch, or `INTERRUPTED` to end it with the exception of a signal handler, set
in the calling thread.
"""

from __future__ import annotations

import ctypes
import platform
import sys

from nbrt.backends.cpu.interrupts import STOP

__all__ = [
    "ATTEND",
    "CALLING_CONVENTION",
    "DEADLOCKED",
    "HELPER_FAILED",
    "INTERRUPTED",
    "PYTHON_EXCEPTION",
    "RETURN_NONE",
    "STOPPED",
    "WAIT_INTERRUPTED",
    "attend_module",
]

STOPPED = -2147483647
"""Status of a block whose launch was stopped."""

INTERRUPTED = -2147483646
"""Status of a block that ended because a signal handler raised an exception."""

DEADLOCKED = -2147483645
"""Status of a block whose threads deadlock."""

WAIT_INTERRUPTED = -2147483644
"""Status of a block whose threads waited until a signal handler raised an exception."""

HELPER_FAILED = -2147483640
"""Status of a launch whose kernel failed in a helper thread."""

PYTHON_EXCEPTION = -1
"""Numba's status of a function that has set a Python exception."""

RETURN_NONE = -2
"""Numba's status of a function that returns None."""

ATTEND = "nbrt_attend"
"""Symbol of the function that is called when the stop word is not 0."""

_KEEPS_REGISTERS = platform.machine() in ("x86_64", "AMD64") and sys.platform != "win32"

CALLING_CONVENTION = "preserve_mostcc" if _KEEPS_REGISTERS else "ccc"
"""Calling convention of `ATTEND`; the callee saves general registers where LLVM supports it."""

_LONG = f"i{8 * ctypes.sizeof(ctypes.c_ulong)}"

_DECLARATIONS = (
    f"declare {_LONG} @PyThread_get_thread_ident()",
    "declare i32 @PyGILState_Ensure()",
    "declare i32 @PyErr_CheckSignals()",
    "declare void @PyGILState_Release(i32)",
)

_DEFINITION = f"""\
define internal {CALLING_CONVENTION} i32 @{ATTEND}(ptr %stop) noinline cold {{
entry:
  %word = load atomic i64, ptr %stop monotonic, align 8
  %stops = icmp eq i64 %word, {STOP}
  br i1 %stops, label %stopped, label %asked
stopped:
  ret i32 {STOPPED}
asked:
  %ident = call {_LONG} @PyThread_get_thread_ident()
  %self = {{}}
  %mine = icmp eq i64 %word, %self
  br i1 %mine, label %handle, label %on
on:
  ret i32 0
handle:
  ; Exchanged, so that a STOP that another thread stores meanwhile is kept.
  %pair = cmpxchg ptr %stop, i64 %word, i64 0 monotonic monotonic
  %state = call i32 @PyGILState_Ensure()
  %failed = call i32 @PyErr_CheckSignals()
  call void @PyGILState_Release(i32 %state)
  %fine = icmp eq i32 %failed, 0
  br i1 %fine, label %on, label %interrupted
interrupted:
  ret i32 {INTERRUPTED}
}}
""".replace("{}", f"{'bitcast' if _LONG == 'i64' else 'zext'} {_LONG} %ident to i64")


def attend_module(declared: str) -> str:
    """Return the definition of `ATTEND` and the declarations it needs that are still missing.

    Parameters
    ----------
    declared : str
        Text of the module that the definition is appended to.
    """
    missing = [line for line in _DECLARATIONS if f"@{line.partition('@')[2]}" not in declared]
    return "\n".join([*missing, _DEFINITION])
