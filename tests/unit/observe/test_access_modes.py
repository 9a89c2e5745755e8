"""Access modes from the source of a kernel, against its accesses when it runs."""

from __future__ import annotations

import copy
import gc
import math
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.sample_backend import SampleProgram
from nbrt.observe.races.access_modes import argument_access_modes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 4


class Inner:
    """A device function that runs in Python too."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.py_func = function

    def __call__(self, *args: object) -> object:
        return self.py_func(*args)


@Inner
def element(x, i):
    return x[i]


@Inner
def same(x):
    return x


@Inner
def put(x, i, value):
    x[i] = value


@Inner
def put_below(x, i):
    if i > 0:
        put_below(x, i - 1)
    x[i] = -1.0


@Inner
def total(x, count):
    if count == 0:
        return 0.0
    return x[count - 1] + total(x, count - 1)


def unknown(x):
    x[0] = 7.0


def scale(out, x, factor):
    i = cuda.grid(1)
    if i < x.size and i < len(out):
        value = x[i]
        value *= factor
        out[i] = value


def swap(a, b):
    i = cuda.grid(1)
    a[i], b[i] = b[i], a[i]


def exchange_names(a, b):
    for _ in range(2):
        a, b = b, a
    a[0] = 9.0


def exchange_names_late(a, b, c):
    for k in range(3):
        if k == 2:
            a[0] = 9.0
        a, b, c = b, c, a


def rows(out, x):
    i = cuda.grid(1)
    row = x[i]
    acc = 0.0
    for k in range(row.shape[0]):
        acc += row[k]
    out[i] = acc


def rows_in_place(x, y):
    i = cuda.grid(1)
    row = x[i]
    row += y[i]


def columns(x, y):
    i = cuda.grid(1)
    column = x[:, i]
    column[0] += y[0, i]


def transposed(x, y):
    view = x.T
    view[0, 1] = y.T[1, 0]


def through_functions(out, x):
    i = cuda.grid(1)
    value = element(x, i)
    value += element(same(x), i)
    put(out, i, value)


def through_a_view(out, x):
    same(out)[cuda.grid(1)] = x[0]


def recursive(x, y):
    put_below(x, len(y) - 1)


def recursive_read(x, out):
    out[0] = total(x, 3)


def of_tuples(pair, other):
    first, second = pair
    first[0] = second[1] + other[0]


def tuple_read(pair, out):
    out[0] = pair[0][1] + pair[1][2]


def starred(out, *xs):
    out[0] = xs[0][0] + xs[1][0]


def starred_write(x, *outs):
    outs[1][0] = x[0]


def either(a, b, c):
    chosen = a if c[0] > 0 else b
    chosen[0] = 5.0


def walrus(a, b):
    if (n := len(b)) and (first := a)[0] >= 0:
        first[n - 1] = 3.0


def in_a_loop(x, y):
    for row in x:
        row[0] = y[0, 0]


def fields(points, out):
    point = points[0]
    point.x = out[0]


def method(x, y):
    x.fill(y[0])


def given_away(x, y):
    unknown(x)


def nested(x, y):
    def inner(i):
        x[i] = y[i]

    inner(0)


def in_try(x, y):
    try:
        view = x
    finally:
        pass
    view[0] = y[0]


def histogram(bins, x):
    i = cuda.grid(1)
    cuda.atomic.add(bins, int(x[i]), 1.0)


def histogram_and_more(bins, x):
    cuda.atomic.add(bins, int(x[0]), 1.0)
    bins[0] = 2.0


def without_dimensions(x, y):
    x[()] = y[0]


def sub_array(x, y):
    x[0]["row"][1] = y[0]


def sub_array_by_name(x, y):
    row = x[0]["row"]
    row[1] = y[0]


def inner_record(x, y):
    x[0]["in"]["p"] = y[0]


def inner_record_by_name(x, y):
    inner = x[0]["in"]
    inner["p"] = y[0]


def new_axis(x, y):
    x[np.newaxis][0, 0] = y[0]


def new_axis_by_name(x, y):
    axis = None
    row = x[axis][0]
    row[0] = y[0]


def new_axis_sometimes(x, y):
    i = 0
    for _ in range(2):
        view = x[i]
        i = np.newaxis
    view[0, 1] = y[0]


def slice_by_name(x, y):
    part = slice(0, 3)
    view = x[part]
    view[0] = y[0]


def slice_call(x, y):
    x[slice(0, 3)][0] = y[0]


@Inner
def first_three():
    return slice(0, 3)


def slice_of_a_function(x, y):
    view = x[first_three()]
    view[0] = y[0]


def slice_for_a_function(x, y):
    view = element(x, slice(0, 3))
    view[0] = y[0]


def slice_in_try(x, y):
    try:
        part = slice(0, 3)
    finally:
        pass
    view = x[part]
    view[0] = y[0]


def updated_and_read(x, y):
    y[0] = x[1] + 1.0
    cuda.atomic.add(x, 0, 1.0)


def updated_and_read_by_a_function(x, y):
    cuda.atomic.add(x, 0, 1.0)
    y[0] = element(x, 0)


def updated_and_measured(x, y):
    y[0] = x.size + len(x) + same(x).ndim
    cuda.atomic.add(x, 0, 1.0)


@Inner
def clamped(i, n):
    return min(max(i, 0), n - 1)


def neighbours(out, x):
    i = cuda.grid(1)
    value = x[clamped(i - 1, x.size)]
    value += x[clamped(i + 1, len(x))]
    out[i] = value


def gathered(out, x, columns, starts):
    i = cuda.grid(1)
    total = 0.0
    for k in range(starts[i], starts[i + 1]):
        value = x[columns[k]]
        value *= 2.0
        total += value
    out[i] = total


def in_strides(out, x, step):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    while i < x.size:
        value = x[i // 1]
        value += N
        out[int(i)] = value
        i += step


def of_a_grid(out, x):
    i, _ = place = (cuda.grid(1), 0)
    row, column = x.shape
    value = x[i % row, -1]
    value += x[np.int64(column - 1), math.floor(0.5)]
    out[place] = value + x[place]


def one() -> np.ndarray:
    return np.arange(1.0, N + 1)


def two() -> np.ndarray:
    return np.arange(1.0, N * N + 1).reshape(N, N)


def records() -> np.ndarray:
    return np.zeros(N, [("x", "f8")]).view(np.recarray)


def rows_in_records() -> np.ndarray:
    return np.zeros(N, [("row", "f8", (3,)), ("x", "f8")])


def records_in_records() -> np.ndarray:
    return np.zeros(N, [("in", [("p", "f8"), ("q", "f8")]), ("x", "f8")])


CASES: list[tuple[Callable[..., object], list[Any], list[str]]] = [
    (scale, [one(), one(), 3.0], ["writes", "reads", "reads"]),
    (swap, [one(), one() + 1], ["writes", "writes"]),
    (exchange_names, [one(), one()], ["writes", "writes"]),
    (exchange_names_late, [one(), one(), one()], ["writes", "writes", "writes"]),
    (rows, [one(), two()], ["writes", "reads"]),
    (rows_in_place, [two(), two()], ["writes", "reads"]),
    (columns, [two(), two()], ["writes", "reads"]),
    (transposed, [two(), two() + 1], ["writes", "reads"]),
    (through_functions, [one(), one()], ["writes", "reads"]),
    (through_a_view, [one(), one() + 1], ["writes", "reads"]),
    (recursive, [one(), one()], ["writes", "reads"]),
    (recursive_read, [one(), one()], ["uses", "writes"]),
    (of_tuples, [(one(), one()), one()], ["writes", "reads"]),
    (tuple_read, [(one(), one()), one()], ["reads", "writes"]),
    (starred, [one(), one(), one()], ["writes", "reads", "reads"]),
    (starred_write, [one() + 1, one(), one()], ["reads", "writes", "writes"]),
    (either, [one(), one(), one()], ["writes", "writes", "reads"]),
    (walrus, [one(), one()], ["writes", "reads"]),
    (in_a_loop, [two(), two() + 1], ["writes", "reads"]),
    (fields, [records(), one()], ["writes", "reads"]),
    (method, [one(), one()], ["uses", "reads"]),
    (given_away, [one(), one()], ["uses", "reads"]),
    (nested, [one(), one() + 1], ["uses", "uses"]),
    (in_try, [one(), one() + 1], ["uses", "reads"]),
    (histogram, [np.zeros(N + 1), one()], ["updates", "reads"]),
    (histogram_and_more, [np.zeros(N + 1), one()], ["writes", "reads"]),
    (without_dimensions, [np.zeros(()), one()], ["writes", "reads"]),
    (sub_array, [rows_in_records(), one()], ["writes", "reads"]),
    (sub_array_by_name, [rows_in_records(), one()], ["writes", "reads"]),
    (inner_record, [records_in_records(), one()], ["writes", "reads"]),
    (inner_record_by_name, [records_in_records(), one()], ["writes", "reads"]),
    (new_axis, [one() + 1, one()], ["writes", "reads"]),
    (new_axis_by_name, [one() + 1, one()], ["writes", "reads"]),
    (new_axis_sometimes, [one() + 1, one()], ["writes", "reads"]),
    (slice_by_name, [one() + 1, one()], ["writes", "reads"]),
    (slice_call, [one() + 1, one()], ["writes", "reads"]),
    (slice_of_a_function, [one() + 1, one()], ["writes", "reads"]),
    (slice_for_a_function, [one() + 1, one()], ["writes", "reads"]),
    (slice_in_try, [one() + 1, one()], ["writes", "reads"]),
    (updated_and_read, [one(), one()], ["writes", "writes"]),
    (updated_and_read_by_a_function, [one(), one()], ["writes", "writes"]),
    (updated_and_measured, [one(), one()], ["updates", "writes"]),
    (neighbours, [one(), one()], ["writes", "reads"]),
    (gathered, [one(), one(), np.arange(N), np.arange(N + 1)], ["writes", *["reads"] * 3]),
    (in_strides, [one(), one(), N], ["writes", "reads", "reads"]),
    (of_a_grid, [two(), two()], ["writes", "reads"]),
]


def add(array: np.ndarray, place: int, value: float) -> None:
    array[place] += value


def arrays_in(argument: Any) -> list[np.ndarray]:
    if isinstance(argument, tuple):
        return [array for each in argument for array in arrays_in(each)]
    return [argument] if isinstance(argument, np.ndarray) else []


@pytest.mark.parametrize(("kernel", "arguments", "modes"), CASES)
def test_what_a_kernel_does(
    kernel: Callable[..., object], arguments: list[Any], modes: list[str]
) -> None:
    assert argument_access_modes(kernel, arguments) == modes
    assert argument_access_modes(nbrt.kernel(kernel), arguments) == modes
    before = arrays_in(tuple(arguments))
    arguments = copy.deepcopy(arguments)
    for mode, argument in zip(modes, arguments, strict=True):
        for array in arrays_in(argument):
            array.flags.writeable = mode != "reads"  # NumPy raises where one is written after all
    program = SampleProgram(kernel)
    program.cuda.atomic = types.SimpleNamespace(add=add)  # type: ignore[attr-defined]
    program.plan(0, (1, 1, 1), (N, 1, 1), 0).run(*arguments)
    after = arrays_in(tuple(arguments))
    assert any(np.any(old != new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("arguments", [[], [one(), one(), 1.0, 2.0], [one()] * 3 + [one()]])
def test_a_wrong_number_of_arguments(arguments: list[Any]) -> None:
    assert argument_access_modes(scale, arguments) == ["uses"] * len(arguments)


@pytest.mark.parametrize("kernel", [None, len, np.add, Inner(len)])
def test_what_is_no_python_function(kernel: object) -> None:
    assert argument_access_modes(kernel, [one(), 1.0]) == ["uses"] * 2


def test_arrays_of_other_libraries() -> None:
    class Array:
        """An array that does not tell its dimensions."""

    # `value *= factor` may be done to a row of it, in place.
    assert argument_access_modes(scale, [Array(), Array(), 3.0]) == ["writes", "writes", "reads"]
    assert argument_access_modes(rows, [Array(), Array()]) == ["writes", "reads"]


SOURCE = """
from numba import cuda

