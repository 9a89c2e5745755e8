"""Copies and shared memory: the same on every kind of device."""

from __future__ import annotations

import array as buffers
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.launches import increment
from nbrt.errors import ArgumentError, NotSupportedError
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = nbrt.Device("cpu", 0)
COUNT = 1000


class Exporter:
    """A host array of another library, as far as DLPack shows it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class WithArray:
    """An object that hands out its own array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array


class Special(np.ndarray):
    """A class of arrays that no device has."""


def plain(values: np.ndarray, device: nbrt.Device) -> Any:
    return values


def pinned(values: np.ndarray, device: nbrt.Device) -> Any:
    try:
        held = nbrt.empty_pinned(values.shape, values.dtype, device=device)
    except NotSupportedError as error:
        pytest.skip(str(error))
    held[...] = values
    return held


HOST_DATA: list[Callable[[np.ndarray, nbrt.Device], Any]] = [
    plain,
    pinned,
    lambda values, _: values.view(Special),
    lambda values, _: Exporter(values),
    lambda values, _: WithArray(values),
    lambda values, _: memoryview(values),
    lambda values, _: buffers.array("f", values.tolist()),
]
KINDS = ["plain", "pinned", "subclass", "dlpack", "__array__", "memoryview", "buffer"]


def numbers(obj: Any) -> np.ndarray:
    """Return the memory of host data."""
    return np.asarray(getattr(obj, "array", obj))


