"""Arrays: made on a device, moved between devices, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import ArgumentError, ArgumentOverflowError, ArgumentTypeError
from nbrt.testing import Latch

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def ones_and_zeros(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_there_and_back(device: nbrt.Device, dtype: str) -> None:
    values = ones_and_zeros(dtype, (3, 4))
    x = nbrt.to(values, device, copy=True)
    assert nbrt.device_of(x) == device
    assert x.dtype == dtype
    host = nbrt.to_host(x)
    assert host.dtype == dtype
    assert np.array_equal(host, values)
    y = (
        nbrt.empty_like(x)
        if hasattr(nbrt, "empty_like")
        else nbrt.empty(x.shape, dtype, device=device)
    )
    nbrt.copy(y, x)
    assert np.array_equal(nbrt.to_host(y), values)
    assert np.array_equal(nbrt.to_host(nbrt.full((2, 2), 1, dtype, device=device)), np.ones((2, 2)))
    assert not nbrt.to_host(nbrt.zeros(5, dtype, device=device)).any()


def test_empty(device: nbrt.Device) -> None:
    with nbrt.device(device):
        x = nbrt.empty((2, 3))
    assert x.shape == (2, 3)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    assert nbrt.empty(4, device=device).shape == (4,)
    assert nbrt.empty([4, 5], device=device).shape == (4, 5)
    assert nbrt.empty(np.int64(4), device=device).shape == (4,)
    assert nbrt.empty((), device=device).shape == ()


def test_full_takes_the_values_dtype(device: nbrt.Device) -> None:
    for value, dtype in (
        (1, "int64"),
        (1.5, "float64"),
        (True, "bool"),
        (np.float32(2), "float32"),
    ):
        x = nbrt.full((2,), value, device=device)
        assert x.dtype == dtype
        assert nbrt.to_host(x).tolist() == [value, value]
    assert nbrt.full(2, 1.0, "int16", device=device).dtype == np.int16
    with pytest.raises(ArgumentError, match="scalar to fill with"):
        nbrt.full(2, [1, 2], device=device)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        (-1, ArgumentError),
        ((2, -3), ArgumentError),
        (1.5, ArgumentTypeError),
        ("3", ArgumentTypeError),
    ],
)
def test_wrong_shapes(device: nbrt.Device, shape: Any, error: type[Exception]) -> None:
    before = nbrt.memory_allocated(device)
    with pytest.raises(error, match="expected a shape"):
        nbrt.empty(shape, device=device)
    assert nbrt.memory_allocated(device) == before


def test_wrong_dtypes(device: nbrt.Device) -> None:
    with pytest.raises(ArgumentError, match="Python objects"):
        nbrt.empty(3, object, device=device)
    with pytest.raises(ArgumentTypeError, match="expected a dtype"):
        nbrt.zeros(3, "no such dtype", device=device)
    with pytest.raises(ArgumentTypeError, match="expected an array or numbers"):
        nbrt.asarray(object(), device=device)


def test_asarray(device: nbrt.Device) -> None:
    x = nbrt.asarray([[1, 2], [3, 4]], "float32", device=device)
    assert nbrt.device_of(x) == device
    assert nbrt.to_host(x).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert nbrt.asarray(x) is x
    assert nbrt.asarray(x, device=device) is x
    assert nbrt.asarray(x, np.float32) is x
    assert nbrt.asarray(7, device=device).shape == ()
    with nbrt.device("cpu:3"):
        assert nbrt.device_of(nbrt.asarray(x)) == device


def test_asarray_converts(device: nbrt.Device) -> None:
    x = nbrt.asarray([1.75, -2.5], device=device)
    assert x.dtype == np.float64
    assert nbrt.to_host(nbrt.asarray(x, "int32")).tolist() == [1, -2]
    assert nbrt.to_host(nbrt.asarray(x, "float32")).tolist() == [1.75, -2.5]


def test_conversion_reads_the_values_in_stream_order(side_stream: nbrt.Stream) -> None:
    x = nbrt.zeros(1000, stream=side_stream)
    latch = Latch()
    latch.hold(side_stream)
    with nbrt.stream(side_stream):
        nbrt.copy(x, np.full(1000, 7.0, np.float32))
        side_stream.call(int)
        latch.release()
        y = nbrt.asarray(x, "int32")
        assert np.all(nbrt.to_host(y) == 7)


def test_to(device: nbrt.Device, other_device: nbrt.Device) -> None:
    x = nbrt.asarray(np.arange(12.0).reshape(3, 4), device=device)
    assert nbrt.to(x, device) is x
    twin = nbrt.to(x, device, copy=True)
    assert twin is not x
    away = nbrt.to(x, other_device)
    assert nbrt.device_of(away) == other_device
    nbrt.copy(x, 0.0)
    for moved in (twin, away, nbrt.to(away, device)):
        assert np.array_equal(nbrt.to_host(moved), np.arange(12.0).reshape(3, 4))


def test_to_waits_for_the_stream_that_makes_the_values(
    side_stream: nbrt.Stream, other_device: nbrt.Device
) -> None:
    x = nbrt.zeros(1000, stream=side_stream)
    there = nbrt.Stream(other_device)
    with Latch() as latch, nbrt.stream(side_stream):
        latch.hold(side_stream)
        nbrt.copy(x, np.full(1000, 7.0, np.float32))
        y = nbrt.to(x, other_device, stream=there)
    assert np.all(nbrt.to_host(y, stream=there) == 7.0)


def test_between_kinds(device: nbrt.Device, sample_backend: object) -> None:
    for other in (nbrt.Device("cpu", 2), nbrt.Device("sample", 1)):
        x = nbrt.asarray(np.arange(6, dtype=np.int32), device=device)
        y = nbrt.to(x, other)
        assert nbrt.device_of(y) == other
        z = nbrt.to(y, device)
        assert nbrt.device_of(z) == device
        assert nbrt.to_host(z).tolist() == [0, 1, 2, 3, 4, 5]
        back = nbrt.zeros(6, "int32", device=device)
        nbrt.copy(back, y)
        assert nbrt.to_host(back).tolist() == [0, 1, 2, 3, 4, 5]


def test_strided_arrays(device: nbrt.Device) -> None:
    values = np.arange(120.0).reshape(4, 5, 6)
    x = nbrt.to(values, device, copy=True)
    views: list[Any] = [x[::2], x[:, ::-1], x.transpose(2, 0, 1), x[1, :, 2], x[..., 1:-1]]
    host_views = [
        values[::2],
        values[:, ::-1],
        values.transpose(2, 0, 1),
        values[1, :, 2],
        values[..., 1:-1],
    ]
    for view, expected in zip(views, host_views, strict=True):
        assert np.array_equal(nbrt.to_host(view), expected)
        moved = nbrt.to(view, device, copy=True)
        assert moved.flags.c_contiguous
        assert np.array_equal(nbrt.to_host(moved), expected)
    nbrt.copy(views[0], -values[::2])
    assert np.array_equal(nbrt.to_host(x)[::2], -values[::2])
    assert np.array_equal(nbrt.to_host(x)[1::2], values[1::2])
    assert np.array_equal(nbrt.to_host(nbrt.to(values[::2, 1], device, copy=True)), values[::2, 1])


def test_copy_broadcasts(device: nbrt.Device) -> None:
    x = nbrt.zeros((3, 4), device=device)
    nbrt.copy(x, np.arange(4, dtype=np.float32))
    assert np.array_equal(nbrt.to_host(x), np.tile(np.arange(4, dtype=np.float32), (3, 1)))
    nbrt.copy(x, nbrt.asarray([[1], [2], [3]], "float32", device=device))
    assert nbrt.to_host(x)[:, 0].tolist() == [1, 2, 3]


def test_copy_checks_before_it_does_anything(device: nbrt.Device) -> None:
    x = nbrt.zeros((3, 4), "int32", device=device)
    with pytest.raises(ArgumentError, match=r"broadcasts to shape \(3, 4\), got shape \(3,\)"):
        nbrt.copy(x, np.arange(3, dtype=np.int32))
    with pytest.raises(ArgumentError, match="broadcasts"):
        nbrt.copy(x[0], x)
    with pytest.raises(ArgumentError, match="within its kind, got float64"):
        nbrt.copy(x, np.ones((3, 4)))
    assert not nbrt.to_host(x).any()


def test_copy_of_numbers_beyond_the_range(device: nbrt.Device) -> None:
    x = nbrt.zeros(2, "uint8", device=device)
    for source in (300, [300, 1], -1):
        with pytest.raises(ArgumentOverflowError, match="makes an array of uint8"):
            nbrt.copy(x, source)
    with pytest.raises(ArgumentError, match="within its kind, got int64"):
        nbrt.copy(x, np.int64(300))
    assert not nbrt.to_host(x).any()
    nbrt.copy(x, [255, 0])
    assert nbrt.to_host(x).tolist() == [255, 0]


def test_copy_wants_a_writable_destination(device: nbrt.Device) -> None:
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    source = nbrt.full(3, 1.0, "float32", device=device)
    with pytest.raises(ArgumentError, match="writable"):
        nbrt.copy(x, source, stream=nbrt.Stream(device))
    with pytest.raises(ArgumentTypeError, match="an array to copy into"):
        nbrt.copy([0.0, 0.0, 0.0], source)


def test_copy_to_the_host(device: nbrt.Device, stream: nbrt.Stream) -> None:
    out = np.zeros(1000, np.float32)
    x = nbrt.full(1000, 3.0, "float32", stream=stream)
    nbrt.copy(out, x, stream=stream)
    stream.synchronize()
    assert np.all(out == 3.0)


def test_to_host_waits(side_stream: nbrt.Stream) -> None:
    x = nbrt.zeros(100, stream=side_stream)
    latch = Latch()
    latch.hold(side_stream)
    nbrt.copy(x, np.full(100, 2.0, np.float32), stream=side_stream)
    side_stream.call(int)
    latch.release()
    assert np.all(nbrt.to_host(x, stream=side_stream) == 2.0)


def test_streams_and_devices_must_agree(device: nbrt.Device, other_device: nbrt.Device) -> None:
    stream = nbrt.Stream(device)
    assert nbrt.device_of(nbrt.empty(3, stream=stream)) == device
    with pytest.raises(ArgumentError, match=f"expected a stream of {other_device}"):
        nbrt.empty(3, device=other_device, stream=stream)


def test_device_of(device: nbrt.Device) -> None:
    assert nbrt.device_of(nbrt.zeros(3, device=device)[1:]) == device
    assert nbrt.device_of(np.zeros(3)) == nbrt.Device("cpu")
    with pytest.raises(ArgumentTypeError, match="expected an array"):
        nbrt.device_of("text")
