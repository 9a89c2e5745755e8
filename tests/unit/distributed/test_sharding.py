"""The indices of each rank: against cut arrays of indices, against torch, and at scale."""

from __future__ import annotations

import itertools
import json
import math
import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbrt.index_sets as index_sets
from helpers.shardings import Sharding, indices_held
from nbrt.distributed import (
    Partial,
    Placement,
    Replicate,
    Shard,
    StridedShard,
    compute_local_shape,
    compute_local_shape_and_global_offset,
    global_to_local,
    local_to_global,
)
from nbrt.distributed.sharding import local_runs
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbrt.index_sets import Runs

# Written by tools/torch_sharding.py.
TORCH = json.loads((Path(__file__).parents[2] / "data" / "torch_sharding.json").read_text())


def elements(runs: Sequence[Runs]) -> list[int]:
    """Spell out runs of indices."""
    return [
        run.start + number * run.step + within
        for run in runs
        for number in range(run.count)
        for within in range(run.length)
    ]


def coordinates(mesh: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, mesh))


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    """Tensors of 0 to 3 dimensions, empty ones too, on meshes of up to 3 dimensions."""
    shape = draw(st.lists(st.integers(0, 37), max_size=3))
    mesh = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    kinds: list[st.SearchStrategy[Placement]] = [st.sampled_from([Replicate(), Partial("max")])]
    if shape:
        dims = st.integers(-len(shape), len(shape) - 1)
        kinds += [st.builds(Shard, dims), st.builds(StridedShard, dims, st.integers(1, 6))]
    placements = draw(st.lists(st.one_of(kinds), min_size=len(mesh), max_size=len(mesh)))
    return Sharding(tuple(mesh), tuple(placements), tuple(shape))


def positive(sharding: Sharding) -> Sharding:
    """Return the sharding without negative dims, for the oracle."""
    ndim = len(sharding.shape)
    places: list[Placement] = []
    for place in sharding.placements:
        if isinstance(place, Shard):
            places.append(Shard(place.dim % ndim))
        elif isinstance(place, StridedShard):
            places.append(StridedShard(place.dim % ndim, place.split_factor))
        else:
            places.append(place)
    return sharding._replace(placements=tuple(places))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(shardings())
def test_runs_are_what_cutting_an_array_gives(sharding: Sharding) -> None:
    mesh, placements, shape = sharding
    for place in coordinates(mesh):
        expected = [
            indices_held(size, dim, positive(sharding), place).tolist()
            for dim, size in enumerate(shape)
        ]
        runs = local_runs(shape, mesh, place, placements)
        assert [elements(each) for each in runs] == expected
        local, offset = compute_local_shape_and_global_offset(shape, mesh, place, placements)
        assert local == tuple(map(len, expected))
        assert offset == tuple(
            held[0] if held else size for held, size in zip(expected, shape, strict=True)
        )
        for each, size in zip(runs, shape, strict=True):
            ends = [run.start + (run.count - 1) * run.step + run.length for run in each]
            assert all(end != run.start for end, run in zip(ends, each[1:], strict=False))
            assert all(run.size for run in each) or each == ((size, 0, 1, 0),)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(shardings())
def test_every_element_is_held_once_and_the_maps_are_inverse(sharding: Sharding) -> None:
    mesh, placements, shape = sharding
    cutting = {dim for dim, place in enumerate(placements) if place.is_shard()}
    indices = list(itertools.product(*map(range, shape)))
    for index in random.Random(len(indices)).sample(indices, min(60, len(indices))):
        coordinate, local = global_to_local(shape, mesh, placements, index)
        assert {dim for dim, at in enumerate(coordinate) if at is not None} == cutting
        holders = [
            place
            for place in coordinates(mesh)
            if all(at in (None, here) for at, here in zip(coordinate, place, strict=True))
        ]
        for place in holders:
            assert local_to_global(shape, mesh, place, placements, local) == index
    # No more than the elements: each of them has a holder, so none has two.
    cut_mesh = [ranks if dim in cutting else 1 for dim, ranks in enumerate(mesh)]
    held = sum(
        math.prod(compute_local_shape(shape, mesh, place, placements))
        for place in coordinates(cut_mesh)
    )
    assert held == math.prod(shape)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shardings())
