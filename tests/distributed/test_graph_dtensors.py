"""Programs of distributed tensors in graphs: one graph a rank, whose replays are eager runs."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.clocks import HANG_TIMEOUT
from helpers.dtensor_programs import S0, S1, Program, R, bits, check, draws, line, moves, outcomes
from nbrt.distributed import DTensor, Partial
from nbrt.errors import ArgumentError, CaptureError, RngCollisionWarning
from nbrt.observe.races.graph_races import find_graph_races

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with nbrt.device("cpu:0"):
        yield


def mesh_to_mesh(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
    last = dist.DeviceMesh("cpu", [mesh.size() - 1])
    terms = DTensor.from_local(x, mesh, [Partial()])
    moved = terms.redistribute(last, [S0])
    drawn = dist.rand(4, device_mesh=last, placements=[S0], generator=own)
    dist.randn(6, device_mesh=last, generator=own)
    back = drawn.redistribute(mesh, [R])
    return [moved.to_local(), drawn.to_local(), back.to_local()]


def nothing(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
    del x
    empty = DTensor.from_local(nbrt.zeros((0, 3)), mesh, [S0]).redistribute(placements=[S1])
    drawn = dist.rand(0, device_mesh=mesh, placements=[S0], generator=own)
    few = dist.rand(1, device_mesh=mesh, placements=[S0], generator=own)
    return [empty.to_local(), drawn.full_tensor(), few.full_tensor()]


def changed_in_place(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
    rows = DTensor.from_local(x, mesh, [Partial()]).redistribute(placements=[S0])
    nbrt.random.uniform_(rows, generator=own)
    whole = rows.full_tensor()
    nbrt.copy(rows.to_local(), DTensor.from_local(whole, mesh, [R]).redistribute(None, [S0])._local)
    return [rows.to_local(), whole, rows.redistribute(placements=[S1]).to_local()]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("program", [moves, draws, mesh_to_mesh, nothing, changed_in_place])
def test_replays_give_the_bits_and_states_of_eager_runs(program: Program, ranks: int) -> None:
    check(program, ranks)


def test_ranks_may_share_devices_and_their_default_streams() -> None:
    check(moves, 2 * nbrt.device_count("cpu"))


def test_nothing_moves_during_a_capture() -> None:
    captured = threading.Event()

    def rank() -> Any:
        mesh = line()
        x = nbrt.full(4, 1.0)
        if dist.get_rank():
            assert captured.wait(HANG_TIMEOUT)  # rank 0 captures without waiting for rank 1
        with nbrt.graph() as g:
            tensor = DTensor.from_local(x, mesh, [S0])
            whole = tensor.redistribute(placements=[R])
            part = whole.to_local()
            same = tensor.redistribute(placements=[S0])
        captured.set()
        assert tensor.to_local() is x
        assert same.to_local() is x
        part[:] = -1
        assert (part == -1).all()
        x[:] = dist.get_rank()
        g.replay()
        kinds = [(node["kind"], node["name"]) for node in g.nodes]
        return kinds, part.tolist(), whole.spec == DTensor.from_local(part, mesh, [R]).spec

    for kinds, values, has_spec in dist.run(rank, ranks=2):
        assert kinds == [("collective", "from_local"), ("collective", "redistribute")]
        assert values == [0.0] * 4 + [1.0] * 4
        assert has_spec


def test_replays_take_other_arrays() -> None:
    def rank() -> Any:
        mesh = line()
        x, other = nbrt.full(2, 1.0), nbrt.full(2, 10.0 + dist.get_rank())
        with nbrt.graph() as g:
            whole = DTensor.from_local(x, mesh, [S0]).full_tensor()
        g.replay(x=other)
        first = whole.tolist()
        g.replay()
        return first, whole.tolist()

    assert dist.run(rank, ranks=2) == [([10.0, 10.0, 11.0, 11.0], [1.0] * 4)] * 2


def test_collectives_run_in_branches_loops_and_graphs_inside_of_graphs() -> None:
    def rank() -> Any:
        mesh = line()
        side = nbrt.Stream()
        x = nbrt.full(2, 1.0 + dist.get_rank())
        turns, zero = nbrt.asarray([3]), nbrt.asarray([0])
        with nbrt.graph() as inner:
            total = DTensor.from_local(x, mesh, [Partial()]).full_tensor()
        with nbrt.graph() as g:
            main = nbrt.current_stream()
            side.wait_stream(main)
            with nbrt.stream(side):
                twice = DTensor.from_local(x, mesh, [Partial()]).full_tensor()

            def body() -> None:
                inner.replay()
                nbrt.copy(x, total)
                nbrt.current_stream().call(np.subtract, turns, 1, turns)

            main.wait_stream(side)
            nbrt.graphs.while_(turns, body, limit=5)
            nbrt.graphs.cond(zero, inner.replay, lambda: nbrt.copy(turns, np.array([3])))
        g.replay()
        return twice.tolist(), x.tolist(), turns.tolist()

    assert dist.run(rank, ranks=2) == [([3.0] * 2, [12.0] * 2, [3])] * 2


# -- trackers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["offset", "independent", "disabled"])
@pytest.mark.filterwarnings("ignore", category=RngCollisionWarning)
def test_other_trackers_draw_the_same_in_replays(kind: str, ranks: int) -> None:
    def program(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
        tracker: dist.RNGStateTracker = dist.RNGStateTracker()
        if kind == "offset":
            tracker = dist.OffsetBasedRNGTracker(mesh, run_state_sync=False)
        tracker.distribute_region_enabled = kind != "disabled"
        with dist.use_tracker(tracker):
            parts = draws(mesh, x, own)
            last = dist.DeviceMesh("cpu", [mesh.size() - 1])
            parts.append(dist.rand(12, device_mesh=last, placements=[S0]).to_local())
            with tracker.distribute_region(parts_spec(mesh), own) as part:
                first, second = part.random(3), part.random(3)
            return [*parts, first, second, own.random(4)]

    check(program, ranks)


def parts_spec(mesh: dist.DeviceMesh) -> dist.DTensorSpec:
    return dist.DTensorSpec(mesh, [R], (3,), "float64")


def test_a_region_that_raises_takes_no_words_of_the_graph() -> None:
    def program(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
        del x
        first = dist.rand(8, device_mesh=mesh, placements=[S0], generator=own)
        region = dist.current_tracker().distribute_region(parts_spec(mesh), own)
        with contextlib.suppress(KeyError), region as part:
            part.random()
            raise KeyError
        second = dist.rand(8, device_mesh=mesh, placements=[S0], generator=own)
        return [first.to_local(), second.to_local()]

    check(program, 2)


def test_a_named_stream_moves_at_each_replay() -> None:
    def program(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
        del x, own
        tracker = dist.current_tracker()
        if not tracker.is_initialized():
            tracker.add("one", 11 + dist.get_rank())
            tracker.add("two-rng", 99)
        before = dist.rand(6, device_mesh=mesh, placements=[S0])
        with tracker.fork("one") as generator:
            first = generator.random(3)
            with tracker.fork("two"):
                second = dist.randn(6, device_mesh=mesh, placements=[S0])
                with tracker.fork("one") as again:
                    third = again.random(2)
            fourth = generator.random(5)
        with contextlib.suppress(KeyError), tracker.fork("one") as generator:
            generator.random(8)
            raise KeyError
        after = dist.rand(6, device_mesh=mesh, placements=[S0])
        return [first, third, fourth, *(each.to_local() for each in (before, second, after))]

    eager = outcomes(program, 2, "eager")
    assert outcomes(program, 2, "captured") == eager
    assert [seed for seed, _ in eager[1][0][2].values()] == [12, 99]


def test_a_replay_inside_of_a_fork_continues_it() -> None:
    def rank(is_captured: bool) -> Any:
        tracker = dist.current_tracker()
        tracker.add("one", 11)
        x, y = nbrt.zeros(3), nbrt.zeros(3)
        turns = nbrt.asarray([2])

        def draw() -> None:
            with tracker.fork("one") as generator:
                generator.random(out=x, dtype="float32")

        def body() -> None:
            draw()
            nbrt.current_stream().call(np.subtract, turns, 1, turns)

        with nbrt.graph() as g:
            draw()
            nbrt.graphs.while_(turns, body)
        with tracker.fork("one") as generator:
            generator.random(out=y, dtype="float32")
            if is_captured:
                g.replay()
            else:
                draw()
                draw()
                draw()
            generator.random(out=y, dtype="float32")
        states = tracker.get_states()
        tracker.reset()
        with pytest.raises(ArgumentError, match="the stream 'one', which a graph draws from"):
            g.replay()
        return bits([x, y]), states

    assert dist.run(rank, True, ranks=2) == dist.run(rank, False, ranks=2)


@pytest.mark.filterwarnings("ignore", category=RngCollisionWarning)
def test_a_region_of_fixed_words_does_not_span_a_loop() -> None:
    def rank() -> None:
        mesh, own = line(), nbrt.Generator(5)
        tracker = dist.OffsetBasedRNGTracker(mesh, run_state_sync=False)
        flag = nbrt.asarray([0])
        with nbrt.graph() as g:
            with tracker.distribute_region(parts_spec(mesh), own) as part:
                part.random(3)
                with pytest.raises(CaptureError, match="split off before"):
                    nbrt.graphs.while_(flag, lambda: part.random(3))
            nbrt.graphs.while_(flag, lambda: own.random(3))
        g.replay()

    dist.run(rank, ranks=2)


def test_a_graph_replayed_in_a_fork_draws_from_the_named_stream() -> None:
    def rank(is_captured: bool) -> Any:
        tracker = dist.current_tracker()
        tracker.add("one", 11)
        generator = nbrt.default_generator().manual_seed(3)
        x, y = nbrt.zeros(3), nbrt.zeros(3)
        with nbrt.graph() as inner:
            generator.random(out=x, dtype="float32")

        def program() -> None:
            generator.random(out=y, dtype="float32")
            with tracker.fork("one"):
                inner.replay()
                inner.replay()

        if is_captured:
            with nbrt.graph() as g:
                program()
            g.replay()
        else:
            program()
        return bits([x, y]), tracker.get_states(), generator.state

    assert dist.run(rank, True, ranks=2) == dist.run(rank, False, ranks=2)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("program", [moves, draws, mesh_to_mesh, changed_in_place])
def test_the_code_of_a_graph_gives_its_bits_on_every_rank(program: Program, ranks: int) -> None:
    def rank(how: str) -> Any:
        mesh, own = line(), nbrt.Generator(5)
        x = nbrt.asarray(np.arange(12.0).reshape(4, 3) * (dist.get_rank() + 1))
        nbrt.default_generator().manual_seed(3)
        found = []
        with nbrt.graph() as g:
            arrays = program(mesh, x, own)
        calls = re.findall(r"= prim_(?:from_local|redistribute)\w*\((.*)\)", g.code)
        assert len(calls) == sum(node["kind"] == "collective" for node in g.nodes)
        assert all(re.fullmatch(r"\w+", call) for call in calls)  # an array, and nothing else
        for _ in range(2):
            if how == "replay":
                g.replay()
            else:
                exec(g.code, g.namespace)
                nbrt.synchronize()
            found.append((bits(arrays), own.state, nbrt.default_generator().state))
            x += 0.5
        return found

    assert dist.run(rank, "code", ranks=ranks, timeout=60) == dist.run(
        rank, "replay", ranks=ranks, timeout=60
    )


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_missing_event_around_a_collective_is_a_race(is_ordered: bool) -> None:
    def rank() -> Any:
        mesh, side = line(), nbrt.Stream()
        x, y = nbrt.full(4, 1.0), nbrt.full(4, 2.0)
        whole = nbrt.zeros(8)
        with nbrt.graph() as g:
            main = nbrt.current_stream()
            side.wait_stream(main)
            with nbrt.stream(side):
                nbrt.copy(x, y)
            if is_ordered:
                main.wait_stream(side)
            gathered = DTensor.from_local(x, mesh, [S0]).full_tensor()
            if is_ordered:
                side.wait_stream(main)
            with nbrt.stream(side):
                nbrt.copy(whole, gathered)
            main.wait_stream(side)
        found = find_graph_races(g._nodes, g._buffers, g.device)
        return sorted(report.kind for report in found), len(found)

    count = 0 if is_ordered else 2
    assert dist.run(rank, ranks=2) == [(["unordered_use"] * count, count)] * 2
