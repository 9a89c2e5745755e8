"""Waits of a launch without progress, for another stream or the host to change memory."""

from __future__ import annotations

import ctypes
import functools
import threading
import time

from nbrt.config import settings

__all__ = ["wait", "wait_address"]

_CONTINUE, _DEADLOCKED, _INTERRUPTED = range(3)
_YIELDS = 100
"""Attempts without sleep between them."""

_SLEEP = 200e-6
_local = threading.local()


def wait(attempt: int) -> bool:
    """Wait a little for memory to change.

    Parameters
    ----------
    attempt : int
        The number of consecutive attempts without progress of the launch, from 1 on; 0 if other OS
        threads made progress.

    Returns
    -------
    bool
        False once this has lasted for the setting ``deadlock_timeout``.
    """
    if attempt == 1:
        _local.begin = time.monotonic()
    if attempt and time.monotonic() - _local.begin >= settings().deadlock_timeout:
        return False
    time.sleep(0 if attempt < _YIELDS else _SLEEP)
    return True


def _wait_natively(attempt: int) -> int:
    try:
        return _CONTINUE if wait(attempt) else _DEADLOCKED
    except BaseException:  # noqa: BLE001  # no exception may cross native code
        return _INTERRUPTED  # Ctrl-C: native code raises it again


_callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(_wait_natively)


@functools.cache
def wait_address() -> int:
    """Return the address of `wait` as a function ``i64 (i64)`` that native code calls.

    It returns 0 to continue, 1 to end the launch as deadlocked, 2 to end it after an interrupt.
    """
    address = ctypes.cast(_callback, ctypes.c_void_p).value
    assert address is not None
    return address
