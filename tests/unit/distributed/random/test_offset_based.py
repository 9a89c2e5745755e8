"""The tracker of torch's arithmetic: equal to torch, with its collisions, which it names."""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT
from nbrt.distributed import Replicate, Shard, StridedShard
from nbrt.distributed.communicators.threads import thread_world
from nbrt.distributed.random import offset_based
from nbrt.distributed.random.offsets import compute_post_offset, compute_pre_offset
from nbrt.errors import PlacementError, RngCollisionWarning

GOLDEN = Path(__file__).parents[3] / "data" / "torch_offset_tracker.json"
TORCH: dict[str, Any] = {"layout": "torch", "gpu": "A100"}


def placement_of(text: str) -> dist.Placement:
    numbers = [int(one) for one in re.findall(r"\d+", text)]
    if text == "R":
        return Replicate()
    return StridedShard(*numbers) if text.startswith("_") else Shard(*numbers)


def test_offsets_are_those_of_torch() -> None:
    """Computed by torch 2.13's own functions; see tools/torch_offset_tracker.py."""
    cases = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    assert len(cases) > 500
    for mesh_shape, shape, names, wanted in cases:
        placements = [placement_of(name) for name in names]
        found = [
            [
                compute_pre_offset(shape, mesh_shape, place, placements),
                compute_post_offset(shape),
            ]
            for place in np.ndindex(*mesh_shape)
        ]
        assert found == wanted, (mesh_shape, shape, names)


# -- collisions ------------------------------------------------------------------------------------


def draws(
    mesh_shape: tuple[int, ...],
    placements: list[dist.Placement],
    shape: tuple[int, ...],
    tracker: str = "offset",
    ranks: int | None = None,
) -> list[list[Any]]:
    """Return, for every rank, its parts of two draws of seed 0 and the offset after each."""

    def rank() -> list[Any]:
        mesh = dist.init_device_mesh("cpu", mesh_shape)
        generator = nbrt.Generator(0, **TORCH)
        made = dist.OffsetBasedRNGTracker(mesh) if tracker == "offset" else None
        found: list[Any] = []
        with dist.use_tracker(made):
            drawing = dist.MeshGenerator(mesh, placements, generator)
            for _ in range(2):
                found.append(drawing.random(shape, "float32").to_local().ravel())
                found.append(generator.get_offset())
        return found

    return dist.run(rank, ranks=int(np.prod(mesh_shape)) if ranks is None else ranks)


def starts(
    mesh_shape: tuple[int, ...], placements: list[dist.Placement], shape: tuple[int, ...]
) -> list[int]:
    return [
        compute_pre_offset(shape, mesh_shape, place, placements)
        for place in np.ndindex(*mesh_shape)
    ]


ROWS: list[dist.Placement] = [Shard(0)]
TWICE: list[dist.Placement] = [Shard(0), Shard(0)]
FSDP_TP: list[dist.Placement] = [StridedShard(0, 2), Shard(0)]


def all_differ(parts: list[np.ndarray]) -> bool:
    values = np.concatenate(parts)
    return len(np.unique(values)) == len(values)


def test_class_a_small_shards_of_one_draw_are_equal() -> None:
    assert starts((4,), ROWS, (4,)) == [0, 4, 4, 4]
    assert starts((4,), ROWS, (8,)) == [0, 4, 4, 8]
    with pytest.warns(RngCollisionWarning, match="ranks 1, 2, 3 draw equal values"):
        parts = [found[0] for found in draws((4,), ROWS, (4,))]
    assert parts[1] == parts[2] == parts[3] != parts[0]
    with pytest.warns(RngCollisionWarning, match="ranks 1, 2 draw equal values"):
        parts = [found[0] for found in draws((4,), ROWS, (8,))]
    shown = [[round(float(x), 4) for x in part] for part in parts]
    assert shown == [[0.3990, 0.5167], [0.9722, 0.7910], [0.9722, 0.7910], [0.0194, 0.7733]]
    for shape in ((4,), (8,)):
        assert all_differ([found[0] for found in draws((4,), ROWS, shape, "single")])


