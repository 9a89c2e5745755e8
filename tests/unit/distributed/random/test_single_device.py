"""The default tracker: every sharding draws the bits of one device, and moves the state so."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT
from helpers.mesh_draws import assert_as_on_one_device
from nbrt.distributed import Partial, Replicate, Shard, StridedShard
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceMismatchError,
    PlacementError,
    RankFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LAYOUTS: list[dict[str, Any]] = [{}, {"layout": "torch", "gpu": "H100 SXM"}]

# Mesh, placements, ranks in the world (those beyond the mesh are off it), shape.
SHARDINGS: list[tuple[tuple[int, ...], list[dist.Placement] | None, int, tuple[int, ...]]] = [
    ((1,), [Shard(0)], 1, (6,)),
    ((4,), [Shard(0)], 4, (10,)),
    ((4,), [Shard(0)], 4, (3, 5)),
    ((4,), [Shard(-1)], 6, (7, 5)),
    ((3,), None, 3, (7,)),
    ((2, 3), [Shard(1), Shard(0)], 6, (5, 7)),
    ((2, 2), [Shard(0), Shard(0)], 4, (9, 3)),
    ((2, 2), [StridedShard(0, 2), Shard(0)], 4, (8, 4)),
    ((2, 2), [StridedShard(0, 3), Shard(0)], 5, (17, 3)),
    ((2, 2), [StridedShard(1, 3), Replicate()], 4, (3, 11)),
    ((2, 2, 2), [Shard(0), Replicate(), Shard(2)], 8, (3, 2, 5)),
    ((4,), [Shard(0)], 4, (0, 3)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["element", "torch"])
@pytest.mark.parametrize(("mesh", "placements", "ranks", "shape"), SHARDINGS, ids=str)
def test_any_sharding_draws_the_same_bits(mesh, placements, ranks, shape, layout) -> None:
    def draw(generator: Any) -> tuple[Any, ...]:
        return (
            generator.random(shape, "float32"),
            generator.normal(1.0, 2.0, shape, "float32"),
            generator.integers(-3, 1000, shape, "int32"),
            generator.random(shape, "float32"),
        )

    assert_as_on_one_device(draw, mesh, placements, ranks=ranks, **layout)


@pytest.mark.parametrize(("mesh", "placements", "ranks", "shape"), SHARDINGS, ids=str)
def test_samplers_too(mesh, placements, ranks, shape) -> None:
    assert_as_on_one_device(lambda g: g.gamma(2.0, size=shape), mesh, placements, ranks=ranks)


def test_a_draw_beyond_the_grid_of_the_gpu_is_cut_where_torch_has_it() -> None:
    """With a grid of 512 threads, elements of one shard come from several turns of the kernel."""
    layout: dict[str, Any] = {"layout": "torch", "gpu": (1, 512)}
    for placements in ([Shard(0)], [Shard(1)], [StridedShard(0, 3)]):
        assert_as_on_one_device(lambda g: g.random((67, 83), "float32"), (4,), placements, **layout)


def test_ranks_that_hold_nothing_stay_in_step() -> None:
    def rank() -> list[Any]:
        mesh = dist.init_device_mesh("cpu", (3,))
        nbrt.manual_seed(3)
        x = dist.rand(2, 5, device_mesh=mesh, placements=[Shard(0)])
        return [x.to_local().shape, nbrt.random.get_offset()]

    assert dist.run(rank, ranks=4) == [[(1, 5), 12], [(1, 5), 12], [(0, 5), 12], [(0,), 12]]


def test_ranks_that_hold_nothing_refuse_what_the_others_refuse() -> None:
    def rank() -> int:
        mesh = dist.init_device_mesh("cpu", (2,))
        generator = nbrt.Generator(3)
        drawing = dist.MeshGenerator(mesh, [Shard(0)], generator)
        for size in (1, 2):
            with pytest.raises(ArgumentError, match="scale >= 0"):
                drawing.normal(0.0, -1.0, size)
        return generator.get_offset()

    assert dist.run(rank, ranks=3) == [0, 0, 0]


WRONG: dict[str, Callable[[nbrt.Generator], Any]] = {
    "values": lambda generator: generator.normal(0.0, [-1.0, 1.0, 1.0], size=3, dtype="float16"),
    "letters": lambda generator: generator.bernoulli(["a", "b"], size=2),
    "shape": lambda generator: generator.normal(0.0, np.empty(0), size=3),
    "dirichlet": lambda generator: generator.dirichlet([-1.0, 1.0], size=3),
    "colors": lambda generator: generator.multivariate_hypergeometric([3, -1], 2, size=3),
    "cov": lambda generator: generator.multivariate_normal([0.0, 0.0], [[1.0]], size=3),
    "float16": lambda generator: generator.gamma([-1.0, 1.0], size=2, dtype="float16"),
}


@pytest.mark.parametrize("draw", WRONG.values(), ids=WRONG)
def test_ranks_off_the_mesh_refuse_arrays_that_the_others_refuse(draw) -> None:
    def rank() -> int:
        mesh = dist.init_device_mesh("cpu", (2,))
        generator = nbrt.Generator(3)
        with pytest.raises((ArgumentError, ArgumentTypeError, RankFailedError)):
            draw(dist.MeshGenerator(mesh, [Shard(0)], generator))
        return generator.get_offset()

    assert dist.run(rank, ranks=3) == [0, 0, 0]


def test_worlds_die_with_their_draws() -> None:
    def rank() -> list[weakref.ref[Any]]:
        mesh, generator = dist.init_device_mesh("cpu", (2,)), nbrt.Generator(3)
        x = dist.zeros(8, device_mesh=mesh, placements=[Shard(0)])
        nbrt.random.uniform_(x)
        nbrt.random.uniform_(x, generator=generator)
        pickle.dumps(generator)
        mine = generator, nbrt.default_generator(), dist.current_tracker()
        return [weakref.ref(each) for each in (mesh, mesh.communicator, *mine)]

    dead = [reference for own in dist.run(rank, ranks=2) for reference in own]
    for _ in range(3):  # what weak dictionaries held becomes garbage after their keys
        gc.collect()
    assert [reference() for reference in dead] == [None] * 10


def test_a_generator_draws_over_meshes_in_turn() -> None:
    """It keeps what draws over the last one, and copies do not."""
    generator, plain = nbrt.Generator(3), nbrt.Generator(3)
    for mesh in (dist.init_device_mesh("cpu", (1,)), dist.init_device_mesh("cpu", (1, 1))) * 2:
        x = dist.zeros(5, device_mesh=mesh)
        copied = generator.clone()
        for own in (generator, copied):
            nbrt.random.uniform_(x, generator=own)
            assert own.state == plain.state._replace(offset=plain.get_offset() + 8)
        assert np.array_equal(x.to_local(), plain.random(5, "float32"))


def test_a_generator_draws_over_meshes_of_other_orders() -> None:
    """Of equal shapes, but a rank holds other parts."""

    def rank() -> None:
        generator, plain = nbrt.Generator(3), nbrt.Generator(3)
        for order in ([0, 1], [1, 0], [0, 1]):
            mesh = dist.DeviceMesh("cpu", order)
            x = dist.rand(5, device_mesh=mesh, placements=[Shard(0)], generator=generator)
            assert np.array_equal(x.full_tensor(), plain.random(5, "float32"))

    dist.run(rank, ranks=2)


def test_replicas_are_equal_and_partial_tensors_refused() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2,))
        before = nbrt.random.get_offset()
        with pytest.raises(PlacementError, match="no single-device values; draw it sharded"):
            dist.rand(4, device_mesh=mesh, placements=[Partial()])
        assert nbrt.random.get_offset() == before
        return dist.rand(4, device_mesh=mesh).to_local().tolist()

    first, second = dist.run(rank, ranks=2)
    assert first == second


def test_a_disabled_tracker_lets_every_rank_draw_for_itself() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2,))
        dist.current_tracker().distribute_region_enabled = False
        nbrt.manual_seed(dist.get_rank())
        x = dist.rand(8, device_mesh=mesh, placements=[Shard(0)])
        return x.to_local().tolist(), nbrt.random.get_offset()

    for number, (values, offset) in enumerate(dist.run(rank, ranks=2)):
        assert values == nbrt.Generator(number, device="cpu:0").random(4, "float32").tolist()
        assert offset == 4


def test_a_tracker_of_ones_own_says_what_every_draw_is_made_with() -> None:
    """Here by another generator, so that its values and not just its being called are seen."""
    spare = nbrt.Generator(9, device="cpu:0")

    class Spare(dist.RNGStateTracker):
        def distribute_region(self, spec: Any, generator: Any = None) -> Any:
            return super().distribute_region(spec, spare)

    mesh, own = dist.init_device_mesh("cpu", (1,)), nbrt.Generator(7, device="cpu:0")
    x = dist.empty(6, device_mesh=mesh)
    drawing = dist.MeshGenerator(mesh, None, own)
    draws: list[Callable[[], Any]] = [
        lambda: nbrt.random.uniform_(x, generator=own),
        lambda: nbrt.random.random_(x, 9, generator=own),
        lambda: nbrt.random.dropout(x, generator=own)[0],
        lambda: drawing.dirichlet([1.0, 2.0], 3),
        lambda: drawing.normal(x, size=6),
    ]
    with dist.use_tracker(Spare()):
        for draw in draws:
            offset = spare.get_offset()
            draw()
            assert spare.get_offset() > offset
    assert own.get_offset() == 0


def test_draws_over_one_mesh_do_not_mix_generators() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,))
        x = dist.empty(10, device_mesh=mesh, placements=[Shard(0)])
        own = [nbrt.Generator(seed) for seed in (1, 2)]
        single = [nbrt.Generator(seed) for seed in (1, 2)]
        nbrt.manual_seed(3)
        default = nbrt.Generator(3)
        for at in (0, 1, 1, 0):
            nbrt.random.uniform_(x, generator=own[at])
            assert x.full_tensor().tolist() == single[at].random(10, "float32").tolist()
            over = dist.MeshGenerator(mesh, [Shard(0)], own[at])
            nbrt.random.normal_(x, generator=over)
            assert x.full_tensor().tolist() == single[at].standard_normal(10, "float32").tolist()
            nbrt.random.uniform_(x)
            assert x.full_tensor().tolist() == default.random(10, "float32").tolist()
        with nbrt.random.isolated_default_generators():
            nbrt.manual_seed(1)
            nbrt.random.uniform_(x)
        expected = nbrt.Generator(1).random(10, "float32")
        assert x.full_tensor().tolist() == expected.tolist()

    dist.run(rank, ranks=2)


# -- regions ---------------------------------------------------------------------------------------


def spec_of(mesh: dist.DeviceMesh, size: int = 8) -> dist.DTensorSpec:
    return dist.DTensorSpec(mesh, [Shard(0)], (size,), "float32")


def test_regions_nest_and_go_on_where_the_last_draw_ended() -> None:
    def rank() -> list[Any]:
        mesh = dist.init_device_mesh("cpu", (2,))
        generator = nbrt.Generator(1)
        tracker, spec = dist.current_tracker(), spec_of(mesh)
        drawn = []
        with tracker.distribute_region(spec, generator) as outer:
            drawn.append(outer.random(4, "float32"))
            with tracker.distribute_region(spec, generator) as inner:
                drawn.append(inner.random(4, "float32"))
            drawn.append(outer.random(4, "float32"))
        drawn.append(generator.random(1, "float32"))
        return [each.tolist() for each in drawn]

    first, second = dist.run(rank, ranks=2)
    single = nbrt.Generator(1, device="cpu:0")
    for at in range(3):
        assert first[at] + second[at] == single.random(8, "float32").tolist()
    assert first[3] == second[3] == single.random(1, "float32").tolist()


def test_an_exception_in_a_region_puts_the_generator_back() -> None:
    mesh = dist.init_device_mesh("cpu", (1,))
    generator, tracker = nbrt.Generator(1).advance(40), dist.current_tracker()
    before = generator.state

    def fail(error: type[Exception], inside: Callable[[], None] | None = None) -> None:
        with tracker.distribute_region(spec_of(mesh), generator) as part:
            part.random(8, "float32")
            if inside is not None:
                inside()
            raise error

    def fail_within() -> None:
        moved = generator.state
        with pytest.raises(KeyError):
            fail(KeyError)
        assert generator.state == moved != before

    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError, fail_within)
    assert generator.state == before


@pytest.mark.parametrize("spawned", [0, 2])
def test_an_exception_in_a_region_puts_spawning_back(spawned: int) -> None:
    mesh = dist.init_device_mesh("cpu", (1,))
    generator, same = nbrt.Generator(1), nbrt.Generator(1)
    generator.spawn(spawned)
    same.spawn(spawned)
    region = dist.current_tracker().distribute_region(spec_of(mesh), generator)
    with pytest.raises(KeyError), region as part:  # noqa: PT012  # what comes before must not count
        part.random(8, "float32")
        with region as again:  # the same one, within itself
            again.random(8, "float32")
        part.spawn(3)
        raise KeyError
    assert generator.state == same.state
    assert generator.spawn(1)[0].state == same.spawn(1)[0].state


def test_ranks_in_regions_at_once_do_not_disturb_each_other() -> None:
    meeting = threading.Barrier(4, timeout=HANG_TIMEOUT)

    def rank() -> list[list[float]]:
        mesh = dist.init_device_mesh("cpu", (4,))
        nbrt.manual_seed(9)
        drawn = []
        with dist.current_tracker().distribute_region(spec_of(mesh)) as part:
            for _ in range(3):
                meeting.wait()
                drawn.append(part.random(2, "float32").tolist())
        return drawn

    parts = dist.run(rank, ranks=4)
    single = nbrt.Generator(9, device="cpu:0")
    for turn in range(3):
        whole = single.random(8, "float32").tolist()
        assert [x for part in parts for x in part[turn]] == whole


def test_a_region_wants_a_plain_generator_of_its_rank() -> None:
    mesh = dist.init_device_mesh("cpu", (1,))
    spec = spec_of(mesh)
    for generator, error, words in [
        (nbrt.Generator(1, device="cpu:1"), DeviceMismatchError, "this rank's device cpu:0"),
        (nbrt.Generator(1).shard(8, slice(4)), ArgumentTypeError, "draws parts already"),
        (dist.MeshGenerator(mesh), ArgumentTypeError, "draws parts already"),
        (np.random.default_rng(1), ArgumentTypeError, "nbrt.Generator"),
    ]:
        with (
            pytest.raises(error, match=words),
            dist.current_tracker().distribute_region(spec, generator),  # type: ignore[arg-type]
        ):
            pass


# -- which tracker ---------------------------------------------------------------------------------


def test_every_rank_has_a_tracker_of_its_own() -> None:
    def rank() -> tuple[int, bool]:
        tracker = dist.current_tracker()
        assert tracker is dist.current_tracker()
        assert isinstance(tracker, dist.SingleDeviceRNGTracker)
        other = dist.SingleDeviceRNGTracker()
        dist.set_tracker(other)
        assert dist.current_tracker() is other

        def fail() -> None:
            with dist.use_tracker(tracker), dist.use_tracker(None) as own:
                assert own is tracker
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert dist.current_tracker() is other
        dist.set_tracker(None)
        return id(tracker), dist.current_tracker() is tracker

    before = dist.current_tracker()
    found = dist.run(rank, ranks=3)
    assert len({number for number, _ in found}) == 3
    assert all(is_back for _, is_back in found)
    assert dist.current_tracker() is before
    with pytest.raises(ArgumentTypeError, match="RNGStateTracker"):
        dist.set_tracker("offset")  # type: ignore[arg-type]


def test_the_base_class_shares_nothing_out() -> None:
    mesh = dist.init_device_mesh("cpu", (1,))
    generator = nbrt.Generator(2)
    with dist.RNGStateTracker().distribute_region(spec_of(mesh), generator) as same:
        assert same is generator