@pytest.fixture(params=[nbrt.asarray, nbrt.to], ids=["asarray", "to"])
def move(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`asarray` and `to`, which copy alike."""
    chosen: Callable[..., Any] = request.param
    return chosen


@pytest.mark.parametrize("make", HOST_DATA, ids=KINDS)
@pytest.mark.parametrize("options", [{}, {"copy": "host_data"}, {"copy": True}], ids=str)
def test_host_data_is_copied(
    device: nbrt.Device,
    move: Callable[..., Any],
    make: Callable[[np.ndarray, nbrt.Device], Any],
    options: dict[str, Any],
) -> None:
    source = make(np.arange(4, dtype=np.float32), device)
    x = move(source, device=device, **options)
    assert nbrt.device_of(x) == device
    nbrt.synchronize(device)
    numbers(source)[...] = 7
    assert nbrt.to_host(x).tolist() == [0, 1, 2, 3]
    nbrt.copy(x, np.float32(5))
    assert nbrt.to_host(x).tolist() == [5] * 4
    assert numbers(source).tolist() == [7] * 4


def test_the_copy_is_memory_of_the_device(device: nbrt.Device, move: Callable[..., Any]) -> None:
    for source in (np.zeros(COUNT), [0.0] * COUNT, 1.5):
        before = nbrt.memory_allocated(device)
        x = move(source, device=device)
        assert nbrt.memory_allocated(device) > before
        assert move(x, device=device) is x
        assert x.flags.c_contiguous
        del x
        assert nbrt.memory_allocated(device) == before


def test_host_data_goes_to_the_current_device(device: nbrt.Device) -> None:
    with nbrt.device(device):
        assert nbrt.device_of(nbrt.asarray(np.zeros(3))) == device
        assert nbrt.device_of(nbrt.asarray(pinned(np.zeros(3), device))) == device
        assert nbrt.device_of(nbrt.asarray([1, 2])) == device


@pytest.mark.parametrize("make", HOST_DATA[:3], ids=KINDS[:3])
def test_host_data_is_shared_on_demand(
    device: nbrt.Device,
    move: Callable[..., Any],
    make: Callable[[np.ndarray, nbrt.Device], Any],
) -> None:
    source = make(np.arange(4, dtype=np.float32), device)
    x = move(source, device=device, copy=None)
    is_shared = np.shares_memory(numbers(source), x) if device == HOST else False
    assert is_shared == (device == HOST)
    assert nbrt.device_of(x) == device
    if device == HOST:
        assert np.shares_memory(move(source, device=device, copy=False), numbers(source))
        return
    before = nbrt.memory_allocated(device)
    with pytest.raises(
        ArgumentError, match=r"got host data, of which .* needs a copy; leave copy out"
    ):
        move(source, device=device, copy=False)
    assert nbrt.memory_allocated(device) == before


def test_what_is_no_array_cannot_be_shared(device: nbrt.Device, move: Callable[..., Any]) -> None:
    for source in ([1.0, 2.0], 3, (1, 2)):
        with pytest.raises(ArgumentError, match=r"without a copy|can be shared"):
            move(source, device=device, copy=False)
        assert (
            nbrt.to_host(move(source, device=device, copy=None)).tolist()
            == np.array(source).tolist()
        )


def test_arrays_of_the_device_are_returned(device: nbrt.Device, move: Callable[..., Any]) -> None:
    whole = nbrt.zeros((4, 6), device=device)
    for x in (whole, whole[1:, ::2], whole.T, whole[0, 0:0]):
        for mode in ("host_data", None, False, np.False_):
            assert move(x, device=device, copy=mode) is x
        assert move(x, device=device) is x
        twin = move(x, device=device, copy=True)
        nbrt.copy(twin, np.float32(1))
        assert not nbrt.to_host(whole).any()
    assert nbrt.asarray(whole, "float32", copy=False) is whole
    for mode in ("host_data", None, True):
        assert nbrt.asarray(whole, "float64", copy=mode).dtype == np.float64
    with pytest.raises(ArgumentError, match=r"got an array of float32 .* one of float64"):
        nbrt.asarray(whole, "float64", copy=False)


def test_arrays_of_another_device_are_copied(
    device: nbrt.Device, other_device: nbrt.Device, move: Callable[..., Any]
) -> None:
    x = nbrt.zeros(3, device=other_device)
    for mode in ("host_data", None, True):
        y = move(x, device=device, copy=mode)
        assert nbrt.device_of(y) == device
        nbrt.copy(y, np.float32(1))
        assert not nbrt.to_host(x).any()
    with pytest.raises(ArgumentError, match=f"of {other_device}, of which one of float32 of"):
        move(x, device=device, copy=False)


def test_unknown_modes(move: Callable[..., Any]) -> None:
    for mode in ("always", 1, np.zeros(2)):
        with pytest.raises(ArgumentError, match='None or "host_data", got'):
            move([1], device="cpu:0", copy=mode)
    with pytest.raises(ArgumentError, match="copy as True, None or False, got 'host_data'"):
        nbrt.to_host(np.zeros(2), copy="host_data")  # type: ignore[arg-type]


def test_to_host_is_a_copy(device: nbrt.Device) -> None:
    x = nbrt.zeros((4, 6), device=device)
    sources: list[Any] = [x, x[1:, ::2], x.T, np.zeros(3, np.float32), Exporter(np.zeros(3)), [0.0]]
    for source in sources:
        host = nbrt.to_host(source)
        assert type(host) is np.ndarray
        assert host.flags.writeable
        host[...] = 1
        assert not nbrt.to_host(source).any()
    before = nbrt.to_host(x)
    with nbrt.device(device):
        increment[1, 32](x.reshape(-1))
    after = nbrt.to_host(x)
    assert (after - before).tolist() == [[1.0] * 6] * 4


def test_to_host_shares_on_demand(device: nbrt.Device) -> None:
    x = nbrt.zeros(3, device=device)
    if nbrt.get_interface_for_device(device).capabilities.host_addressable:
        assert not np.shares_memory(nbrt.to_host(x, copy=np.True_), x)  # type: ignore[arg-type]
        for mode in (None, False):
            host = nbrt.to_host(x, copy=mode)
            assert type(host) is np.ndarray
            assert np.shares_memory(host, x)
    else:
        assert nbrt.to_host(x, copy=None).tolist() == [0.0] * 3
        with pytest.raises(ArgumentError, match="host memory needs"):
            nbrt.to_host(x, copy=False)


@nbrt.kernel
def life(before, after):
    x, y = cuda.grid(2)
    n, m = before.shape
    if x < n and y < m:
        count = 0
        for i in range(-1, 2):
            for j in range(-1, 2):
                if i or j:
                    count += before[(x + i + n) % n, (y + j + m) % m]
        after[x, y] = 1 if count == 3 or (count == 2 and before[x, y]) else 0


def test_two_buffers_from_one_host_array(device: nbrt.Device) -> None:
    """The program of a numba.cuda user: both buffers begin as copies of one NumPy array."""
    grid = np.random.default_rng(1).integers(0, 2, (16, 16)).astype(np.int32)
    kept = grid.copy()
    with nbrt.device(device):
        first, second = nbrt.asarray(grid), nbrt.asarray(grid)
        for _ in range(4):
            life[(2, 2), (8, 8)](first, second)
            first, second = second, first
    expected = kept
    for _ in range(4):
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
        count = sum(np.roll(expected, shift, (0, 1)) for shift in shifts)
        expected = ((count == 3) | ((count == 2) & (expected == 1))).astype(np.int32)
    assert np.array_equal(nbrt.to_host(first), expected)
    assert np.array_equal(grid, kept)


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*HOST_DATA[:1], *HOST_DATA[2:5]], ids=[KINDS[0], *KINDS[2:5]])
@pytest.mark.parametrize("dtype", [None, "float64"])
def test_host_data_is_read_during_the_call(
    side_stream: nbrt.Stream, make: Callable[[np.ndarray, nbrt.Device], Any], dtype: str | None
) -> None:
    source = make(np.arange(COUNT, dtype=np.float32), side_stream.device)
    with Latch() as latch:
        latch.hold(side_stream)
        x = nbrt.asarray(source, dtype, stream=side_stream)
        with nbrt.stream(side_stream):
            y = nbrt.to(source, side_stream.device)
        numbers(source)[...] = -1
    side_stream.synchronize()
    for moved in (x, y):
        assert np.array_equal(nbrt.to_host(moved, stream=side_stream), np.arange(COUNT))


def test_page_locked_memory_is_read_in_stream_order(side_stream: nbrt.Stream) -> None:
    source = pinned(np.zeros(COUNT, np.float32), side_stream.device)
    with Latch() as latch:
        latch.hold(side_stream)
        x = nbrt.asarray(source, stream=side_stream)
        source[...] = 3
    assert np.all(nbrt.to_host(x, stream=side_stream) == 3)


def test_work_behind_the_copy_sees_it(side_stream: nbrt.Stream) -> None:
    values = np.arange(COUNT, dtype=np.float32)
    with Latch() as latch, nbrt.stream(side_stream):
        latch.hold(side_stream)
        x = nbrt.asarray(values, device=side_stream.device)
        increment.forall(COUNT)(x)
        y = nbrt.to(x, side_stream.device, copy=True)
        increment.forall(COUNT)(x)
        values[...] = 0
    assert np.array_equal(nbrt.to_host(x, stream=side_stream), np.arange(COUNT) + 2)
    assert np.array_equal(nbrt.to_host(y, stream=side_stream), np.arange(COUNT) + 1)


def test_to_host_comes_behind_the_work_of_its_stream(side_stream: nbrt.Stream) -> None:
    x = nbrt.zeros(COUNT, stream=side_stream)
    latch = Latch()
    latch.hold(side_stream)
    for _ in range(20):
        increment[-(-COUNT // 256), 256, side_stream](x)
    side_stream.call(int)
    latch.release()
    host = nbrt.to_host(x, stream=side_stream)
    increment[-(-COUNT // 256), 256, side_stream](x)
    side_stream.synchronize()
    assert np.all(host == 20)
    assert np.all(nbrt.to_host(x, stream=side_stream) == 21)


def test_to_host_follows_the_current_stream(side_stream: nbrt.Stream) -> None:
    x = nbrt.zeros(COUNT, stream=side_stream)
    latch = Latch()
    with nbrt.stream(side_stream):
        latch.hold(side_stream)
        increment.forall(COUNT)(x)
        latch.release()
        for mode in (True, None):
            assert np.all(nbrt.to_host(x, copy=mode) == 1)


def test_dropout_reads_host_data_during_the_call(side_stream: nbrt.Stream) -> None:
    values = np.ones(COUNT, np.float32)
    with nbrt.stream(side_stream), Latch() as latch:
        generator = nbrt.Generator(1, side_stream.device)
        latch.hold(side_stream)
        kept, mask = generator.dropout(values, 0.5)
        values[...] = 100
    side_stream.synchronize()
    mask = nbrt.to_host(mask, stream=side_stream)
    assert np.array_equal(nbrt.to_host(kept, stream=side_stream), mask * np.float32(2))
