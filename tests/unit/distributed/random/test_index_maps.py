"""A kernel of one's own draws the same numbers on any mesh, by the index of each element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.core import types

import nbrt
import nbrt.distributed as dist
from helpers.kernels import compile_ptx
from nbrt.distributed import Replicate, Shard, StridedShard
from nbrt_kernels.random import global_index, uniform4

SHARDINGS: list[tuple[tuple[int, ...], list[dist.Placement], tuple[int, ...]]] = [
    ((4,), [Shard(0)], (10,)),
    ((4,), [Shard(0)], (3, 5)),
    ((3,), [Shard(1)], (7, 5)),
    ((2, 2), [StridedShard(0, 2), Shard(0)], (8, 4)),
    ((2, 2), [StridedShard(0, 3), Shard(1)], (17, 3)),
    ((2, 2), [StridedShard(1, 3), StridedShard(0, 2)], (5, 11)),
    ((2, 2, 2), [Shard(0), Replicate(), StridedShard(2, 2)], (3, 2, 7)),
    ((2,), [Replicate()], (3, 4)),
    ((4,), [Shard(0)], (0, 3)),
]


def draw(out, index_map, seed):
    i = cuda.grid(1)
    if i < out.size:
        place = global_index(index_map, i)
        out[i] = uniform4(seed, 0, place // 4)[place % 4]


def where(out, index_map):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = global_index(index_map, i)


kernel = nbrt.kernel(draw)
where_kernel = nbrt.kernel(where)


@pytest.mark.parametrize(("mesh_shape", "placements", "shape"), SHARDINGS, ids=str)
def test_a_kernel_draws_its_part_of_the_single_device_draw(mesh_shape, placements, shape) -> None:
    whole = nbrt.Generator(7, device="cpu:0").random(shape, "float32")

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", mesh_shape)
        spec = dist.DTensorSpec(mesh, placements, shape, "float32")
        out = nbrt.empty(math.prod(spec.local_shape), "float32")
        if out.size:
            kernel.forall(out.size)(out, dist.index_map(spec), 7)
        nbrt.synchronize()
        tensor = dist.DTensor(out.reshape(spec.local_shape), spec)
        assert np.array_equal(tensor.full_tensor(), whole)

    dist.run(rank, ranks=math.prod(mesh_shape))


def test_places_beyond_32_bits_are_reached() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2,))
        spec = dist.DTensorSpec(mesh, [StridedShard(0, 2)], (2**31, 2**10), "float32")
        out = nbrt.empty(4, "int64")
        where_kernel.forall(4)(out, dist.index_map(spec))
        nbrt.synchronize()
        return out.tolist()

    assert dist.run(rank, ranks=2)[1] == [2**39, 2**39 + 1, 2**39 + 2, 2**39 + 3]


def test_a_block_of_rows_is_one_axis() -> None:
    mesh = dist.init_device_mesh("cpu", (1,))
    spec = dist.DTensorSpec(mesh, [Shard(0)], (6, 7, 8), "float32")
    assert dist.index_map(spec)[:2].tolist() == [0, 1]
    x = dist.rand(6, 7, device_mesh=mesh)
    assert np.array_equal(dist.index_map(x), dist.index_map(x.spec))


def test_a_rank_off_the_mesh_gets_a_map_of_nothing() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (1,))
        return dist.index_map(dist.DTensorSpec(mesh, None, (4,), "float32")).tolist()

    assert dist.run(rank, ranks=2)[1] == [0, 0]


def test_it_compiles_for_gpus() -> None:
    arrays = types.Array(types.float32, 1, "C"), types.Array(types.int64, 1, "C")
    ptx = compile_ptx(draw, (*arrays, types.uint64), (8, 0))
    assert ".visible .entry" in ptx
    assert "div.s64" in ptx or "rem.s64" in ptx
