"""Ctrl-C while LLVM makes the code of a kernel ends the launch."""

from __future__ import annotations

import signal
from ctypes import string_at
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.cpu.simt.runtime.dispatcher import lost_exceptions_raised
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def signals_in_callbacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the next callback of LLVM receive a signal, as when it comes while LLVM works."""
    left = [signal.SIGINT]

    def receive(*arguments: Any) -> bytes:
        if left:
            signal.raise_signal(left.pop())
        return string_at(*arguments)

    monkeypatch.setattr("llvmlite.binding.executionengine.string_at", receive)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield left
    signal.signal(signal.SIGINT, before)


def _kernel() -> Callable[..., Any]:
    def doubled(x: Any) -> None:
        i = cuda.grid(1)
        x[i] = 2 * i

    return doubled


@pytest.mark.parametrize("check", [False, True])
def test_the_exception_arrives_and_the_next_launch_is_right(
    check: bool, signals_in_callbacks: list[int], tmp_path: Path
) -> None:
    kernel = nbrt.kernel(check=check)(_kernel())
    x = np.zeros(8)
    with nbrt.device("cpu:0"), override(cache_dir=str(tmp_path)):
        with pytest.raises(KeyboardInterrupt):
            kernel[1, 8](x)
        assert not signals_in_callbacks
        kernel[1, 8](x)
    np.testing.assert_array_equal(x, 2 * np.arange(8))


@pytest.mark.parametrize("check", [False, True])
def test_exceptions_of_signal_handlers_are_not_compile_errors(
    check: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HandlerError(Exception):
        pass

    def handle(*_: Any) -> None:
        raise HandlerError

    def interrupted(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("nbrt.backends.cpu.simt.frontend.pipeline.refuse_names", interrupted)
    before = signal.signal(signal.SIGINT, handle)
    try:
        with nbrt.device("cpu:0"), override(cache_dir=""), pytest.raises(HandlerError):
            nbrt.kernel(check=check)(_kernel())[1, 8](np.zeros(8))
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_exceptions_go_to_the_hook_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda given: seen.append(given.exc_type))

    class Fails:
        def __del__(self) -> None:
            raise ValueError

    with lost_exceptions_raised():
        Fails()
    assert seen == [ValueError]
