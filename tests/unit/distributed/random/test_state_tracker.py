"""Named streams, seeds that ranks must agree on, and Megatron's streams."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT
from nbrt import config
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError, RankMismatchError
from nbrt.random import PhiloxState


def drawn(count: int = 4) -> list[float]:
    return nbrt.random.rand(count).tolist()


def stream(seed: int, count: int = 12) -> list[float]:
    return nbrt.Generator(seed).random(count, "float32").tolist()


def tracker_of(**seeds: int) -> dist.RNGStateTracker:
    tracker = dist.RNGStateTracker()
    for name, seed in seeds.items():
        tracker.add(name, seed)
    return tracker


# -- named streams ---------------------------------------------------------------------------------


def test_a_fork_draws_from_its_stream_and_the_default_one_goes_on() -> None:
    nbrt.manual_seed(1)
    tracker = tracker_of(a=10)
    found = [drawn()]
    with tracker.fork("a") as generator:
        assert generator is nbrt.default_generator()
        forked = drawn()
    found.append(drawn())
    with tracker.fork("a"):
        forked += drawn()
    assert forked == stream(10)[:8]
    assert found[0] + found[1] == stream(1)[:8]


def test_forks_nest_and_a_stream_entered_again_goes_on() -> None:
    nbrt.manual_seed(1)
    tracker = tracker_of(a=10, b=20)
    a, b = [], []
    with tracker.fork("a"):
        a += drawn()
        with tracker.fork("b"):
            b += drawn()
            with tracker.fork("a"):
                a += drawn()
            b += drawn()
        a += drawn()
    assert a == stream(10)
    assert b == stream(20)[:8]
    assert drawn() == stream(1)[:4]


def test_an_exception_puts_the_stream_and_the_generator_back() -> None:
    nbrt.manual_seed(1)
    tracker = tracker_of(a=10)

    def fail() -> None:
        with tracker.fork("a"):
            drawn()
            raise KeyError

    with tracker.fork("a"):
        drawn()
        with pytest.raises(KeyError):
            fail()
        assert drawn() == stream(10)[4:8]
    with pytest.raises(KeyError):
        fail()
    with tracker.fork("a"):
        assert drawn() == stream(10)[8:12]
    assert drawn() == stream(1)[:4]


def test_forks_of_two_devices_share_a_stream() -> None:
    tracker = tracker_of(a=10)
    with tracker.fork("a", "cpu:0"):
        values = nbrt.random.rand(4, device="cpu:0").tolist()
        with tracker.fork("a", "cpu:1"):
            values += nbrt.random.rand(4, device="cpu:1").tolist()
        values += nbrt.random.rand(4, device="cpu:0").tolist()
    assert values == stream(10)
    assert nbrt.random.get_offset("cpu:1") == 0


def test_states_can_be_kept_and_put_back() -> None:
    tracker = tracker_of(a=10, b=20)
    with tracker.fork("a"):
        drawn()
        kept = tracker.get_states()
        assert kept == {"a": PhiloxState(10, 4), "b": PhiloxState(20)}
        for change in (tracker.reset, lambda: tracker.set_states(kept)):
            with pytest.raises(ArgumentError, match=r"no stream to be forked, got \['a'\]"):
                change()
    tracker.reset()
    assert not tracker.is_initialized()
    tracker.set_states(kept)
    assert tracker.is_initialized()
    with tracker.fork("a"):
        assert drawn() == stream(10)[4:8]
    with pytest.raises(ArgumentTypeError, match="PhiloxStates by name"):
        tracker.set_states({"a": 3})  # type: ignore[dict-item]


def test_names_and_seeds_are_used_once() -> None:
    tracker = tracker_of(a=10)
    with pytest.raises(ArgumentError, match="'a', which is taken"):
        tracker.add("a", 11)
    with pytest.raises(ArgumentError, match="10, which another stream has"):
        tracker.add("b", 10)
    with (
        pytest.raises(ArgumentError, match=r"stream of \['a'\], got 'b'; add it first"),
        tracker.fork("b"),
    ):
        pass
    assert tracker.get_states() == {"a": PhiloxState(10)}


def test_regions_inside_a_fork_draw_from_its_stream() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2,))
        tracker = dist.current_tracker()
        tracker.add("a", 10)
        with tracker.fork("a"):
            return dist.rand(8, device_mesh=mesh, placements=[dist.Shard(0)]).to_local().tolist()

    first, second = dist.run(rank, ranks=2)
    assert first + second == stream(10)[:8]


# -- manual_seed -----------------------------------------------------------------------------------


def test_ranks_that_agree_are_seeded() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2, 2))
        generator = dist.manual_seed(5 if dist.get_rank() < 4 else 6, mesh)
        assert generator is nbrt.default_generator(mesh.device)
        return generator.state

    assert dist.run(rank, ranks=5) == [(5, 0)] * 4 + [(6, 0)]


def test_ranks_that_disagree_all_hear_who_gave_what() -> None:
    def rank() -> Any:
        mesh = dist.DeviceMesh("cpu", [2, 0, 1])
        nbrt.manual_seed(1)
        drawn()
        before = nbrt.default_generator().state
        with pytest.raises(
            RankMismatchError, match="same seed on every rank, 5 as most have, got 7 on rank 2;"
        ) as told:
            dist.manual_seed(7 if dist.get_rank() == 2 else 5, mesh)
        assert nbrt.default_generator().state == before
        assert (
            dist.manual_seed(dist.get_rank(), mesh, check=False).initial_seed() == dist.get_rank()
        )
        return str(told.value)

    assert len(set(dist.run(rank, ranks=3))) == 1


def test_a_seed_that_is_none_does_not_leave_the_others_waiting() -> None:
    def rank() -> str:
        mesh = dist.init_device_mesh("cpu", (2,))
        with pytest.raises((RankMismatchError, ArgumentTypeError)) as told:
            dist.manual_seed("seven" if dist.get_rank() else 7, mesh)  # type: ignore[arg-type]
        return type(told.value).__name__

    assert dist.run(rank, ranks=2, timeout=HANG_TIMEOUT) == [
        "RankMismatchError",
        "ArgumentTypeError",
    ]


# -- Megatron's streams ----------------------------------------------------------------------------


def test_model_parallel_streams_have_megatrons_seeds() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        tracker = dist.model_parallel_manual_seed(42, mesh)
        assert dist.get_rng_tracker() is tracker is dist.current_tracker()
        together = drawn()
        with dist.fork():
            apart = drawn()
        with dist.fork("data-parallel"):
            again = drawn()
        assert drawn() == stream(42)[4:8]
        place = mesh.get_local_rank("tp")
        assert apart == stream(42 + 2718 + place)[:4]
        assert again == together == stream(42)[:4]
        return place, apart

    found = dist.run(rank, ranks=4)
    assert [place for place, _ in found] == [0, 1, 0, 1]
    assert found[0] == found[2] != found[1] == found[3]


def test_experts_have_a_stream_where_they_have_a_dimension() -> None:
    def rank() -> Any:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "etp"))
        tracker = dist.model_parallel_manual_seed(
            1, mesh, None, expert_parallel="ep", expert_tensor_parallel="etp"
        )
        seeds = {name: state.seed for name, state in tracker.get_states().items()}
        assert seeds["model-parallel-rng"] == 1 + 2718
        dist.model_parallel_manual_seed(2, mesh, "etp")
        assert sorted(tracker.get_states()) == ["data-parallel-rng", "model-parallel-rng"]
        return seeds["expert-parallel-rng"]

    assert dist.run(rank, ranks=4) == [1025, 1026, 1125, 1126]


def test_a_seed_that_does_not_fit_changes_nothing() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (1,))
        with dist.use_tracker(tracker_of(a=10)) as tracker:
            nbrt.manual_seed(1)
            seed, error = (
                (2**64 - 1, ArgumentError) if dist.get_rank() == 0 else (1, DistributedError)
            )
            with pytest.raises(error, match=r"expected a (seed in|rank of)"):
                dist.model_parallel_manual_seed(seed, mesh, 0)
            assert tracker.get_states() == {"a": PhiloxState(10)}
            assert drawn() == stream(1)[:4]

    dist.run(rank, ranks=2)


def test_forks_may_end_in_any_order() -> None:
    """Suspended functions end their blocks when they are closed, not where they were nested."""
    nbrt.manual_seed(1)
    tracker = tracker_of(a=10, b=20)
    outer, inner = tracker.fork("a"), tracker.fork("b")
    outer.__enter__()
    a = drawn()
    inner.__enter__()
    b = drawn()
    outer.__exit__(None, None, None)
    b += drawn()
    inner.__exit__(None, None, None)
    assert drawn() == stream(1)[:4]
    with tracker.fork("a"):
        assert a + drawn() == stream(10)[:8]
    with tracker.fork("b"):
        assert b + drawn() == stream(20)


def test_forks_of_two_devices_may_end_in_any_order() -> None:
    tracker = tracker_of(a=10, b=20)
    first, second = nbrt.default_generator("cpu:0"), nbrt.default_generator("cpu:1")
    held = first.state, second.state
    outer, inner = tracker.fork("a", "cpu:0"), tracker.fork("b", "cpu:1")
    outer.__enter__()
    inner.__enter__()
    a = first.random(8, "float32").tolist()
    outer.__exit__(None, None, None)
    b = second.random(4, "float32").tolist()
    inner.__exit__(None, None, None)
    assert (first.state, second.state) == held
    assert (a, b) == (stream(10)[:8], stream(20)[:4])
    assert {name: state.offset for name, state in tracker.get_states().items()} == {"a": 8, "b": 4}


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_trackers_are_copied_with_their_streams(how: Any) -> None:
    mesh = dist.init_device_mesh("cpu", (1,))
    for tracker in (dist.SingleDeviceRNGTracker(), dist.OffsetBasedRNGTracker(mesh)):
        with dist.use_tracker(tracker):
            dist.rand(4, device_mesh=mesh)
        tracker.add("a", 10)
        tracker.distribute_region_enabled = False
        with tracker.fork("a"):
            drawn()
            made = how(tracker)
            drawn()
        assert not made.distribute_region_enabled
        with made.fork("a"):
            assert drawn() == stream(10)[4:8]
        assert tracker.get_states()["a"].offset == 8
        with pytest.raises(ArgumentError, match="another stream has"):
            made.add("b", 10)


def test_ranks_of_different_states_are_named_if_they_check() -> None:
    def rank() -> str:
        mesh = dist.init_device_mesh("cpu", (2,))
        if dist.get_rank() == 1:
            drawn()
        before = nbrt.random.get_offset()
        with pytest.raises(RankMismatchError, match=r"offset=4\) on rank 1|offset=0\) on rank 0"):
            dist.rand(4, device_mesh=mesh, placements=[dist.Shard(0)])
        assert nbrt.random.get_offset() == before
        dist.manual_seed(3, mesh)
        return str(dist.rand(4, device_mesh=mesh, placements=[dist.Shard(0)]).full_tensor())

    def off_the_mesh_too() -> str | None:
        if dist.get_rank() < 2:
            return rank()
        dist.rand(4, device_mesh=dist.init_device_mesh("cpu", (2,)))
        return None

    with config.override(distributed_check=True):
        found = dist.run(off_the_mesh_too, ranks=3)
    assert found[0] == found[1]