@pytest.mark.parametrize("size", [8, 10, 12])
def test_class_b_the_next_draw_repeats_the_last_shard(size: int) -> None:
    end = compute_post_offset((size,))
    assert starts((4,), ROWS, (size,))[-1] == end == {8: 8, 10: 12, 12: 12}[size]
    with pytest.warns(RngCollisionWarning, match="rank 0 repeats values of rank 3 in the next"):
        found = draws((4,), ROWS, (size,))
    assert [each[1] for each in found] == [end] * 4
    last = found[3][0]
    assert np.array_equal(found[0][2][: len(last)], last)
    single = draws((4,), ROWS, (size,), "single")
    assert all_differ([each[draw] for each in single for draw in (0, 2)])


@pytest.mark.parametrize(
    ("placements", "shape", "expected", "end"),
    [(TWICE, (16,), [0, 8, 16, 24], 16), (FSDP_TP, (8, 4), [0, 16, 32, 48], 32)],
    ids=["twice", "FSDP over TP"],
)
def test_class_c_double_sharding_reaches_into_the_next_draw(
    placements, shape, expected, end
) -> None:
    assert starts((2, 2), placements, shape) == expected
    assert compute_post_offset(shape) == end
    with pytest.warns(RngCollisionWarning, match="rank 1 repeats values of rank 3 in the next"):
        found = draws((2, 2), placements, shape)
    assert np.array_equal(found[2][0], found[0][2])
    assert np.array_equal(found[3][0], found[1][2])
    single = draws((2, 2), placements, shape, "single")
    assert all_differ([each[draw] for each in single for draw in (0, 2)])


def collisions_of(
    mesh_shape: tuple[int, ...],
    placements: list[dist.Placement],
    shape: tuple[int, ...],
    words: Any = None,
) -> dist.Collisions:
    def rank() -> dist.Collisions:
        mesh = dist.init_device_mesh("cpu", mesh_shape)
        return dist.collisions(dist.DTensorSpec(mesh, placements, shape, "float32"), words)

    return dist.run(rank, ranks=int(np.prod(mesh_shape)))[0]


def test_collisions_leave_replicas_and_large_shards_alone() -> None:
    assert not any(collisions_of((4,), [Replicate()], (8,)))
    assert not any(collisions_of((2, 2), [Shard(0), Replicate()], (16,)))
    assert collisions_of((2, 2), [Replicate(), Shard(0)], (3,)).next_draw == ((1, 0),)
    assert collisions_of((4,), ROWS, (0,)) == dist.Collisions()


def test_collisions_see_shards_that_take_more_words_than_they_get() -> None:
    """A float64 takes two words in the element layout, where torch counts one for each element."""
    found = collisions_of((4,), ROWS, (16,), lambda count: 2 * count)
    assert found.overlapping == ((0, 1), (1, 2), (2, 3))
    assert found.next_draw == ((3, 0),)


def mesh_of(*shape: int) -> dist.DeviceMesh:
    """Return a mesh of any number of ranks, as the first of them sees it."""
    size = math.prod(shape)
    _, members = thread_world([None] * size)
    return dist.DeviceMesh("cpu", np.arange(size).reshape(shape), communicator=members[0])


def test_collisions_of_100_000_ranks_are_found() -> None:
    mesh = mesh_of(1000, 100)
    spec = dist.DTensorSpec(mesh, [Shard(0), Shard(1)], (1000, 100), "float32")
    found = dist.collisions(spec)
    assert found.equal[0] == (1, 2, 3, 4)
    assert sum(len(group) for group in found.equal) == 99_999
    assert str(found).endswith("more")


@pytest.mark.parametrize("size", [2**63, 2**70])
def test_collisions_of_tensors_beyond_64_bits_are_none(size: int) -> None:
    spec = dist.DTensorSpec(mesh_of(2, 2), [Shard(0), Shard(1)], (size, 4), "float32")
    assert dist.collisions(spec) == dist.collisions(spec.replaced(shape=(2**40, 4)))


