"""Ranks on CUDA devices: threads that share them, and NCCL between them."""

from __future__ import annotations

import pytest

import nbrt
import nbrt.distributed as dist
from helpers.collectives import CASES, OnDevice
from helpers.sharded_draws import differing
from helpers.shardings import shardings
from nbrt.distributed.communicators.nccl import NcclCommunicator
from nbrt.testing.draws import DrawCase

pytestmark = pytest.mark.gpu

WANTED = tuple(shardings(((7,), (2, 3), (2, 2, 2)), ((5, 3), (0, 3))))


@pytest.mark.parametrize(
    "case",
    [
        DrawCase("random"),
        DrawCase("standard_normal", {}, "float64"),
        DrawCase("gamma", {"shape": 2.5}),
        DrawCase("integers", {"low": 3, "high": 100}, "int64", "torch"),
    ],
    ids=str,
)
def test_any_sharding_gives_the_single_device_bits(case: DrawCase) -> None:
    gather = case.method == "random"
    found = dist.run(differing, case, WANTED, gather, ranks=8, device_type="cuda")

    assert found == [[]] * 8


def test_nccl_does_what_every_communicator_must() -> None:
    def cases() -> int:
        world = NcclCommunicator(bootstrap=dist.world())
        for case in CASES:
            case(OnDevice(world))
        return world.size

    # NCCL takes one rank for each device.
    ranks = nbrt.device_count("cuda")
    assert dist.run(cases, ranks=ranks, device_type="cuda") == [ranks] * ranks


@pytest.mark.multi_gpu
def test_shardings_over_nccl_give_the_single_device_bits(second_device: nbrt.Device) -> None:
    def wrong() -> list[str]:
        world = NcclCommunicator(bootstrap=dist.world())
        mesh = dist.DeviceMesh("cuda", [0, 1], communicator=world)
        found = []
        for placement in (dist.Shard(0), dist.StridedShard(0, 2), dist.Replicate()):
            over = dist.MeshGenerator(mesh, [placement], nbrt.Generator(5))
            drawn = over.random(size=(7, 3), dtype="float32").full_tensor()
            whole = nbrt.Generator(5, device="cpu:0").random((7, 3), "float32")
            if nbrt.to_host(drawn).tobytes() != whole.tobytes():
                found.append(str(placement))
        return found

    assert dist.run(wrong, ranks=2, device_type="cuda") == [[], []]
