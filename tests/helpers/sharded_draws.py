"""The proof that a rank runs: what it draws on each sharding, held to a draw of one device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
import nbrt.distributed as dist
from helpers.shardings import cuts_of, held_by
from nbrt import Generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helpers.shardings import Sharding
    from nbrt.testing.draws import DrawCase

__all__ = ["SEED", "bits", "differing"]

SEED, OFFSET = 2026, 28


def generator(case: DrawCase) -> Generator:
    gpu = "H100 SXM" if case.layout == "torch" else None
    return Generator(SEED, None, case.layout, gpu=gpu).advance(OFFSET)


def single_device(case: DrawCase, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the draw of one device, and the state after it."""
    rng = generator(case)
    values = getattr(rng, case.method)(size=shape, dtype=case.dtype, **case.parameters)
    return nbrt.to_host(nbrt.asarray(values)), rng.state


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(nbrt.to_host(array, copy=None)).tobytes()


def differing(case: DrawCase, wanted: Sequence[Sharding], gather: bool) -> list[str]:
    """Draw on every sharding, on the running rank; return those that are not as they should be."""
    wholes = {shape: single_device(case, shape) for shape in {one.shape for one in wanted}}
    meshes = {
        shape: dist.DeviceMesh(
            nbrt.current_device().kind, np.arange(math.prod(shape)).reshape(shape)
        )
        for shape in {one.mesh for one in wanted}
    }
    rng = generator(case)
    start = rng.state
    # Many shardings cut a shape alike.
    parts: dict[Any, tuple[tuple[int, ...], bytes]] = {}
    rank = dist.get_rank()
    wrong = []
    for one in wanted:
        rng.state = start
        over = dist.MeshGenerator(meshes[one.mesh], one.placements, generator=rng)
        drawn = getattr(over, case.method)(size=one.shape, dtype=case.dtype, **case.parameters)
        whole, state = wholes[one.shape]
        is_right = drawn.shape == whole.shape and rng.state == state
        if rank < math.prod(one.mesh):
            cuts = cuts_of(one, rank)
            part = parts.get(cuts)
            if part is None:
                held = held_by(whole, one, rank)
                assert held is not None
                part = parts[cuts] = held.shape, bits(held)
            local = drawn.to_local()
            is_right &= (local.shape, bits(local)) == part
            if gather:
                is_right &= bits(drawn.full_tensor()) == bits(whole)
        if not is_right:
            wrong.append(f"rank {rank}: {one}")
    return wrong
