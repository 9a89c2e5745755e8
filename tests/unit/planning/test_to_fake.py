"""`nbrt.to_fake`: objects become fake by their metadata, also through the flatten contract."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from nbrt.backends.fake.array import FakeArray
from nbrt.distributed import DTensor, Replicate, Shard
from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceError

Pair = namedtuple("Pair", "first second")


class Quantized:
    """A user's class: codes and scales, with torch's flatten contract."""

    def __init__(self, codes: Any, scales: Any, bits: int) -> None:
        self.codes, self.scales, self.bits = codes, scales, bits

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape  # type: ignore[no-any-return]

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return ["codes", "scales"], self.bits

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Any], bits: int, outer_size: Any, outer_stride: Any
    ) -> Quantized:
        assert outer_size == inner["codes"].shape
        return Quantized(inner["codes"], inner["scales"], bits)

    def dequantized(self) -> Any:
        return self.codes * self.scales


def metadata(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.strides


def test_arrays_keep_shape_dtype_and_strides() -> None:
    whole = np.zeros((6, 8), "float32")
    given = [whole, whole.T, whole[1::2, ::-1], np.asfortranarray(whole), np.float64(3) + whole,
             np.zeros((0, 3)), np.array(5, "int16"), np.broadcast_to(whole, (2, 6, 8))]  # fmt: skip
    with nbrt.fake("cuda", devices=2) as plan:
        found = nbrt.to_fake(given, device="cuda:1")
        for real, fake in zip(given, found, strict=True):
            assert metadata(fake) == metadata(real)
            assert isinstance(fake, FakeArray)
            assert str(fake.device) == "cuda:1"
    assert not plan.transfers


def test_arrays_that_share_memory_share_it_again() -> None:
    whole = np.zeros((100, 100))
    with nbrt.fake("cuda") as plan:
        first, second, again = nbrt.to_fake((whole[2:], whole[:, 5], whole[2:]))
        assert second.address - first.address == whole[:, 5].ctypes.data - whole[2:].ctypes.data
        assert metadata(again) == metadata(first)
        assert again.address == first.address
    assert 80000 <= plan.peak < 90000


def test_containers_keep_their_class_and_other_objects() -> None:
    x = np.zeros(3)
    given = {"pair": Pair(x, "text"), "list": [x, 2, None], "nested": ({"x": x},)}
    with nbrt.fake("cpu"):
        found = nbrt.to_fake(given)
        assert type(found["pair"]) is Pair
        assert found["pair"].first is found["list"][0] is found["nested"][0]["x"]
        assert found["list"][1:] == [2, None]
        assert found["pair"].second == "text"
        assert nbrt.to_fake(found["pair"].first) is found["pair"].first


def test_a_users_class_goes_in_and_out() -> None:
    real = Quantized(np.zeros((64, 32), "int8"), np.ones((64, 1), "float32"), 4)
    with nbrt.fake("cuda") as plan:
        fake = nbrt.to_fake({"weight": real})["weight"]
        result = Quantized(fake.codes[:8], fake.scales[:8], fake.bits).dequantized()
        assert metadata(result) == metadata(
            Quantized(real.codes[:8], real.scales[:8], 4).dequantized()
        )
    assert (type(fake), fake.bits, fake.shape) == (Quantized, 4, (64, 32))
    assert str(fake.codes) == "FakeArray(shape=(64, 32), dtype=int8, device='cuda:0')"
    assert isinstance(real.codes, np.ndarray)
    assert not plan.transfers
    with pytest.raises(DeviceError, match="ended"):
        fake.dequantized()


def test_tensors_go_in_and_out() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2, 2))
        x = dist.rand(8, 6, device_mesh=mesh, placements=[Shard(0), Replicate()])
        mesh.communicator.barrier()
        dist.world().barrier()
        if dist.get_rank() == 0:
            entered.append(nbrt.fake("cpu", devices=4))
            entered[0].__enter__()
        dist.world().barrier()
        try:
            fake = nbrt.to_fake([x])[0]
            moved = fake.redistribute(placements=[Replicate(), Shard(1)])
            total = (fake * 2).sum(axis=0)
            dist.world().barrier()
        finally:
            if dist.get_rank() == 0:
                entered[0].__exit__()
        dist.world().barrier()
        return x, fake, moved, total

    entered: list[Any] = []
    for x, fake, moved, total in dist.run(rank, ranks=4, device_type="cpu"):
        assert type(fake) is type(moved) is type(total) is DTensor
        assert (fake.shape, fake.placements) == (x.shape, x.placements)
        assert metadata(fake.to_local()) == metadata(x.to_local())
        assert isinstance(fake.to_local(), FakeArray)
        assert isinstance(x.to_local(), np.ndarray)
        assert moved.to_local().shape == (8, 3)
        assert total.shape == (6,)
        assert "FakeArray" in repr(fake)


def test_real_devices_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"nbrt\.fake\('cpu'\)"):
        nbrt.to_fake(np.zeros(3), device="cpu:0")
    with nbrt.fake("cuda"), nbrt.device("cpu:0"), pytest.raises(ArgumentError, match="device="):
        nbrt.to_fake(np.zeros(3))


def test_an_inner_value_that_is_no_array_is_named() -> None:
    with nbrt.fake("cuda"), pytest.raises(ArgumentTypeError, match="scales = 'none'"):
        nbrt.to_fake(Quantized(np.zeros(3), "none", 4))


def test_ended_arrays_are_refused() -> None:
    with nbrt.fake("cuda"):
        x = nbrt.zeros(3)
    with nbrt.fake("cuda"), pytest.raises(DeviceError, match="ended"):
        nbrt.to_fake(x)
