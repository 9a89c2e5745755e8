"""The message of a crashing process, which names the last kernel launched.

A kernel that writes outside of its arrays crashes the process, at once or at any later time. A
native handler of the crash signals writes one prepared line to stderr, restores the previous
handler and raises the signal again, so that Python's faulthandler or the default action follows. A
launch only stores a reference to its line.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FunctionType

__all__ = ["LAST_LAUNCH", "crash_text", "crash_text_of_graph", "watch_for_crashes"]

LAST_LAUNCH: list[bytes] = [b""]
"""One element: the line of the latest launch."""

_SIGNALS = ("SIGSEGV", "SIGBUS", "SIGABRT")
_SA_SIGINFO, _SA_ONSTACK, _SA_NODEFER = 0x4, 0x08000000, 0x40000000

# The previous handler is restored first, and the signal is not blocked: if the line itself is in
# overwritten memory, the previous handler reports the crash.
_HANDLER = """
target triple = "{triple}"

declare i32 @sigaction(i32, ptr, ptr)
declare i64 @write(i32, ptr, i64)
declare i32 @raise(i32)

define void @nbrt_crash(i32 %signal, ptr %information, ptr %context) {{
  %number = sext i32 %signal to i64
  %offset = mul i64 %number, {size}
  %before = add i64 %offset, {table}
  %action = inttoptr i64 %before to ptr
  %restored = call i32 @sigaction(i32 %signal, ptr %action, ptr null)
  %item = inttoptr i64 {item} to ptr
  %object = load ptr, ptr %item
  %length.at = getelementptr i8, ptr %object, i64 {length}
  %length = load i64, ptr %length.at
  %text = getelementptr i8, ptr %object, i64 {text}
  %written = call i64 @write(i32 2, ptr %text, i64 %length)
  %code.at = getelementptr i8, ptr %information, i64 8
  %code = load i32, ptr %code.at
  %sent = icmp sle i32 %code, 0
  br i1 %sent, label %again, label %end
again:
  %raised = call i32 @raise(i32 %signal)
  br label %end
end:
  ret void
}}
"""


def crash_text(function: FunctionType, *, checked: bool = False) -> bytes:
    """Return the line that names a kernel.

    Parameters
    ----------
    function : function
        The kernel.
    checked : bool, default False
        Whether it is launched in checked mode.
    """
    code = function.__code__
    name = f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"
    more = (
        ", in checked mode, which makes no write outside of an array"
        if checked
        else ". If it wrote outside of an array, the process may crash now or at any later time; "
        "set NBRT_CHECK=1 to see where"
    )
    text = f"nbrt: the last kernel launched was {name}{more}.\n"
    return text.encode(errors="backslashreplace")


def crash_text_of_graph(functions: list[FunctionType]) -> bytes:
    """Return the line that names the kernels of a graph."""
    names = dict.fromkeys(
        f"{function.__name__} ({function.__code__.co_filename}:{function.__code__.co_firstlineno})"
        for function in functions
    )
    text = (
        f"nbrt: the last work was the replay of a graph, with the kernels {', '.join(names)}. If "
        f"one wrote outside of an array, the process may crash now or at any later time; set "
        f"NBRT_CHECK=1 before the capture to see where.\n"
    )
    return text.encode(errors="backslashreplace")


class _Action(ctypes.Structure):
    """``struct sigaction`` of Linux on 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Symbol(ctypes.Structure):
    """``Dl_info``."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


_lock = threading.Lock()
_kept: list[Any] = []
"""Objects that the handler uses, kept for the life of the process."""


def watch_for_crashes() -> None:
    """Install the handler, once for each process.

    Signals that the program or another library handles are left alone.
    """
    with _lock:
        if not _kept and _is_supported():
            _install()


def _is_supported() -> bool:
    """Return whether the layouts that the handler relies on are those of this interpreter."""
    return (
        sys.platform == "linux"
        and os.uname().machine in ("x86_64", "aarch64")
        and os.confstr_names.get("CS_GNU_LIBC_VERSION") is not None
        and sys.implementation.name == "cpython"
        and "t" not in sys.abiflags  # another layout of objects
    )


def _install() -> None:
    import llvmlite.binding as llvm

    libc = ctypes.CDLL(None)
    size = ctypes.sizeof(_Action)
    # Outside of the heap, which kernels overwrite.
    page = mmap.mmap(-1, mmap.PAGESIZE * 4)
    table = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _kept.append(page)
    numbers = [getattr(signal, name) for name in _SIGNALS]
    chosen = [number for number in numbers if _may_take(libc, number, table + number * size)]
    if not chosen:
        return
    head = object.__basicsize__
    item = ctypes.c_void_p.from_address(id(LAST_LAUNCH) + head + ctypes.sizeof(ctypes.c_ssize_t))
    text = _HANDLER.format(
        triple=llvm.get_process_triple(),
        size=size,
        table=table,
        item=item.value,
        length=head,
        text=bytes.__basicsize__ - 1,
    )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    _kept.append(engine)
    action = _Action(
        handler=engine.get_function_address("nbrt_crash"),
        flags=_SA_SIGINFO | _SA_ONSTACK | _SA_NODEFER,
    )
    for number in chosen:
        libc.sigaction(number, ctypes.byref(action), None)


def _may_take(libc: ctypes.CDLL, number: int, address: int) -> bool:
    """Store what a signal does at an address; return whether it is the default or faulthandler."""
    action = _Action.from_address(address)
    if libc.sigaction(number, None, ctypes.byref(action)) != 0:
        return False
    if action.handler is None:
        return True
    if not faulthandler.is_enabled() or callable(signal.getsignal(number)):
        return False
    python = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    return _file_of(libc, action.handler) == _file_of(libc, python)


def _file_of(libc: ctypes.CDLL, address: int | None) -> bytes | None:
    """Return the file of the program or library that a function belongs to."""
    symbol = _Symbol()
    has_file = libc.dladdr(ctypes.c_void_p(address), ctypes.byref(symbol))
    return symbol.file if has_file else None
