"""Expressions for views of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from nbrt.backends.graphs import ArrayView
from nbrt.graphs.operations import view
from nbrt.graphs.view_text import base_view, expression


def view_in(memory: Any, array: Any) -> ArrayView:
    """Return an array as a view of the buffer that begins with `memory`."""
    offset = address(array) - address(memory)
    return ArrayView(0, offset, array.shape, array.strides, array.dtype)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def evaluated(base: Any, array: Any) -> tuple[str, Any]:
    text = expression("x", view_in(base, base), view_in(base, array))
    return text, eval(text, {"x": base, "view": view})


def check_same(array: Any, result: Any) -> None:
    assert isinstance(result, np.ndarray)
    assert (result.shape, result.dtype) == (array.shape, array.dtype)
    if array.size:
        assert address(result) == address(array)
        # Strides of axes of one element have no meaning.
        kept = [n for n, size in enumerate(array.shape) if size > 1]
        assert [result.strides[n] for n in kept] == [array.strides[n] for n in kept]


@given(
    stn.arrays(np.float32, stn.array_shapes(max_dims=3, max_side=5)).flatmap(
        lambda x: st.tuples(st.just(x), stn.basic_indices(x.shape))
    )
)
def test_indices_are_found_again(case: tuple[Any, Any]) -> None:
    base, index = case
    indices = index if isinstance(index, tuple) else (index,)
    # An ellipsis: an index of integers only would give a number.
    array = base[indices if Ellipsis in indices else (*indices, ...)]
    check_same(array, evaluated(base, array)[1])


@given(
    stn.arrays(np.float32, stn.array_shapes(max_dims=3, max_side=4)),
    st.data(),
)
def test_flat_parts_and_other_dtypes_are_found_again(base: Any, data: Any) -> None:
    dtype = data.draw(st.sampled_from(["float32", "uint8", "int16", "float64"]))
    flat = base.reshape(-1)
    if flat.nbytes % np.dtype(dtype).itemsize == 0:
        flat = flat.view(dtype)
    start = data.draw(st.integers(0, flat.size - 1))
    stop = data.draw(st.integers(start, flat.size))
    check_same(flat[start:stop], evaluated(base, flat[start:stop])[1])


@pytest.mark.parametrize(
    ("array_of", "text"),
    [
        (lambda x: x, "x"),
        (lambda x: x[1:3], "x[1:3]"),
        (lambda x: x[:, 2], "x[:, 2]"),
        (lambda x: x[::2, 1:5:3], "x[::2, 1::3]"),
        (lambda x: x[::-1], "x[::-1]"),
        (lambda x: x.reshape(-1), "x.reshape(24)"),
        (lambda x: x.reshape(-1)[3:7], "x.reshape(-1)[3:7]"),
        (lambda x: x.view("uint32"), "x.reshape(-1).view('<u4').reshape(4, 6)"),
        (lambda x: x.T, "view(x, (6, 4), '<f4', 0, (4, 24))"),
    ],
)
def test_texts_are_as_a_user_would_write_them(array_of: Any, text: str) -> None:
    base = np.zeros((4, 6), np.float32)
    found, result = evaluated(base, array_of(base))
    assert found == text
    check_same(array_of(base), result)


def test_a_field_of_records_and_a_single_element() -> None:
    base = np.zeros(5, [("a", "f4"), ("b", "i8", (2,))])
    for array in (base["b"], base[2:3], base["b"][3, 1, ...], base):
        check_same(array, evaluated(base, array)[1])


def test_a_view_keeps_its_memory_alive_and_read_only() -> None:
    memory = np.arange(4)
    memory.flags.writeable = False
    part = view(memory, (2,), memory.dtype, 8)
    assert not part.flags.writeable
    del memory
    assert part.tolist() == [1, 2]


def test_the_base_covers_all_views() -> None:
    x = np.zeros((4, 6), np.float32)
    views = [view_in(x, each) for each in (x[1:], x, x.reshape(-1))]
    assert base_view(views) == view_in(x, x)
    assert base_view(views[:1]) is None
    assert base_view([view_in(x, x[:2]), view_in(x, x[2:])]) is None
