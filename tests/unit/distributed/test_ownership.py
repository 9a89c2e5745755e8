"""Meshes, groups and generators of one rank raise when another rank uses them."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from nbrt.errors import ArgumentTypeError, DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable

CUT = [dist.Shard(0)]


def line() -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu")


def draw(mesh: dist.DeviceMesh, generator: nbrt.Generator | None = None) -> Any:
    return dist.rand(8, device_mesh=mesh, placements=CUT, generator=generator)


def region(mesh: dist.DeviceMesh) -> None:
    spec = dist.DTensorSpec(mesh, CUT, (8,), "float32")
    with dist.current_tracker().distribute_region(spec) as part:
        part.random(dtype="float32")


USES: dict[str, Callable[[dist.DeviceMesh], Any]] = {
    "draw": draw,
    "region": region,
    "collective": lambda mesh: mesh.get_group().barrier(),
    "communicator": lambda mesh: mesh.communicator.all_reduce(np.ones(1)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_mesh_of_another_rank_is_refused(use: Callable[[dist.DeviceMesh], Any]) -> None:
    found: list[dist.DeviceMesh] = []

    def rank() -> None:
        if dist.get_rank() == 0:
            found.append(line())
        dist.world().barrier()
        if dist.get_rank() == 1:
            use(found[0])
        dist.world().barrier()

    with pytest.raises(DistributedError, match=r"rank 0, which made this mesh.*got rank 1"):
        dist.run(rank, ranks=2, device_type="cpu")


@pytest.mark.parametrize(
    "takes", [draw, lambda _, each: each.permutation(8)], ids=["rand", "order"]
)
def test_a_generator_that_ranks_share_is_refused(takes: Callable[..., Any]) -> None:
    """Each would take what another one should have, and their parts make up no tensor."""
    shared = nbrt.Generator(7, device="cpu:0")

    def rank() -> None:
        # Ranks 0 and 4 have the same device.
        if dist.get_rank() % 4 == 0:
            mesh = dist.DeviceMesh("cpu", [0, 4])
            takes(mesh, shared if takes is draw else dist.MeshGenerator(mesh, CUT, shared))

    with pytest.raises(DistributedError, match=r"alone, got Generator.*seed=7.*clone\(\)"):
        dist.run(rank, ranks=5, device_type="cpu")


def test_clones_and_later_runs_may_have_it() -> None:
    shared = nbrt.Generator(7, device="cpu:0")
    expected = nbrt.Generator(7, device="cpu:0").random(8, "float32").tolist()

    def rank() -> Any:
        if dist.get_rank() % 4:
            return None
        mesh = dist.DeviceMesh("cpu", [0, 4])
        return draw(mesh, shared.clone()).full_tensor().tolist()

    found = dist.run(rank, ranks=5, device_type="cpu")
    assert found[0] == found[4] == expected
    for _ in range(2):
        dist.run(lambda: draw(line(), shared), ranks=1, device_type="cpu")
    assert shared.get_offset() == 16


def test_ranks_that_a_rank_starts_may_use_its_mesh() -> None:
    def inner(mesh: dist.DeviceMesh) -> int:
        return draw(mesh).to_local().size

    def rank() -> list[int]:
        return dist.run(inner, line(), ranks=2, device_type="cpu")

    assert dist.run(rank, ranks=2, device_type="cpu") == [[4, 4], [4, 4]]


def in_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(20)


def test_a_thread_without_the_context_of_its_rank_has_no_default_generator_there() -> None:
    def rank() -> Any:
        mesh = line()
        with pytest.raises(DistributedError, match=r"context of rank [01].*copy_context\(\).run"):
            in_a_thread(lambda: draw(mesh))
        own = in_a_thread(lambda: draw(mesh, nbrt.Generator(3, device=mesh.device)).to_local())
        inside = in_a_thread(partial(copy_context().run, lambda: draw(mesh).to_local()))
        return own, inside, mesh

    nbrt.manual_seed(5)
    expected = nbrt.Generator(3).random(8, "float32"), nbrt.Generator(5).random(8, "float32")
    found = dist.run(rank, ranks=2, device_type="cpu")
    for which in range(2):
        assert np.array_equal(np.concatenate([each[which] for each in found]), expected[which])
    assert draw(found[1][2]).to_local().shape == (4,)  # the ranks have ended


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_communicators_are_not_copied(how: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"ThreadCommunicator.*use world\(\)"):
        how(dist.world())


def test_an_object_that_cannot_be_sent_leaves_the_group_as_it_was() -> None:
    def rank() -> Any:
        with pytest.raises(ArgumentTypeError, match="lock: TypeError: cannot pickle"):
            dist.world().all_gather_object(threading.Lock())
        if dist.get_rank() == 1:
            with pytest.raises(ArgumentTypeError, match="got lock"):
                dist.world().broadcast_object(threading.Lock(), root=1)
        return dist.world().all_gather_object(dist.get_rank())

    assert dist.run(rank, ranks=2) == [[0, 1]] * 2
