"""Threads that take part in launches: they wait and work without the GIL (`shared_launch.ll`).

A thread that sleeps takes 20 to 100 µs to wake, on virtual machines in particular. So a helper
reads its slot for about that time after a launch, and then sleeps.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.block_scheduler import PART_SIZE, SLOT_SIZE, LaunchRecord
from nbrt.backends.cpu.interrupts import STOP
from nbrt.backends.cpu.native_code import (
    PAUSE,
    compiled,
    offsets,
    raise_kernel_error,
    template_names,
)
from nbrt.backends.cpu.simt.stop_codes import HELPER_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SPIN_NS", "NativeLock", "helper_slots", "share_address", "take_error"]

SPIN_NS = 60_000
"""The time that a helper waits awake: about what it takes to wake from a sleep."""

_WAIT_US = 50_000
"""The time after which a caller that waits for helpers looks for signals."""

_MAX_HELPERS = 255

_UNKNOWN = -1
"""In `HelperSlot.cpu`."""

_LINUX_PLACEMENT = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i64 @this.cpu() {
  %cpu = call i32 @sched_getcpu()
  %long = sext i32 %cpu to i64
  ret i64 %long
}

; Let a helper run on all processors of this thread but one. If there is no other, nothing happens:
; the system refuses an empty set.
define internal void @separate(ptr %slot, i64 %cpu) {
  %cpu.at = getelementptr i8, ptr %slot, i64 ${cpu}
  store atomic i64 -1, ptr %cpu.at monotonic, align 8
  %thread.at = getelementptr i8, ptr %slot, i64 ${thread}
  %thread = load i64, ptr %thread.at
  %number = trunc i64 %thread to i32
  %mask = alloca [16 x i64], align 8
  call void @llvm.memset.p0.i64(ptr align 8 %mask, i8 0, i64 128, i1 false)
  %size = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  %is.known = icmp sge i32 %size, 0
  %is.small = icmp ult i64 %cpu, 1024
  %is.right = and i1 %is.known, %is.small
  br i1 %is.right, label %exclude, label %end
exclude:
  %word = lshr i64 %cpu, 6
  %bit = and i64 %cpu, 63
  %one = shl i64 1, %bit
  %others = xor i64 %one, -1
  %word.at = getelementptr i64, ptr %mask, i64 %word
  %before = load i64, ptr %word.at
  %after = and i64 %before, %others
  store i64 %after, ptr %word.at
  %status = call i32 @sched_setaffinity(i32 %number, i64 128, ptr %mask)
  br label %end
end:
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

_NO_PLACEMENT = """
define internal i64 @this.cpu() {
  ret i64 -1
}

define internal void @separate(ptr %slot, i64 %cpu) {
  ret void
}
"""

_allocate = ctypes.pythonapi.PyThread_allocate_lock
_allocate.restype = ctypes.c_void_p
_acquire = ctypes.pythonapi.PyThread_acquire_lock
_acquire.argtypes = [ctypes.c_void_p, ctypes.c_int]

_unused_locks: list[int] = []
"""Not freed: the thread that has released a lock may still be in the call."""


class NativeLock:
    """A lock for native code, which begins held. Any thread may release it.

    Attributes
    ----------
    address : int
        Its ``PyThread_type_lock``.
    """

    def __init__(self) -> None:
        try:
            self.address: int = _unused_locks.pop()
        except IndexError:
            self.address = _allocate()
            if not self.address:
                raise MemoryError from None
            _acquire(self.address, 1)

    # A default, as the end of the interpreter clears the module's names first.
    def __del__(self, unused: list[int] = _unused_locks) -> None:
        if self.address:
            unused.append(self.address)


class HelperSlot(ctypes.Structure):
    """Memory of a helper thread that the threads that offer launches write."""

    _fields_ = (
        ("token", ctypes.c_int64),
        ("wake", ctypes.c_void_p),
        ("offering", ctypes.c_void_p),
        ("helper_error", ctypes.c_void_p),
        ("helper_code", ctypes.c_int64),
        ("spin_ns", ctypes.c_int64),
        ("cpu", ctypes.c_int64),
        ("thread", ctypes.c_int64),
    )  # a cache line for each

    token: int
    """0: idle; 2: at work; 4: asleep; the address of a `LaunchRecord` plus 1: an offer."""
    wake: int
    """Address of the lock that is released to wake the helper."""
    offering: int
    """Address of the `LaunchRecord` whose launch failed here."""
    helper_error: int | None
    """Numba's description of the exception that the kernel raised here."""
    helper_code: int
    """Status of the kernel that failed here."""
    spin_ns: int
    """Nanoseconds that the helper waits awake."""
    cpu: int
    """The processor on which the helper was last; -1: unknown."""
    thread: int
    """The system's identifier of the thread."""


