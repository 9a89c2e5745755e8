"""Launching kernels: configurations, arguments, streams, errors."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.launches import increment
from nbrt.errors import (
    ArgumentTypeError,
    CompileError,
    DeviceMismatchError,
    LaunchError,
    NbrtError,
)
from nbrt.testing import CommandRecorder, Latch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("no_garbage")

MIB = 1 << 20


@nbrt.kernel
def write_position(out):
    x, y, z = cuda.grid(3)
    if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:
        out[x, y, z] = x + 10 * y + 100 * z


@nbrt.kernel
def scale(out, x, factor, shift=1.0):
    """Multiply and add."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * factor + shift


@nbrt.kernel
def wait_for_flag(flag, place, deferral):
    """Spin until another stream's kernel raises flag[0]; flag[2] is 1 if it did in time.

    The store to a place that the compiler cannot know makes it read the flag every time.
    """
    left = deferral
    while flag[0] == 0 and left > 0:
        flag[place] = left
        left -= 1
    flag[2] = 1 if left > 0 else 2


@nbrt.kernel
def raise_flag(flag):
    flag[0] = 1


@pytest.mark.parametrize("grid", [1, (1,), (1, 1), (1, 1, 1), [1], np.int64(1)])
@pytest.mark.parametrize("block", [32, (32,), (32, 1), [32, 1, 1], np.int32(32)])
def test_forms_of_a_configuration(device: nbrt.Device, grid: Any, block: Any) -> None:
    x = nbrt.zeros(8, "int32", device=device)
    with nbrt.device(device):
        increment[grid, block](x)
    assert nbrt.to_host(x).tolist() == [1] * 8


def test_three_dimensions(device: nbrt.Device) -> None:
    out = nbrt.zeros((5, 4, 3), "int32", device=device)
    with nbrt.device(device):
        write_position[(3, 2, 2), (2, 2, 2)](out)
    x, y, z = np.indices((5, 4, 3))
    assert np.array_equal(nbrt.to_host(out), x + 10 * y + 100 * z)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_forall_covers_every_element_once(device: nbrt.Device, count: int) -> None:
    x = nbrt.zeros(count, "int32", device=device)
    with nbrt.device(device):
        increment.forall(count)(x)
        increment.forall(count, block=64)(x)
    assert np.all(nbrt.to_host(x) == 2)


def test_forall_options(device: nbrt.Device, stream: nbrt.Stream) -> None:
    x = nbrt.zeros(8, "int32", stream=stream)
    configured = increment.forall(8, block=4, stream=stream, shared=16)
    assert (configured.grid, configured.block) == ((2, 1, 1), (4, 1, 1))
    assert (configured.stream, configured.shared) == (stream, 16)
    configured(x)
    stream.synchronize()
    assert nbrt.to_host(x).tolist() == [1] * 8
    for wrong in (-1, 1.5, "8", True):
        with pytest.raises(LaunchError, match="expected n to be"):
            increment.forall(wrong)
    with pytest.raises(LaunchError, match="expected block to be at least 1"):
        increment.forall(8, block=0)


