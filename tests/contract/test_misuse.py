"""Misuse found by a newcomer: each call is refused whole, or does what its words say."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.launches import increment
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.runtime.commands import Command


class Foreign(np.ndarray):
    """An array type that the compiler takes although it is not NumPy's own."""


@nbrt.kernel
def raise_after_write(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1
        if i == x.size - 1:
            raise TypeError("boom")


@pytest.mark.parametrize("grid", [1, 2])
def test_a_kernel_that_raises_type_error_runs_once(grid: int) -> None:
    x = np.zeros(4).view(Foreign)
    with nbrt.device("cpu:0"), pytest.raises(TypeError, match="boom"):
        raise_after_write[grid, 4](x)
    assert x.tolist() == [1] * 4


def test_kernels_are_copied_and_pickled_by_name(stream: nbrt.Stream) -> None:
    assert copy.copy(increment) is increment
    assert copy.deepcopy([increment])[0] is increment
    assert pickle.loads(pickle.dumps(increment)) is increment
    configured = increment[2, 32, stream, 0]
    for other in (copy.copy(configured), copy.deepcopy(configured)):
        assert (other.grid, other.block, other.stream) == ((2, 1, 1), (32, 1, 1), stream)
    with pytest.raises(ArgumentTypeError, match="Stream"):
        pickle.dumps(configured)
    assert pickle.loads(pickle.dumps(increment[2, 32])).block == (32, 1, 1)


WRONG_KINDS: list[tuple[Callable[[nbrt.Stream], Any], str]] = [
    (lambda stream: stream.wait_stream(None), "nbrt.Stream to wait for, got None"),  # type: ignore[arg-type]
    (lambda stream: stream.wait_stream(nbrt.Event()), "use wait_event"),  # type: ignore[arg-type]
    (lambda stream: stream.wait_event(None), "nbrt.Event to wait for, got None"),  # type: ignore[arg-type]
    (lambda stream: stream.wait_event(stream), "use wait_stream"),  # type: ignore[arg-type]
    (lambda stream: stream.record_event("e"), "nbrt.Event to record, got 'e'"),  # type: ignore[arg-type]
    (lambda _: nbrt.to_host(np.zeros(2), stream=5), "nbrt.Stream, got 5"),  # type: ignore[arg-type]
    (lambda _: nbrt.copy(np.zeros(2), np.zeros(2), stream=5), "nbrt.Stream, got 5"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), WRONG_KINDS)
def test_streams_and_events_are_checked(
    stream: nbrt.Stream, call: Callable[[nbrt.Stream], Any], message: str
) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        call(stream)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, "uint8"), (-1, "uint32"), (2**70, None), (2**70, "int64"), ("abc", "float32")],
)
def test_full_refuses_a_value_that_does_not_fit(
    device: nbrt.Device, value: Any, dtype: str | None
) -> None:
    with pytest.raises(ArgumentError, match="to fill with"):
        nbrt.full(3, value, dtype, device=device)


def test_full_takes_what_fits(device: nbrt.Device) -> None:
    for value, dtype in ((255, "uint8"), (-128, "int8"), (2**64 - 1, "uint64"), (3, ">i4")):
        if device.kind == "cuda" and dtype == ">i4":
            with pytest.raises(ArgumentTypeError, match=r"byte order .* use dtype\('int32'\)"):
                nbrt.full(3, value, dtype, device=device)
            continue
        filled = nbrt.to_host(nbrt.full(3, value, dtype, device=device))
        assert filled.tolist() == [value] * 3
        assert filled.dtype == np.dtype(dtype)


@pytest.mark.parametrize("shape", [(1,) * 65, (2**40, 2**40, 0)])
def test_shapes_that_no_array_can_have(shape: tuple[int, ...]) -> None:
    before = nbrt.memory_allocated("cpu:0")
    with pytest.raises(ArgumentError, match="shape that an array can have"):
        nbrt.empty(shape, device="cpu:0")
    assert nbrt.memory_allocated("cpu:0") == before


@pytest.mark.parametrize("shape", [True, (2, True), (2, "3"), 2.0])
def test_shapes_are_of_ints(shape: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a shape of ints"):
        nbrt.empty(shape, device="cpu:0")


def test_refusal_by_a_hook_is_no_wrong_shape() -> None:
    class Refusing:
        def before(self, stream: nbrt.Stream, command: Command) -> None:
            raise ValueError("not now")

        def after(self, stream: nbrt.Stream, command: Command, result: object) -> None: ...

    before = nbrt.memory_allocated("cpu:0")
    with install_hook(Refusing(), ("allocate",)), pytest.raises(ValueError, match=r"^not now$"):
        nbrt.empty(10, device="cpu:0")
    assert nbrt.memory_allocated("cpu:0") == before


def test_the_next_step_for_a_wrong_out_is_one_that_works() -> None:
    generator = nbrt.Generator(1, device="cpu:0")
    with pytest.raises(ArgumentTypeError, match="pass dtype='float32' too"):
        generator.random(out=np.zeros(3, np.float32))
    for dtype in (">f8", "int32"):
        with pytest.raises(ArgumentTypeError, match="make it with dtype=float64"):
            generator.random(out=np.zeros(3, dtype))


def test_integers_of_another_byte_order_are_refused_by_the_generator() -> None:
    generator = nbrt.Generator(1, device="cpu:0")
    for dtype in (">i4", ">u8"):
        with pytest.raises(ArgumentError, match="byte order"):
            generator.integers(0, 5, 3, dtype=dtype)
    assert generator.state.offset == 0
