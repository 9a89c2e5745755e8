"""`Signal`: a counter that threads wait for in native code, briefly and without the GIL.

A thread that sleeps takes 20 to 100 µs to wake, on virtual machines in particular, and a thread
that wakes while another one has the interpreter's lock sleeps again. So a thread that expects a
signal soon reads a counter for a time that is as long as a wake, and then sleeps.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SPIN_NS", "Signal"]

SPIN_NS = 60_000
"""The time of waiting before a sleep: about what it takes to wake from one."""

_SETTLE_NS = 1_500
"""The time from a signal to the end of the wait: the sender releases the interpreter's lock."""

_WAIT = """
target triple = "{triple}"

declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() {{
  %time = alloca {{ i64, i64 }}
  %status = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr {{ i64, i64 }}, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %rest.at
  %scaled = mul i64 %seconds, 1000000000
  %all = add i64 %scaled, %rest
  ret i64 %all
}}

define void @nbrt_wait(ptr %word, i64 %seen, i64 %limit, i64 %settle) {{
entry:
  %begin = call i64 @now()
  br label %read
read:
  %value = load atomic i64, ptr %word acquire, align 8
  %is.same = icmp eq i64 %value, %seen
  %time = call i64 @now()
  br i1 %is.same, label %test, label %settling
test:
  %elapsed = sub i64 %time, %begin
  %is.over = icmp sge i64 %elapsed, %limit
  br i1 %is.over, label %end, label %read
settling:
  %later = call i64 @now()
  %since = sub i64 %later, %time
  %is.settled = icmp sge i64 %since, %settle
  br i1 %is.settled, label %end, label %settling
end:
  ret void
}}
"""


class Signal:
    """A counter in memory, which any thread may increase and read.

    Attributes
    ----------
    word : c_int64
        The counter. Increments by several threads at once may be one: nothing but a sleep may
        depend on it.
    """

    __slots__ = ("_address", "_wait", "word")

    def __init__(self) -> None:
        self.word = ctypes.c_int64()
        self._address = ctypes.addressof(self.word)
        self._wait = _native_wait()

    def send(self) -> None:
        """Increase the counter."""
        self.word.value += 1

    def wait(self, seen: int) -> None:
        """Wait while the counter has a value, for `SPIN_NS` at most."""
        if self._wait is not None:
            self._wait(self._address, seen, SPIN_NS, _SETTLE_NS)


_kept: list[Any] = []
"""The engine of the native code."""


@functools.cache
def _native_wait() -> Callable[[int, int, int, int], None] | None:
    """Return the native function, which ctypes calls without the GIL; None: only sleep."""
    if sys.platform not in ("linux", "darwin") or sys.maxsize < 2**32:
        return None  # another layout of the time
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = _WAIT.format(triple=llvm.get_process_triple(), clock=time.CLOCK_MONOTONIC)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    _kept.append(engine)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return kind(engine.get_function_address("nbrt_wait"))