class _Functions(NamedTuple):
    """The functions of `shared_launch.ll`.

    Attributes
    ----------
    help : callable
        Takes the address of a `HelperSlot`; returns if a kernel fails.
    finish : callable
        Takes the address of that `HelperSlot` and its `offering`.
    share : int
        Address of the function that `LaunchRecord.share` describes.
    """

    help: Callable[[int], int]
    finish: Callable[[int, int], None]
    share: int


@functools.cache
def _functions() -> _Functions:
    """Return the native functions, compiled on the first call."""
    names = template_names() | offsets(HelperSlot, LaunchRecord)
    names |= {
        "helper_failed_code": HELPER_FAILED,
        "stop_word": STOP,
        "slot_size": SLOT_SIZE,
        "part_size": PART_SIZE,
        "wait_us": _WAIT_US,
        "pause": PAUSE,
    }
    placement = _LINUX_PLACEMENT if sys.platform == "linux" else _NO_PLACEMENT
    names["placement"] = Template(placement).substitute(names)
    text = (Path(__file__).parent / "shared_launch.ll").read_text(encoding="utf-8")
    find = compiled(Template(text).substitute(names), optimize=False)
    # These functions may return with an exception set, as Python's own do.
    serve = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    finish = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    return _Functions(serve(find("nbrt_help")), finish(find("nbrt_finish")), find("nbrt_share"))


def share_address() -> int:
    """Return the address of the function that shares a launch; see `LaunchRecord.share`."""
    return _functions().share


class _Helpers:
    """The helper threads of a process, started on demand; they live as long as the process."""

    def __init__(self) -> None:
        self.slots = (HelperSlot * _MAX_HELPERS)()
        self.address = ctypes.addressof(self.slots)
        self.count = 0
        self.errors: dict[int, BaseException] = {}
        self._locks: list[NativeLock] = []
        self._lock = threading.Lock()

    def grow(self, count: int) -> None:
        """Start threads, so that there are `count`."""
        with self._lock:
            while self.count < count:
                lock = NativeLock()
                self._locks.append(lock)
                slot = self.slots[self.count]
                slot.wake, slot.spin_ns, slot.cpu = lock.address, SPIN_NS, _UNKNOWN
                name = f"nbrt-helper-{self.count}"
                threading.Thread(target=self._serve, args=(slot,), name=name, daemon=True).start()
                self.count += 1

    def _serve(self, slot: HelperSlot) -> None:
        slot.thread = threading.get_native_id()  # before `help` stores the processor
        native, address = _functions(), ctypes.addressof(slot)
        while True:
            try:
                native.help(address)
                raise_kernel_error(slot.helper_code, slot.helper_error or 0)
            except BaseException as error:  # noqa: BLE001  # raised by the caller of the launch
                self.errors.setdefault(slot.offering, error)
            native.finish(address, slot.offering)


_helpers = _Helpers()
_kept = [_helpers]
"""Those of the processes before a fork too: a replay that goes on in the child has their slots."""


def _begin_process() -> None:
    global _helpers
    _helpers = _Helpers()
    _kept.append(_helpers)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)


def helper_slots(count: int) -> tuple[int, int]:
    """Return the address of the slots of helper threads, and their number: at most `count`."""
    count = min(count, _MAX_HELPERS)
    if count > _helpers.count:
        _helpers.grow(count)
    return _helpers.address, count


def take_error(record: LaunchRecord) -> BaseException | None:
    """Return what the kernel raised in a helper of a launch, once."""
    record.helper_failed = 0
    return _helpers.errors.pop(ctypes.addressof(record), None)