def test_an_empty_grid_launches_nothing(device: nbrt.Device, stream: nbrt.Stream) -> None:
    x = nbrt.zeros(8, "int32", device=device)
    nbrt.synchronize(device)
    with nbrt.stream(stream), CommandRecorder() as recorder:
        increment[0, 32](x)
        increment[(4, 0), 32](x)
        increment.forall(0)(x)
    assert recorder.commands == []
    assert not nbrt.to_host(x).any()
    limit = nbrt.get_device_properties(device).max_threads_per_block
    with pytest.raises(LaunchError, match="threads"), nbrt.device(device):
        increment[0, limit + 1](x)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        (32, r"expected \[grid, block\]"),
        ((1,), r"expected \[grid, block\]"),
        ((), r"expected \[grid, block\]"),
        (None, r"expected \[grid, block\]"),
        ([1, 32], r"expected \[grid, block\]"),
        ((1, 2, None, 0, 5), r"expected \[grid, block\]"),
        ((1.5, 32), "grid to be an int, got 1.5 of type float; for a ceiling division"),
        ((1, 32.5), "block to be an int, got 32.5"),
        ((math.ceil(7.5) * 1.0, 32), "grid to be an int, got 8.0"),
        ((True, 33), "grid to be an int, got True"),
        ((1, (2, True)), "block to be an int, got True"),
        (("1", 32), "grid to be an int"),
        ((-1, 32), "grid to be at least 0, got -1"),
        ((1, 0), "block to be at least 1, got 0"),
        ((1, (1, 1, 1, 1)), "block of 1 to 3 sizes"),
        (((), 32), "grid of 1 to 3 sizes"),
        ((1, 32, None, -1), "shared to be at least 0"),
        ((1, 32, None, 1.0), "shared to be an int"),
    ],
)
def test_wrong_configurations(configuration: Any, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        nbrt.kernel(increment.function)[configuration]


@pytest.mark.parametrize(
    ("good", "equal"),
    [
        ((1, 32), (1.0, 32)),
        ((1, 32), (True, 32)),
        ((1, 32), (np.float64(1), 32)),
        ((1, 32), (1, 32.0)),
        ((1, 1), (1, np.True_)),
        ((1, 32), (Fraction(1), 32)),
        (((1, 2), 32), ((1.0, 2), 32)),
        (((1, 2), 32), ((1, 2), 32.0)),
        ((1, (4, 1)), (1, (4, True))),
        ((1, (4, 1, 1)), (1, (4, 1, 1.0))),
        ((np.int64(1), 32), (np.float64(1), 32)),
        ((1, 32, None, 1), (1, 32, None, True)),
        ((1, 32, None, 64), (1, 32, None, 64.0)),
        ((1, 32, 0), (1.0, 32, 0)),
    ],
)
def test_what_was_launched_before_does_not_decide(good: Any, equal: Any) -> None:
    """Equal numbers of other types are equal keys of a cache."""
    kernel = nbrt.kernel(increment.function)
    for _ in range(2):
        with pytest.raises(LaunchError, match="to be an int, got"):
            kernel[equal]
        assert kernel[good] is kernel[good]
    with pytest.raises(LaunchError, match="to be an int, got"):
        kernel[equal]


def test_integers_of_all_types_share_a_configuration() -> None:
    kernel = nbrt.kernel(increment.function)
    configured = kernel[300, (32, 2)]
    for grid, block in itertools.product(
        (300, np.int64(300), np.uint16(300), (300,)), ((32, 2), (np.int32(32), 2), [32, 2])
    ):
        again = kernel[grid, block]
        assert (again.grid, again.block) == ((300, 1, 1), (32, 2, 1))
        assert type(again.grid[0]) is type(again.block[0]) is int
        if type(grid) is not tuple and type(block) is tuple:
            assert again is configured


def test_a_configuration_is_a_tuple_whatever_came_before() -> None:
    kernel = nbrt.kernel(increment.function)
    for configuration in ((1, 32), (1, 32, None), (1, 32, None, 0), (1, 32)):
        assert kernel[configuration] is kernel[configuration]
        with pytest.raises(LaunchError, match=r"expected \[grid, block\]"):
            kernel[list(configuration)]  # type: ignore[index]


def test_too_many_threads(device: nbrt.Device) -> None:
    x = nbrt.zeros(8, "int32", device=device)
    limit = nbrt.get_device_properties(device).max_threads_per_block
    with nbrt.device(device):
        for block in (limit + 1, (limit, 2)):
            with pytest.raises(LaunchError, match=f"expected at most {limit}"):
                increment[1, block](x)
        increment[1, limit](x)
    assert nbrt.to_host(x).tolist() == [1] * 8


def test_a_plain_call_is_told_how_to_launch() -> None:
    with pytest.raises(LaunchError, match=r"increment\[grid, block\]\(\.\.\.\)"):
        increment(np.zeros(3))


def test_a_kernel_keeps_the_functions_names() -> None:
    assert (scale.__name__, scale.__module__) == ("scale", __name__)
    assert "Multiply" in scale.__doc__
    assert repr(scale) == "<nbrt.Kernel scale>"
    assert nbrt.kernel(scale) is scale
    assert isinstance(nbrt.kernel()(scale.function), nbrt.Kernel)
    for wrong in (7, print, len, object()):
        with pytest.raises(ArgumentTypeError, match=r"Python function or a cuda\.jit dispatcher"):
            nbrt.kernel(wrong)


def test_defaults_and_scalars(device: nbrt.Device) -> None:
    x = nbrt.asarray(np.arange(8.0), device=device)
    out = nbrt.zeros(8, "float64", device=device)
    with nbrt.device(device):
        for factor in (2, 2.0, np.float32(2), np.int8(2), True + 1):
            scale.forall(8)(out, x, factor)
            assert np.array_equal(nbrt.to_host(out), np.arange(8.0) * 2 + 1)
        scale.forall(8)(out, x, 3.0, -1)
    assert np.array_equal(nbrt.to_host(out), np.arange(8.0) * 3 - 1)


def test_strided_arguments(device: nbrt.Device) -> None:
    whole = nbrt.zeros((4, 10), "int32", device=device)
    with nbrt.device(device):
        increment.forall(5)(whole[1, ::2])
        increment.forall(4)(whole[::-1, 9])
    expected = np.zeros((4, 10), np.int32)
    expected[1, ::2] += 1
    expected[:, 9] += 1
    assert np.array_equal(nbrt.to_host(whole), expected)


def make_adder(amount: int) -> Callable[..., object]:
    def add(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += amount

    return add


def test_closures(device: nbrt.Device) -> None:
    x = nbrt.zeros(4, "int32", device=device)
    with nbrt.device(device):
        for amount in (5, 7):
            nbrt.kernel(make_adder(amount)).forall(4)(x)
    assert nbrt.to_host(x).tolist() == [12] * 4


def test_a_dispatcher_is_accepted(device: nbrt.Device) -> None:
    dispatcher = cuda.jit(increment.function)
    x = nbrt.zeros(4, "int32", device=device)
    with nbrt.device(device):
        nbrt.kernel(dispatcher).forall(4)(x)
    assert nbrt.to_host(x).tolist() == [1] * 4


def test_one_kernel_many_devices(device: nbrt.Device, other_device: nbrt.Device) -> None:
    arrays = [nbrt.zeros(4, "int32", device=each) for each in (device, other_device, "cpu:2")]
    for x in arrays:
        with nbrt.device(nbrt.device_of(x)):
            increment[1, 32](x)
    assert [nbrt.to_host(x).tolist() for x in arrays] == [[1] * 4] * 3


def test_an_array_of_another_device(device: nbrt.Device, other_device: nbrt.Device) -> None:
    x = nbrt.zeros(4, "int32", device=other_device)
    with nbrt.device(device), pytest.raises(DeviceMismatchError, match=str(other_device.index)):
        increment[1, 32](x[1:])
    assert not nbrt.to_host(x).any()


class Target(NamedTuple):
    array: Any
    value: float


class Reversed(NamedTuple):
    value: float
    array: Any


def test_named_tuples_have_attributes(device: nbrt.Device) -> None:
    @nbrt.kernel
    def assign(target: Any) -> None:
        target.array[0] = target.value

    x = nbrt.zeros(3, device=device)
    with nbrt.device(device):
        for target in (Target(x, 3.0), Reversed(4.0, x), Target(x, 5)):
            assign[1, 1](target)
            assert nbrt.to_host(x)[0] == target.value


def test_an_array_of_another_device_in_a_tuple(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend looks at arrays only")

    @nbrt.kernel
    def first(pair: Any) -> None:
        pair[0][0] = pair[1]

    x = nbrt.zeros(4, "int32", device=other_device)
    with nbrt.device(device), pytest.raises(DeviceMismatchError, match=str(other_device.index)):
        first[1, 1]((x, 3))
    assert not nbrt.to_host(x).any()


def test_launches_are_ordered_on_their_stream(side_stream: nbrt.Stream) -> None:
    x = nbrt.zeros(1000, "int32", stream=side_stream)
    side_stream.synchronize()
    with nbrt.stream(side_stream):
        increment.forall(1000)(x)  # compiled
        side_stream.synchronize()
        with Latch() as latch, CommandRecorder() as recorder:
            latch.hold(side_stream)
            increment.forall(1000)(x)
            increment[4, 256, side_stream](x)
            latch.wait_reached()
            if side_stream.interface.capabilities.host_addressable:
                assert np.all(np.asarray(x) == 1)
    assert recorder.kinds == ["call", "launch", "launch"]
    assert {command.label for command in recorder.commands[1:]} == {"increment"}
    assert np.all(nbrt.to_host(x, stream=side_stream) == 3)


def test_queued_launches_keep_their_arrays(side_stream: nbrt.Stream) -> None:
    before = nbrt.memory_allocated(side_stream.device)
    x = nbrt.zeros(1000, "int32", stream=side_stream)
    out = np.zeros(1000, np.int32)
    with nbrt.stream(side_stream), Latch() as latch:
        latch.hold(side_stream)
        increment.forall(1000)(x)
        nbrt.copy(out, x, stream=side_stream)
        del x
        # Without, only later work of the stream can get the memory.
        retains = nbrt.get_interface_for_device(side_stream.device).capabilities.retains_arguments
        assert (nbrt.memory_allocated(side_stream.device) > before) == retains
    side_stream.synchronize()
    assert np.all(out == 1)
    assert nbrt.memory_allocated(side_stream.device) == before


def test_wrong_arguments_are_told_in_the_caller(stream: nbrt.Stream) -> None:
    if stream.device.kind == "sample":
        pytest.skip("the sample backend interprets kernels and has no argument types")
    x = nbrt.zeros(4, "int32", stream=stream)
    stream.synchronize()
    configured = increment[1, 32, stream]
    for wrong in ((object(),), ("text",), ([1, 2],), (), (x, x), (None,)):
        with pytest.raises((ArgumentTypeError, CompileError)) as caught:
            configured(*wrong)
        assert isinstance(caught.value, NbrtError)
    stream.synchronize()
    assert not nbrt.to_host(x, stream=stream).any()
    configured(x)
    assert np.all(nbrt.to_host(x, stream=stream) == 1)


def test_streams_of_other_libraries() -> None:
    x = nbrt.zeros(4, "int32", device="cpu:0")
    with nbrt.device("cpu:0"):
        increment[1, 32, 0](x)
        increment[1, 32, None](x)
        for wrong in (1, "main", object(), 0.5):
            with pytest.raises(NbrtError, match="__cuda_stream__"):
                increment[1, 32, wrong]
    assert x.tolist() == [2] * 4


def test_a_borrowed_stream_of_another_library(sample_backend: object) -> None:
    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 8192

    x = nbrt.zeros(4, "int32", device="sample")
    with nbrt.device("sample"):
        configured = increment[1, 32, Foreign()]
        configured(x)
    assert configured.stream.handle == 8192
    assert x.tolist() == [1] * 4


def test_plain_host_arrays_on_any_cpu_device() -> None:
    x = np.zeros(4, np.int32)
    for index in range(nbrt.device_count("cpu")):
        with nbrt.device(nbrt.Device("cpu", index)):
            increment[1, 32](x)
    assert x.tolist() == [4] * 4


def test_a_read_only_array(device: nbrt.Device) -> None:
    if device.kind != "cpu":
        pytest.skip("read-only arrays are NumPy's")
    x = np.zeros(4, np.int32)
    x.flags.writeable = False
    with nbrt.device(device), pytest.raises(NbrtError):
        increment[1, 32](x)
    assert not x.any()


def test_two_streams_run_kernels_at_the_same_time(
    side_streams: tuple[nbrt.Stream, nbrt.Stream],
) -> None:
    """A kernel spins until another stream's kernel has run: neither may hold the GIL."""
    first, second = side_streams
    flag, scratch = (nbrt.zeros(3, "int32", device=first.device) for _ in range(2))
    nbrt.synchronize(first.device)
    raise_flag[1, 1, first](scratch)
    wait_for_flag[1, 1, first](scratch, 1, 1)
    first.synchronize()  # both are compiled
    wait_for_flag[1, 1, first](flag, 1, 200_000_000_000)
    raise_flag[1, 1, second](flag)
    second.synchronize()
    first.synchronize()
    assert nbrt.to_host(flag)[2] == 1
