"""Kernels that run until a flag is set, and signals that are sent while one of them runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

import nbrt

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = 3_000_000_000_000
"""Turns of a loop that would take an hour at least."""


@nbrt.kernel
def endless(out: Any, seen: Any) -> None:
    """Run until ``seen[1]`` is not 0."""
    i = cuda.grid(1)
    if i == 0:
        seen[0] = 1
    while seen[1] == 0:
        out[i] -= 1.0  # may be seen[1], for all that the compiler knows: it reads that again
    out[i] = 7.0


@nbrt.kernel
def counted(out: Any, seen: Any, turns: Any) -> None:
    """Add up in a loop whose turns are known when it begins."""
    i = cuda.grid(1)
    seen[0] = 1
    total = 0.0
    for turn in range(turns):
        total += turn * out[i]
    out[i] = total


@nbrt.kernel
def integers(out: Any, seen: Any, turns: Any) -> None:
    """Add up integers, in vectors."""
    i = cuda.grid(1)
    seen[0] = 1
    for _ in range(turns):
        for k in range(out.shape[0]):
            out[k] += i + k


@nbrt.kernel
def diverging(out: Any, seen: Any, turns: Any) -> None:
    """Leave a loop at different times: lanes under masks."""
    i = cuda.grid(1)
    seen[0] = 1
    value, turn = out[i], 0
    while value < 4.0 and turn < turns + i:
        value = value * value * 0.5
        turn += 1
    out[i] = turn


@nbrt.kernel
def meeting(out: Any, seen: Any, turns: Any) -> None:
    """Wait at barriers in a loop: lanes."""
    shared = cuda.shared.array(64, "float64")
    t = cuda.threadIdx.x
    seen[0] = 1
    for _ in range(turns):
        shared[t] = out[t]
        cuda.syncthreads()
        out[t] = shared[63 - t] + 1.0
        cuda.syncthreads()


@nbrt.kernel
def parted(out: Any, seen: Any, turns: Any) -> None:
    """Wait at barriers in both arms of an ``if``: coroutines."""
    t = cuda.threadIdx.x
    seen[0] = 1
    for _ in range(turns):
        if t % 2:
            cuda.syncthreads()
        else:
            cuda.syncthreads()
        out[t] += 1.0


@nbrt.kernel
def alone(out: Any, seen: Any, turns: Any) -> None:
    """Have a long loop without a barrier in a coroutine."""
    t = cuda.threadIdx.x
    seen[0] = 1
    total = 0.0
    for turn in range(turns):
        total += turn * out[t]
    if t % 2:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    out[t] = total


@nbrt.kernel
def meeting_grid(out: Any, seen: Any, turns: Any) -> None:
    """Wait for the whole grid in a loop."""
    i = cuda.grid(1)
    seen[0] = 1
    grid = cuda.cg.this_grid()
    for _ in range(turns):
        grid.sync()
        out[i] += 1.0


def send_when(seen: Any, number: int = signal.SIGINT) -> None:
    """Send this process a signal once ``seen[0]`` is set."""

    def send() -> None:
        while not seen[0]:
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def wait_for(seen: Any) -> None:
    """Wait until a kernel has set ``seen[0]``."""
    while not seen[0]:
        time.sleep(0.001)


def is_interrupted(launch: Callable[[], object], seen: Any) -> bool:
    """Send an interrupt once a launch has begun; tell whether it ended the launch."""
    seen[:] = 0
    send_when(seen)
    try:
        launch()
    except KeyboardInterrupt:
        return True
    return False


def flags() -> Any:
    """Return two int64 on the host: the kernel sets the first, the second tells it to end."""
    return np.zeros(2, np.int64)
