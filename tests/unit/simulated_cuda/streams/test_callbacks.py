"""Host functions and callbacks of streams of the simulated driver."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from cuda.bindings import driver

from helpers.driver_calls import call, host_function, pointer, status

Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def test_host_function_gets_its_argument_in_another_thread(new_stream: Any, schedule: str) -> None:
    calls = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    function = kind(lambda data: calls.append((data, threading.get_ident())))
    stream = new_stream()
    call(driver.cuLaunchHostFunc(stream, pointer(function), 1234))
    call(driver.cuStreamSynchronize(stream))
    assert calls[0][0] == 1234
    assert calls[0][1] != threading.get_ident()


def test_callback_gets_stream_and_status(new_stream: Any) -> None:
    calls = []
    function = Callback(lambda stream, status, data: calls.append((stream, status, data)))
    address = ctypes.cast(function, ctypes.c_void_p).value
    stream = new_stream()
    call(driver.cuStreamAddCallback(stream, driver.CUstreamCallback(address), 7, 0))
    call(driver.cuStreamSynchronize(stream))
    assert calls == [(int(stream), 0, 7)]
    result = driver.cuStreamAddCallback(stream, driver.CUstreamCallback(address), 7, 1)
    assert status(result) == "INVALID_VALUE"


def test_calls_are_not_permitted_in_host_functions(new_stream: Any) -> None:
    stream = new_stream()
    statuses = []

    def run() -> None:
        statuses.append(status(driver.cuStreamQuery(stream)))
        statuses.append(status(driver.cuEventCreate(0)))
        statuses.append(status(driver.cuDriverGetVersion()))

    function = host_function(run)
    call(driver.cuLaunchHostFunc(stream, pointer(function), 0))
    call(driver.cuStreamSynchronize(stream))
    assert statuses == ["NOT_PERMITTED", "NOT_PERMITTED", "SUCCESS"]