def test_local_order_is_the_order_of_the_runs(sharding: Sharding) -> None:
    mesh, placements, shape = sharding
    for place in itertools.islice(coordinates(mesh), 8):
        runs = [elements(each) for each in local_runs(shape, mesh, place, placements)]
        locals_ = itertools.product(*(range(len(each)) for each in runs))
        for local in itertools.islice(locals_, 40):
            index = local_to_global(shape, mesh, place, placements, local)
            assert index == tuple(each[at] for each, at in zip(runs, local, strict=True))


@pytest.mark.parametrize("mesh", sorted({tuple(case["mesh"]) for case in TORCH["cases"]}), ids=str)
def test_torch_cuts_alike(mesh: tuple[int, ...]) -> None:
    kinds: list[Callable[..., Placement]] = [Replicate, Shard, StridedShard]
    for case in TORCH["cases"]:
        if tuple(case["mesh"]) != mesh:
            continue
        shape = case["shape"]
        placements = [kinds[len(place)](*place) for place in case["placements"]]
        whole = np.arange(math.prod(shape), dtype="<i8").reshape(shape)
        for place, (local, offset, crc) in zip(coordinates(mesh), case["shards"], strict=True):
            found = compute_local_shape_and_global_offset(shape, mesh, place, placements)
            assert found == (tuple(local), tuple(offset)), (case, place)
            runs = local_runs(shape, mesh, place, placements)
            part = whole[np.ix_(*(np.array(elements(each), int) for each in runs))]
            assert zlib.crc32(np.ascontiguousarray(part).tobytes()) == crc, (case, place)


# -- at scale --------------------------------------------------------------------------------------


MESHES = [(1_000_000,), (1000, 1000), (100, 100, 100)]
LENGTHS = [2**48, 2**48 + 12_345, 2**62 - 1, 999_999, 1_000_001]


def levels(size_at: Callable[[int], int], ranks: int) -> Iterator[tuple[int, int]]:
    """Yield each size that ranks have, and how many have it; sizes do not grow with the rank."""
    first = 0
    while first < ranks:
        size, low, high = size_at(first), first, ranks
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if size_at(middle) == size else (low, middle)
        yield size, high - first
        first = high


def total(length: int, mesh: tuple[int, ...], before: tuple[int, ...] = ()) -> int:
    """Return how many indices all ranks hold, counting ranks of equal size at once."""
    dim = len(before)
    cut: list[Placement] = [Shard(0)] * (dim + 1)
    if dim == len(mesh):
        return compute_local_shape((length,), mesh, before, cut[:-1])[0]
    first_with: dict[int, int] = {}

    def size_at(rank: int) -> int:
        size = compute_local_shape((length,), mesh[: dim + 1], (*before, rank), cut)[0]
        first_with[size] = min(rank, first_with.get(size, rank))
        return size

    return sum(
        count * total(length, mesh, (*before, first_with[size]))
        for size, count in list(levels(size_at, mesh[dim]))
    )


def interval(length: int, mesh: tuple[int, ...], rank: int) -> tuple[int, int]:
    """Return where the part of a rank in row-major order starts and ends."""
    place = tuple(int(at) for at in np.unravel_index(rank, mesh))
    (size,), (start,) = compute_local_shape_and_global_offset(
        (length,), mesh, place, [Shard(0)] * len(mesh)
    )
    return start, start + size


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_million_ranks_hold_the_whole_without_gap_or_overlap(
    length: int, mesh: tuple[int, ...]
) -> None:
    assert total(length, mesh) == length
    chosen = random.Random(length)
    last = math.prod(mesh) - 1
    owner, _ = global_to_local((length,), mesh, [Shard(0)] * len(mesh), (length - 1,))
    holding = int(np.ravel_multi_index([at or 0 for at in owner], mesh))
    sample = {0, last - 1, max(0, holding - 1), *(chosen.randrange(last) for _ in range(60))}
    for rank in sample:
        (start, stop), (following, end) = (interval(length, mesh, rank + by) for by in (0, 1))
        # A rank without elements starts at the end of the tensor.
        assert stop == following or (following == end == length)
        assert 0 <= start <= stop <= length
    assert interval(length, mesh, 0)[0] == 0
    assert interval(length, mesh, holding)[1] == length


