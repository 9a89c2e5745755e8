"""Exceptions of kernels with ``debug=True``, in the form that numba-cuda documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt

pytestmark = pytest.mark.usefixtures("installed")


class RefusedError(Exception):
    """An exception of the program."""


@cuda.jit(device=True)
def checked(value: Any) -> Any:
    if value < 0:
        raise RefusedError("negative", 2)
    return value


@cuda.jit(debug=True, opt=False)
def kernel(x: Any) -> None:
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[i, j] = 1 / checked(x[i, j])


@pytest.mark.parametrize("on_stream", [False, True])
def test_the_exception_names_place_thread_and_block(on_stream: bool) -> None:
    x = np.ones((4, 6))
    x[2, 5] = -1
    stream = cuda.stream() if on_stream else 0
    with pytest.raises(RefusedError) as raised:
        kernel[(2, 2), (2, 3), stream](x)
    message, extra = raised.value.args
    line = checked.py_func.__code__.co_firstlineno + 3
    place = f"In function 'checked', file {__file__}, line {line}, "
    assert message == f"{place}tid=[0, 2, 0] ctaid=[0, 1, 1]: negative"
    assert extra == 2


def test_a_division_by_zero_raises_with_debug_only() -> None:
    x = np.zeros((1, 1))
    with pytest.raises(ZeroDivisionError, match=r"tid=\[0, 0, 0\] ctaid=\[0, 0, 0\]"):
        kernel[1, 1](x)
    assert x[0, 0] == 0
    with np.errstate(divide="ignore"):
        cuda.jit(kernel.py_func)[1, 1](x)
    assert np.isinf(x[0, 0])


def test_without_an_exception_the_results_are_those_of_numpy() -> None:
    x = np.arange(1.0, 13.0).reshape(3, 4)
    expected = 1 / x
    kernel[(2, 2), (2, 2)](x)
    np.testing.assert_array_equal(x, expected)


def test_kernels_of_functions_report_exceptions_with_fastmath_too() -> None:
    def divide(x: Any) -> None:
        if x[0] == 0:
            raise ValueError("zero")

    for fastmath in (None, True):
        with nbrt.device("cpu:0"), pytest.raises(ValueError, match="zero"):
            nbrt.kernel(divide, fastmath=fastmath)[1, 1](np.zeros(1))