def make(limit):
    @cuda.jit
    def copy(x, y):
        if len(x) > limit:
            x[0] = y[0]
    return copy.py_func
"""


def compiled(path: Path, source: str) -> Any:
    path.write_text(source)
    namespace: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), namespace)
    return namespace["make"](1)


def test_the_source_must_be_what_was_compiled(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    first, second = compiled(path, SOURCE), compiled(path, SOURCE)
    assert argument_access_modes(first, [one(), one()]) == ["writes", "reads"]
    path.write_text(SOURCE.replace("x[0] = y[0]", "y[0] = x[0]"))
    assert argument_access_modes(second, [one(), one()]) == ["uses", "uses"]
    path.write_text(SOURCE.replace("copy(x", "copy x"))
    assert argument_access_modes(compiled_again(second), [one(), one()]) == ["uses", "uses"]
    path.unlink()
    assert argument_access_modes(compiled_again(second), [one(), one()]) == ["uses", "uses"]


def compiled_again(function: types.FunctionType) -> types.FunctionType:
    """Return a function of the same code, of which nothing is known yet."""
    return types.FunctionType(function.__code__, function.__globals__, closure=function.__closure__)


def test_nothing_is_kept_alive() -> None:
    def kernel(x):
        put(x, 0, 1.0)

    assert argument_access_modes(kernel, [one()]) == ["writes"]
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None
