"""Any sharding gives the single-device bits: every mesh of up to 8 ranks, every list of placements.

Ranks are threads. What a rank should hold is cut out of the single-device draw by brute force; bits
are compared, not values, and so are the states of the generators afterwards.
"""

from __future__ import annotations

import collections
import itertools
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt.distributed as dist
from helpers.sharded_draws import SEED, bits, differing
from helpers.shardings import MAX_RANKS, Sharding, held_by, mesh_shapes, shardings
from nbrt import Generator
from nbrt.testing.draws import DrawCase, draw_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = ((), (0,), (1,), (7,), (0, 3), (5, 3), (3, 8), (2, 3, 5))
"""None at all, empty, one, primes, fewer rows than ranks, ragged, even, three dimensions."""

MANY = tuple(shardings(mesh_shapes(least=2), ((0, 3), (5, 3), (8, 3))))
"""Three columns, since some draws have arrays of three as parameters."""

THREE_COLUMNS = ((3,), (0, 3), (1, 3), (5, 3), (2, 5, 3))

UNIFORM = DrawCase("random")
TORCH = DrawCase("standard_normal", {}, "float64", "torch")
ALL_SHARDINGS = os.environ.get("NBRT_ALL_SHARDINGS") == "1"
"""Whether all are tried, as `make shardings` does."""


def cases() -> Iterator[DrawCase]:
    """Yield all draws if all shardings are tried, else each distribution in one of its dtypes.

    The dtypes take turns, so that each is drawn from many distributions: a shard has other indices
    of elements than the whole, and neither the distribution nor the dtype changes them. The whole
    draws of each distribution in each dtype are tested by `test_frozen_bits` and
    `contract/test_distributions`.
    """
    groups = itertools.groupby(draw_cases(), lambda c: (c.method, c.layout, c.parameters))
    for number, (_, group) in enumerate(groups):
        same = tuple(group)
        yield from same if ALL_SHARDINGS else (same[number % len(same)],)


CASES = tuple(cases())
EACH = 11

MANY_SHARDINGS = 10_000
PART = 7
"""Of so many shardings every seventh is tried, each mesh and each list of placements among them."""


def on_all_ranks(
    case: DrawCase, wanted: tuple[Sharding, ...], gather: bool = False, ranks: int = MAX_RANKS
) -> list[str]:
    found = dist.run(differing, case, wanted, gather, ranks=ranks, device_type="cpu")
    return [wrong for each in found for wrong in each]


@pytest.mark.parametrize(("mesh_ndim", "count"), [(1, 256), (2, 3040), (3, 30400)])
def test_every_mesh_placement_and_shape_gives_the_single_device_bits(
    mesh_ndim: int, count: int
) -> None:
    # Also meshes with dimensions of one rank; no rank is off the mesh, which costs a third less.
    every = tuple(shardings(mesh_shapes([mesh_ndim]), SHAPES))
    assert len(every) == count
    if count > MANY_SHARDINGS and not ALL_SHARDINGS:
        every = every[::PART]
    for ranks in range(1, MAX_RANKS + 1):
        wanted = tuple(one for one in every if math.prod(one.mesh) == ranks)

        assert on_all_ranks(UNIFORM, wanted, ranks=ranks) == []


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
def test_every_distribution_and_dtype_gives_the_single_device_bits(number: int) -> None:
    case = CASES[number]
    if ALL_SHARDINGS:
        shapes = THREE_COLUMNS if has_arrays(case) else SHAPES
        wanted = tuple(shardings(mesh_shapes(), shapes))
    else:
        # One in 11, others for each draw: each sharding has its turn with several draws.
        wanted = MANY[number % EACH :: EACH]

    assert on_all_ranks(case, wanted) == []


def test_each_sharding_has_its_turn() -> None:
    assert len(MANY) > 800
    assert len(CASES) >= 5 * EACH
    dtypes = collections.Counter(case.dtype for case in CASES if case.layout == "element")
    assert min(dtypes[each] for each in ("float16", "bfloat16", "float32", "float64")) >= 5
    assert min(dtypes[each] for each in ("int32", "int64")) >= 5
    assert {case.method for case in CASES} == {case.method for case in draw_cases()}


def has_arrays(case: DrawCase) -> bool:
    return any(isinstance(value, tuple) for value in case.parameters.values())


@pytest.mark.parametrize("case", [UNIFORM, TORCH], ids=str)
def test_the_full_tensor_is_the_single_device_draw(case: DrawCase) -> None:
    assert on_all_ranks(case, MANY[::3], gather=True) == []


VECTORS: dict[str, tuple[Any, ...]] = {
    "dirichlet": ((0.5, 1.0, 3.0),),
    "multinomial": (20, (0.2, 0.3, 0.5)),
    "multivariate_hypergeometric": ((8, 5, 3), 7),
    "multivariate_normal": ((0.0, 1.0, 2.0), ((2.0, 0.5, 0.0), (0.5, 1.0, 0.3), (0.0, 0.3, 3.0))),
}


@pytest.mark.parametrize("method", VECTORS)
def test_vectors_may_be_cut_in_the_middle(method: str) -> None:
    wanted = tuple(shardings(((2, 3), (2, 2, 2)), ((7, 3),)))
    whole = getattr(Generator(SEED, "cpu:0"), method)(*VECTORS[method], size=7)

    def wrong() -> list[str]:
        found = []
        for one in wanted:
            mesh = dist.DeviceMesh("cpu", np.arange(math.prod(one.mesh)).reshape(one.mesh))
            over = dist.MeshGenerator(mesh, one.placements, generator=Generator(SEED))
            local = getattr(over, method)(*VECTORS[method], size=7).to_local()
            part = held_by(whole, one, dist.get_rank())
            if part is not None and bits(local) != bits(part):
                found.append(f"rank {dist.get_rank()}: {one}")
        return found

    assert dist.run(wrong, ranks=MAX_RANKS, device_type="cpu") == [[]] * MAX_RANKS