@pytest.mark.parametrize(
    ("mesh", "placements"),
    [
        ((1_000_000,), [Shard(0)]),
        ((1_000_000,), [StridedShard(0, 1000)]),
        ((1000, 1000), [StridedShard(0, 1000), Shard(0)]),
        ((1000, 1000), [Shard(1), Shard(0)]),
        ((100, 100, 100), [Shard(0), Replicate(), Shard(0)]),
        ((100, 100, 100), [StridedShard(1, 100), Shard(0), Shard(1)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2**48, 3), (2**31 + 7, 2**31 - 1), (5, 2**59 + 1)], ids=str)
def test_index_maps_at_scale_are_inverse(
    mesh: tuple[int, ...], placements: list[Placement], shape: tuple[int, ...]
) -> None:
    chosen = random.Random(math.prod(shape))
    corners = [tuple(size - 1 for size in shape), (0, 0)]
    for index in corners + [tuple(map(chosen.randrange, shape)) for _ in range(20)]:
        # Sizes as NumPy's ints, whose products would overflow.
        coordinate, local = global_to_local(
            list(np.array(shape)), np.array(mesh).tolist(), placements, index
        )
        place = tuple(0 if at is None else at for at in coordinate)
        assert local_to_global(tuple(np.array(shape)), mesh, place, placements, local) == index
        assert all(type(at) is int for at in (*place, *local))


def test_sharding_by_numbers_of_ranks_that_divide_it_is_one_run_of_runs() -> None:
    cuts = [StridedShard(0, 128 * 128), StridedShard(0, 128), Shard(0)]
    (runs,) = local_runs((2**48,), (128, 128, 128), (3, 4, 5), cuts)
    # Fully sharded in three levels, the innermost cut first: the coordinates read backwards.
    piece = 2**48 // 128**3
    assert runs == ((((5 * 128 + 4) * 128 + 3) * piece, piece, 1, 0),)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 40, 241, 300])
@pytest.mark.parametrize("factors", [(7, 5), (31, 2), (64, 40)])
def test_many_runs_are_composed_as_few_are(
    size: int, factors: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    placements = [StridedShard(0, factor) for factor in factors]
    held = list(range(size))
    for place in itertools.product(range(3), range(2)):
        few = local_runs((size,), (3, 2), place, placements)[0]
        with monkeypatch.context() as patch:
            patch.setattr(index_sets, "_MAX_LOOP", 0)
            many = local_runs((size,), (3, 2), place, placements)[0]
        listed = [
            [
                run.start + number * run.step + within
                for run in runs
                for number in range(run.count)
                for within in range(run.length)
            ]
            for runs in (few, many)
        ]
        assert listed[0] == listed[1]
        held = [index for index in held if index not in listed[1]]
    assert not held


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"dimension of a 1-d tensor to cut, got Shard\(dim=1"):
        compute_local_shape((8,), (2,), (0,), [Shard(1)])
    with pytest.raises(ArgumentError, match="dimension of a 0-d tensor"):
        compute_local_shape((), (2,), (0,), [Shard(0)])
    with pytest.raises(ArgumentError, match="a placement for each of the 2 dimensions"):
        compute_local_shape((8,), (2, 2), (0, 0), [Shard(0)])
    with pytest.raises(ArgumentError, match=r"coordinate in a mesh of shape \(2,\), got \(2,\)"):
        compute_local_shape((8,), (2,), (2,), [Shard(0)])
    with pytest.raises(ArgumentError, match=r"coordinate in a mesh of shape \(2,\), got \(0, 0\)"):
        compute_local_shape_and_global_offset((8,), (2,), (0, 0), [Shard(0)])
    with pytest.raises(ArgumentTypeError, match="as ints"):
        compute_local_shape((8,), (2,), (0.5,), [Shard(0)])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="negative"):
        compute_local_shape((-8,), (2,), (0,), [Shard(0)])
    with pytest.raises(ArgumentError, match="ranks along each dimension"):
        compute_local_shape((8,), (2, 0), (0, 0), [Shard(0), Replicate()])
    with pytest.raises(ArgumentTypeError, match="Shard, StridedShard, Replicate or Partial"):
        compute_local_shape((8,), (2,), (0,), ["S(0)"])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"index in a tensor of shape \(8,\), got \(8,\)"):
        global_to_local((8,), (2,), [Shard(0)], (8,))
    with pytest.raises(ArgumentError, match=r"this rank's part, of shape \(0,\), got \(0,\)"):
        local_to_global((2,), (4,), (3,), [Shard(0)], (0,))
