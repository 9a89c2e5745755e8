"""Compile errors that an argument causes name it, what the kernel expects, and the next step."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable


def refusal(kernel: Callable[..., None], *arguments: Any) -> str:
    """Return the message of a launch that does not compile, without the file."""
    with nbrt.device("cpu:0"), pytest.raises(CompileError) as caught:
        nbrt.kernel(kernel)[1, 4](*arguments)
    message = str(caught.value)
    assert message.startswith(f"{__file__}:")
    assert f"in kernel {kernel.__qualname__}: " in message
    return message


@cuda.jit(device=True)
def incremented(x: Any, i: Any) -> Any:
    return x[i] + 1


def copies(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = x[i] + 1


def sums(x: Any, y: Any) -> None:
    i = cuda.threadIdx.x
    total = 0.0
    while i < x.size:
        total += x[i]
        i += cuda.blockDim.x
    y[cuda.threadIdx.x] = total


def copies_pairs(x: Any, y: Any) -> None:
    i, j = cuda.grid(2)
    y[i, j] = x[i, j]


def copies_first_column(x: Any, y: Any) -> None:
    for i in range(y.shape[0]):
        y[i] = x[i, 0]


def calls(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    y[i] = incremented(x, i)


def counts(x: Any, y: Any) -> None:
    cuda.atomic.add(y, x[cuda.grid(1)], 1)


def stores(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    cuda.stwt(y, i, x[i])


def collects(x: Any, *ys: Any) -> None:
    i = cuda.grid(1)
    ys[0][i] = x[i]


def read_only(count: int, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    array = np.zeros(count, dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("declare", [cuda.shared.array, cuda.local.array])
@pytest.mark.parametrize("name", ["float128", "nonsense"])
def test_unknown_data_types_of_declared_arrays(declare: Any, name: str) -> None:
    def shared(x: Any) -> None:
        x[0] = cuda.shared.array(4, name)[0]

    def local(x: Any) -> None:
        x[0] = cuda.local.array(4, dtype=name)[0]

    kernel = shared if declare is cuda.shared.array else local
    message = refusal(kernel, np.zeros(4))
    called = "cuda.shared.array" if kernel is shared else "cuda.local.array"
    assert f"argument 'dtype' (number 2) of {called}: expected a data type" in message
    assert f"got {name!r}; pass one such as np.float32" in message


def test_data_types_that_only_numpy_has() -> None:
    def kernel(x: Any) -> None:
        x[0] = cuda.shared.array(4, np.longdouble)[0]

    message = refusal(kernel, np.zeros(4))
    assert "expected a data type that kernels have, got float128; use one such as" in message


def test_a_shape_that_is_no_constant_is_still_named() -> None:
    def kernel(x: Any) -> None:
        x[0] = cuda.shared.array(x.shape[0], "float32")[0]

    assert "shape of cuda.shared.array must consist of integers" in refusal(kernel, np.zeros(4))


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (copies, (4,)),
        (copies, (4, 4)),  # a sum of rows, which is a new array
        (sums, (4,)),
    ],
)
def test_an_array_with_more_dimensions_than_indices(
    kernel: Callable[..., None], shape: tuple[int, ...]
) -> None:
    message = refusal(kernel, np.zeros((4, 4)), np.zeros(shape))
    assert "argument 'x' (number 1): expected an array with 1 dimension, " in message
    assert "got an array of float64 with 2 dimensions; pass another view of it" in message
    assert "or give it 2 indices" in message


@pytest.mark.parametrize(
    ("kernel", "arguments", "subject"),
    [
        (copies_pairs, (np.zeros(4), np.zeros((4, 4))), "argument 'x' (number 1)"),
        (copies_pairs, (np.zeros((4, 4)), np.zeros(4)), "argument 'y' (number 2)"),
        (copies_first_column, (np.zeros(4), np.zeros(4)), "argument 'x' (number 1)"),
    ],
)
def test_an_array_with_fewer_dimensions_than_indices(
    kernel: Callable[..., None], arguments: Any, subject: str
) -> None:
    message = refusal(kernel, *arguments)
    assert f"{subject}: expected an array with 2 dimensions, " in message
    assert "got an array of float64 with 1 dimension; pass another view" in message


def test_rows_of_an_array_with_more_dimensions_are_no_fault() -> None:
    def fills(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        x[i] = y[i]

    x, y = np.zeros((4, 3)), np.arange(4.0)
    with nbrt.device("cpu:0"):
        nbrt.kernel(fills)[1, 4](x, y)
        nbrt.synchronize()
    np.testing.assert_array_equal(x, np.repeat(y, 3).reshape(4, 3))


def test_other_errors_of_a_line_with_such_an_array_do_not_name_it() -> None:
    def kernel(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        x[i] = y.nothing

    message = refusal(kernel, np.zeros((4, 3)), np.zeros(3))
    assert "argument 'x'" not in message
    assert "Unknown attribute 'nothing'" in message


@pytest.mark.parametrize("kernel", [copies, stores])
def test_a_read_only_array_that_is_written(kernel: Callable[..., None]) -> None:
    message = refusal(kernel, np.zeros(4), read_only(4))
    assert "argument 'y' (number 2): expected an array that can be written, as line" in message
    assert "got a read-only array; pass y.copy()" in message


def test_an_atomic_update_of_a_read_only_array() -> None:
    """It compiled before, and a write to a mapped file killed the process."""
    y = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ), np.int32)
    message = refusal(counts, np.zeros(4, np.int64), y)
    assert "argument 'y' (number 2): expected an array that can be written, as line" in message


def test_a_read_only_array_that_is_read_is_no_fault() -> None:
    y = np.zeros(4)
    with nbrt.device("cpu:0"):
        nbrt.kernel(copies)[1, 4](read_only(4), y)
        nbrt.synchronize()
    np.testing.assert_array_equal(y, np.ones(4))


@pytest.mark.parametrize(
    ("kernel", "arguments", "subject"),
    [
        (copies, (None, np.zeros(4)), "argument 'x' (number 1)"),
        (copies, (np.zeros(4), None), "argument 'y' (number 2)"),
        (calls, (None, np.zeros(4)), "argument 'x' (number 1)"),
        (sums, (None, np.zeros(4)), "argument 'x' (number 1)"),
        (collects, (None, np.zeros(4)), "argument 'x' (number 1)"),
    ],
)
def test_none_that_is_used(kernel: Callable[..., None], arguments: Any, subject: str) -> None:
    message = refusal(kernel, *arguments)
    assert f"{subject}: expected an array or a number, got None; pass one, or test" in message


def test_none_that_is_only_compared_is_no_fault() -> None:
    def optional(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        if x is None:
            y[i] = 7
        else:
            y[i] = x[i]

    y = np.zeros(4)
    with nbrt.device("cpu:0"):
        nbrt.kernel(optional)[1, 4](None, y)
        nbrt.synchronize()
    np.testing.assert_array_equal(y, np.full(4, 7.0))


def test_a_missing_element_of_variadic_arguments_is_not_blamed_on_another_one() -> None:
    message = refusal(collects, np.zeros(4), None)
    assert "(number " not in message
    assert "setitem(none" in message
