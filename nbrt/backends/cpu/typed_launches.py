"""Launches of a few hundred nanoseconds, without looking up the types of their arguments.

Numba's dispatcher looks up the code for the types of the arguments at each call, which takes longer
than a draw of a few numbers. A caller that has compared the types itself calls the code directly.
"""

from __future__ import annotations

import ctypes
import functools
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt import config
from nbrt.backends.cpu.crash import LAST_LAUNCH
from nbrt.backends.cpu.interrupts import main_runner
from nbrt.backends.synchronous import SynchronousQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.block_scheduler import LaunchRecord
    from nbrt.backends.queue import Queue

__all__ = ["typed_launch"]


def typed_launch(
    entry_point: Callable[..., object],
    record: LaunchRecord,
    crash_text: bytes,
    rest: tuple[Any, ...],
) -> Callable[..., bool]:
    """Return a function of (queue, first, second) that launches a plan of one block.

    It launches on the default stream in the main thread, as `CpuPlan.launch` does; elsewhere it
    does nothing and returns False. Python's numbers may stand for those of NumPy, because the code
    converts numbers to its types. Arrays must be of its types.

    Parameters
    ----------
    entry_point : callable
        The code for the types, under Numba's dispatcher.
    record : LaunchRecord
        The record of the plan's launches in the main thread.
    crash_text : bytes
        The line that names the kernel if the process crashes.
    rest : tuple
        The arguments after the second one.
    """
    native = functools.partial(entry_point, ctypes.addressof(record))
    # Python's numbers are converted faster, and have the same values.
    last = tuple(value.item() if isinstance(value, np.generic) else value for value in rest)

    def launch(queue: Queue, first: Any, second: Any) -> bool:
        if (
            type(queue) is not SynchronousQueue
            or get_ident() != main_runner.ident
            or config.interprets
        ):
            return False
        # The steps of `CpuPlan.launch`, without its calls.
        with queue.lock:
            LAST_LAUNCH[0] = crash_text
            before, main_runner.record = main_runner.record, record
            if not main_runner.is_watched:
                main_runner.watch()
            try:
                native(first, second, *last)
            except Exception as error:
                record.note(error)
                raise
            finally:
                main_runner.record = before
        return True

    return launch
