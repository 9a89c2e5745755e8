"""Threads that take part in the launches of replays: they sleep and work without the GIL."""

from __future__ import annotations

import ctypes
import os
import threading

from nbrt.backends.cpu.graphs.layout import HelperSlot, ThreadState
from nbrt.backends.cpu.graphs.native import raise_kernel_error, runners

__all__ = ["NativeLock", "helper_slots", "take_error"]

_MAX_HELPERS = 255

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
                self.slots[self.count].wake = lock.address
                name, slot = f"nbrt-graph-{self.count}", self.slots[self.count]
                threading.Thread(target=self._serve, args=(slot,), name=name, daemon=True).start()
                self.count += 1

    def _serve(self, slot: HelperSlot) -> None:
        native, address = runners(), ctypes.addressof(slot)
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


def take_error(state: ThreadState) -> BaseException | None:
    """Return what the kernel raised in a helper of a thread, once."""
    state.helper_failed = 0
    return _helpers.errors.pop(ctypes.addressof(state), None)
