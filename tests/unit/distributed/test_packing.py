from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from helpers.sample_backend import SampleArray
from nbrt.distributed.communicators.checks import check_elements
from nbrt.distributed.communicators.packing import MessagePacker, counts_of
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from nbrt.backends.interface import DeviceInterface

SAMPLE = nbrt.Device("sample", 1)


def test_staged_buffers_are_host_memory_and_results_are_on_the_device(
    sample_backend: DeviceInterface,
) -> None:
    host = np.arange(6, dtype="i2").reshape(2, 3)
    array = nbrt.to(host, SAMPLE)
    packer = MessagePacker(SAMPLE, is_staged=True)
    buffer = packer.pack([array.T, array[:0], array[1]])
    assert type(buffer) is np.ndarray
    assert buffer.tobytes() == host.T.tobytes() + host[1].tobytes()
    assert type(packer.new(3)) is np.ndarray
    shapes = [(3, 2), (0, 3), (3,)]
    assert counts_of(shapes, host.dtype) == [12, 0, 6]
    found = packer.unpack(buffer, shapes, host.dtype)
    for result, expected in zip(found, [host.T, host[:0], host[1]], strict=True):
        assert isinstance(result, SampleArray)
        assert nbrt.device_of(result) == SAMPLE
        assert result.tolist() == expected.tolist()


def test_buffers_are_on_the_device_and_a_single_array_is_not_copied() -> None:
    packer = MessagePacker(nbrt.Device("cpu", 2))
    array = nbrt.to(np.arange(4.0), "cpu:2")
    assert nbrt.device_of(packer.new(5)) == nbrt.Device("cpu", 2)
    assert np.shares_memory(packer.pack([array]), array)
    assert not np.shares_memory(packer.pack([array], is_copy=True), array)
    assert packer.pack([array[::2]]).tobytes() == np.array([0.0, 2.0]).tobytes()


def test_packing_waits_for_the_work_of_the_current_stream() -> None:
    stream = nbrt.Stream("cpu:0")
    array = nbrt.zeros(1 << 16, device="cpu:0")
    with nbrt.stream(stream):
        nbrt.copy(array, np.ones(1 << 16, "f4"))
        stream.call(array.fill, 2.0)
        assert (MessagePacker(nbrt.Device("cpu", 0)).pack([array]).view("f4") == 2).all()


@pytest.mark.parametrize("dtype", [object, "S0", [("a", object)]])
def test_elements_must_be_bytes(dtype: object) -> None:
    with pytest.raises(ArgumentTypeError, match="all_gather_object"):
        check_elements(np.dtype(dtype))  # type: ignore[call-overload]