@pytest.mark.parametrize("shape", [(13, 4), (8, 8), (2**31, 2**30)])
@pytest.mark.parametrize("placements", [TWICE, FSDP_TP, [Shard(1), StridedShard(1, 3)]])
def test_collisions_are_those_of_the_offsets_one_by_one(
    shape: tuple[int, int], placements: list[dist.Placement]
) -> None:
    mesh = mesh_of(4, 3)
    spec = dist.DTensorSpec(mesh, placements, shape, "float32")

    def words(count: int) -> int:
        return 4 * (count % 7) + 8

    drawn = []
    for rank, place in enumerate(itertools.product(range(4), range(3))):
        count = math.prod(dist.compute_local_shape(shape, (4, 3), place, spec.placements))
        start = compute_pre_offset(shape, (4, 3), place, spec.placements)
        drawn += [(start, start + words(count), rank)] if count else []
    leading: dict[int, tuple[int, int]] = {}
    for start, stop, rank in drawn:
        furthest, first = leading.get(start, (stop, rank))
        leading[start] = max(furthest, stop), min(first, rank)
    after = compute_post_offset(shape)
    now: set[tuple[int, int]] = set()
    later: set[tuple[int, int]] = set()
    pairs = itertools.product(leading.items(), repeat=2)
    for (start, (stop, rank)), (other, (end, second)) in pairs:
        now |= {(rank, second)} if start < other < stop else set()
        later |= {(rank, second)} if other + after < stop and start < end + after else set()
    found = dist.collisions(spec, words)
    assert {each for group in found.equal for each in group} == {
        rank for start, _, rank in drawn if [each[0] for each in drawn].count(start) > 1
    }
    assert sorted(found.overlapping) == sorted(now)
    assert sorted(found.next_draw) == sorted(later)


CUTS: list[tuple[tuple[int, ...], list[dist.Placement], tuple[int, ...]]] = [
    *(((4,), ROWS, (size,)) for size in (3, 4, 6, 8, 10, 16, 17, 40)),
    *(((2, 2), places, (9, 4)) for places in (TWICE, FSDP_TP, [Shard(1), Shard(0)])),
    ((5,), [Shard(1)], (3, 7)),
    ((2, 3), [Replicate(), Shard(0)], (7,)),
]


@pytest.mark.parametrize("layout", [TORCH, {}], ids=["torch", "element"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_collisions_are_those_that_draws_show(dtype: str, layout: dict[str, Any]) -> None:
    generator = nbrt.Generator(3, device="cpu:0", **layout)

    def words(count: int) -> int:
        return generator.layout.increment("uniform", dtype, count, (0.0, 1.0))

    for mesh_shape, placements, shape in CUTS:
        mesh = mesh_of(*mesh_shape)
        now: dict[int, list[float]] = {}
        later: dict[int, list[float]] = {}
        for rank, place in enumerate(np.ndindex(*mesh_shape)):
            size = math.prod(dist.compute_local_shape(shape, mesh_shape, place, placements))
            is_copy = any(at and p.is_replicate() for at, p in zip(place, placements, strict=True))
            if not size or is_copy:
                continue
            ahead = compute_pre_offset(shape, mesh_shape, place, placements)
            for drawn, start in ((now, ahead), (later, ahead + compute_post_offset(shape))):
                drawn[rank] = generator.clone().advance(start).random(size, dtype).tolist()
        found = dist.collisions(dist.DTensorSpec(mesh, placements, shape, dtype), words)
        assert tuple(map(sorted, found)) == shown(now, later), (mesh_shape, placements, shape)


def shown(now: dict[int, list[float]], later: dict[int, list[float]]) -> tuple[Any, ...]:
    """Return the collisions that values show, sorted."""
    groups: dict[float, list[int]] = {}
    for rank, values in now.items():
        groups.setdefault(values[0], []).append(rank)
    longest = [max(group, key=lambda rank: len(now[rank])) for group in groups.values()]
    starting = dict(zip(longest, (group[0] for group in groups.values()), strict=True))
    pairs = [(one, other) for one in longest for other in longest]
    within = [(a, b) for a, b in pairs if a != b and now[b][0] in now[a]]
    again = [(a, b) for a, b in pairs if set(now[a]) & set(later[b])]
    return (
        sorted(tuple(group) for group in groups.values() if len(group) > 1),
        sorted((starting[a], starting[b]) for a, b in within),
        sorted((starting[a], starting[b]) for a, b in again),
    )


# -- the tracker -----------------------------------------------------------------------------------


def quiet(function: Any, ranks: int) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RngCollisionWarning)
        return dist.run(function, ranks=ranks)


def test_a_warning_comes_once_for_each_kind_of_tensor() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (4,))
        with dist.use_tracker(dist.OffsetBasedRNGTracker(mesh)):
            for size in (4, 4, 8, 4):
                dist.rand(size, device_mesh=mesh, placements=ROWS)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.run(rank, ranks=4)
    assert [each.category for each in caught] == [RngCollisionWarning] * 8


