"""Failures and interrupts while programs for ``numba.cuda`` wait for streams."""

from __future__ import annotations

import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

import nbrt
from nbrt.errors import KernelCheckError
from nbrt.testing import Latch

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(scope="module")
def set_one() -> Any:
    @cuda.jit
    def set_one(x: Any) -> None:
        x[0] = 1

    set_one[1, 1](np.zeros(1))
    return set_one


class _InterruptError(Exception):
    """Raised by a signal handler."""


def test_an_interrupted_wait_leaves_the_work_to_the_next_one(set_one: Any) -> None:
    stream, x, latch = nbrt.Stream("cpu:0"), cuda.to_device(np.zeros(1)), Latch()
    latch.hold(stream)
    set_one[1, 1, stream](x)

    def interrupt(*_: object) -> None:
        raise _InterruptError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(_InterruptError):
            cuda.synchronize()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    opener = threading.Timer(0.05, latch.release)
    opener.start()
    assert x.copy_to_host()[0] == 1
    opener.join()


def test_a_launch_on_the_default_stream_raises_failures_of_others_as_cuda_errors(
    fail: Any, set_one: Any
) -> None:
    x, stream = cuda.to_device(np.ones(1)), cuda.stream()
    for _ in range(3):  # also launches that have been prepared
        fail[1, 1, stream](x)
        with pytest.raises(CudaAPIError, match="outside") as caught:
            set_one[1, 1](x)
        assert isinstance(caught.value.__cause__, KernelCheckError)
    set_one[1, 1](x)


def test_a_debug_kernel_on_a_stream_raises_its_own_exception() -> None:
    @cuda.jit(debug=True, opt=False)
    def fail_debug(x: Any) -> None:
        if cuda.grid(1) == 3:
            raise ValueError("at the third", 8)

    stream, x = cuda.stream(), cuda.device_array(8)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"tid=\[0, 0, 3\].*at the third") as caught:
            fail_debug[1, 8, stream](x)
        assert caught.value.args[1:] == (8,)


def test_a_launch_on_an_unknown_stream_is_an_invalid_handle(set_one: Any) -> None:
    with pytest.raises(CudaAPIError, match="INVALID_HANDLE"):
        set_one[1, 1, cuda.external_stream(12345)](np.zeros(1))


def test_streams_and_events_are_not_pickled() -> None:
    for handle in (cuda.stream(), cuda.event()):
        with pytest.raises(TypeError, match="belongs to one process"):
            pickle.dumps(handle)