def test_a_collision_that_is_an_error_moves_nothing() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (4,))
        generator = nbrt.Generator(1)
        with dist.use_tracker(dist.OffsetBasedRNGTracker(mesh)):
            drawing = dist.MeshGenerator(mesh, ROWS, generator)
            with pytest.raises(RngCollisionWarning):
                drawing.random(4)
        assert generator.get_offset() == 0

    dist.run(rank, ranks=4)


def test_regions_nest_and_restore() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,))
        me = dist.get_rank()
        generator = nbrt.Generator(1).advance(20)
        tracker = dist.OffsetBasedRNGTracker(mesh)
        spec = dist.DTensorSpec(mesh, ROWS, (32,), "float32")
        with tracker.distribute_region(spec, generator) as outer:
            assert outer.get_offset() == 20 + 16 * me
            with tracker.distribute_region(spec, generator) as inner:
                assert inner.get_offset() == 20 + 32 + 16 * me
        assert generator.get_offset() == 20 + 64

        def fail() -> None:
            with tracker.distribute_region(spec, generator) as part:
                part.random(16, "float32")
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert generator.get_offset() == 20 + 64
        tracker.distribute_region_enabled = False
        with tracker.distribute_region(spec, generator) as plain:
            assert plain is generator

    dist.run(rank, ranks=2)


def test_ranks_off_the_mesh_neither_draw_nor_move() -> None:
    def rank() -> tuple[int, int]:
        mesh = dist.init_device_mesh("cpu", (2,))
        with dist.use_tracker(dist.OffsetBasedRNGTracker(mesh)):
            x = dist.rand(32, device_mesh=mesh, placements=ROWS)
        return x.to_local().size, nbrt.random.get_offset()

    assert dist.run(rank, ranks=3) == [(16, 32), (16, 32), (0, 0)]


def test_states_are_taken_from_rank_0_with_a_warning() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (3,))
        nbrt.manual_seed(7 if dist.get_rank() == 1 else 3)
        dist.OffsetBasedRNGTracker(mesh)
        return nbrt.default_generator().state

    with pytest.warns(
        RuntimeWarning, match=r"got PhiloxState\(seed=7, offset=0\) on rank 1"
    ) as seen:
        assert dist.run(rank, ranks=3) == [(3, 0)] * 3
    assert len(seen) == 1

    def without() -> Any:
        mesh = dist.init_device_mesh("cpu", (3,))
        nbrt.manual_seed(dist.get_rank())
        dist.OffsetBasedRNGTracker(mesh, run_state_sync=False)
        return nbrt.default_generator().state.seed

    assert dist.run(without, ranks=3) == [0, 1, 2]


def test_other_draws_take_their_arguments_apart_as_well() -> None:
    meeting = threading.Barrier(2, timeout=HANG_TIMEOUT)

    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2,))
        generator = nbrt.Generator(1)
        with dist.use_tracker(dist.OffsetBasedRNGTracker(mesh)):
            drawing = dist.MeshGenerator(mesh, ROWS, generator)
            meeting.wait()
            means = np.arange(32.0)
            x = drawing.normal(means, 0.0, dtype="float32").to_local()
            order = drawing.permutation(6).full_tensor()
            with pytest.raises(PlacementError):
                dist.MeshGenerator(mesh, [dist.Partial()], generator).random(4)
        return x.tolist(), order.tolist()

    parts = quiet(rank, 2)
    assert parts[0][0] + parts[1][0] == list(range(32))
    assert sorted(parts[0][1]) == list(range(6))
    assert parts[0][1] == parts[1][1]


def test_what_is_kept_of_specs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_based, "_MAX_OFFSETS", 4)
    mesh = dist.init_device_mesh("cpu", (1,))
    tracker = dist.OffsetBasedRNGTracker(mesh)
    own, expected = nbrt.Generator(3), nbrt.Generator(3)
    with dist.use_tracker(tracker):
        for size in (4, 8, 12, 16, 20, 4, 24):
            x = dist.rand(size, device_mesh=mesh, placements=[Shard(0)], generator=own)
            assert x.to_local().tolist() == expected.random(size, "float32").tolist()
            assert 1 <= len(tracker._offsets) <= 4
