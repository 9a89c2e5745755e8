"""Random programs: eager, captured, replayed, and replayed with other arguments, bit for bit."""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbrt
from helpers.graph_programs import ARRAYS, N, Op, Program, World, mix, programs
from nbrt._internal import scopes
from nbrt.graphs.capture import StreamCapture
from nbrt.memory import graph_races, memory_stats

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def on_device(device: nbrt.Device) -> Iterator[None]:
    with nbrt.device(device):
        yield


def some_programs(device: nbrt.Device, **options: Any) -> st.SearchStrategy[Program]:
    # The sample backend has no control flow.
    return programs(control=device.kind != "sample", **options)


def allocated() -> tuple[int, int]:
    stats = memory_stats(nbrt.current_device())
    return stats.get("allocated_bytes.all.current", 0), stats.get("allocated.all.current", 0)


DRAW_AFTER_TEMPORARIES = Op("temporary", (0, 2, 1, 4)), Op("draw", (0, 1))
"""Memory that is free at the first draw is written by earlier nodes."""


@pytest.mark.parametrize("ops", [DRAW_AFTER_TEMPORARIES])
def test_a_program_replays_what_eager_calls_do(device: nbrt.Device, ops: tuple[Op, ...]) -> None:
    compare(device, Program(ops), deterministic=False)


@EXAMPLES
@given(data=st.data())
def test_programs_replay_what_eager_calls_do(device: nbrt.Device, data: st.DataObject) -> None:
    program = data.draw(some_programs(device))
    compare(device, program, deterministic=data.draw(st.booleans()))


def compare(device: nbrt.Device, program: Program, *, deterministic: bool) -> None:
    """Replay a program, and run it eagerly on one stream, with the same and with other arrays."""
    world, twin, other = World(device, 3), World(device, 3), World(device, 4)
    other_twin = World(device, 4)
    gc.collect()
    nbrt.synchronize()
    at_start = allocated()
    before = world.state()
    with nbrt.graph(deterministic=deterministic) as g:
        arrays = {f"array{number}": each for number, each in enumerate(world.arrays)}
        array0, array1, array2, array3, array4 = world.arrays
        program.run(world)
    assert len(arrays) == ARRAYS == len([array0, array1, array2, array3, array4])
    assert world.state() == before
    assert device.kind == "sample" or graph_races(g) == []
    for _ in range(2):
        held = allocated()
        g.replay()
        program.run(twin, serial=True)
        assert world.state() == twin.state()
        assert allocated() == held
    replaced = {name: other.arrays[int(name[-1])] for name in arrays if name in g.parameters}
    g.replay(**replaced)
    mixed = [
        other_twin.arrays[i] if f"array{i}" in replaced else each
        for i, each in enumerate(twin.arrays)
    ]
    twin.arrays, kept = mixed, twin.arrays
    program.run(twin, serial=True)
    twin.arrays = kept
    assert world.state() == twin.state()
    assert other.state()[:ARRAYS] == other_twin.state()[:ARRAYS]
    g.reset()
    nbrt.synchronize()
    assert allocated() == at_start


# -- failures --------------------------------------------------------------------------------------


class _PlantedError(Exception):
    pass


EVERYTHING = (
    Op("mix", (0, 1, 2)),
    Op("temporary", (0, 2, 1, 2)),
    Op("draw", (0, 1)),
    Op("fork", (), ((Op("mix", (0, 0, 1)), Op("draw", (1, 1))), (Op("copy", (2, 3)),))),
    Op("cond", (0, 0), ((Op("draw", (0, 2)),), (Op("mix", (1, 1, 3)),))),
    Op("loop", (1, 0), ((Op("draw", (1, 3)), Op("temporary", (0, 1, 1, 1))),)),
    Op("call", (1,)),
)
NO_CONTROL = tuple(op for op in EVERYTHING if op.name not in ("cond", "loop"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_at_any_command_leaves_everything_as_before(
    device: nbrt.Device, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(NO_CONTROL if device.kind == "sample" else EVERYTHING)
    world, twin = World(device, 3), World(device, 3)
    compare(device, program, deterministic=False)  # kernels are compiled, pools have grown
    before, frame = world.state(), scopes.current()
    record, countdown = StreamCapture.record, [0]

    def failing(capture: StreamCapture, stream: Any, *command: Any) -> Any:
        countdown[0] -= 1
        if countdown[0] == 0 and when == "before":
            raise _PlantedError
        result = record(capture, stream, *command)
        if countdown[0] == 0:
            raise _PlantedError
        return result

    monkeypatch.setattr(StreamCapture, "record", failing)
    step = 3 if device.kind == "cuda" else 1  # a capture of the simulated driver takes a second
    for place in itertools.count(1, step):
        gc.collect()
        held, countdown[0] = allocated(), place
        try:
            with nbrt.graph():
                program.run(world)
        except _PlantedError as error:
            error.__traceback__ = None
        if countdown[0] > 0:
            break
        gc.collect()
        assert world.state() == before
        assert allocated() == held
        assert scopes.current() == frame
        assert not nbrt.current_stream().is_capturing()
        assert not any(nbrt.Stream(device).is_capturing() for _ in range(32))
    assert place > 10
    monkeypatch.undo()
    with nbrt.graph() as g:
        program.run(world)
    g.replay()
    program.run(twin, serial=True)
    assert world.state() == twin.state()


# -- memory of several streams ---------------------------------------------------------------------


@pytest.mark.parametrize("is_freed_early", [False, True])
def test_memory_that_a_branch_uses_is_not_reused_before_the_join(
    device: nbrt.Device, is_freed_early: bool
) -> None:
    x, y = nbrt.full(N, 2, "int64"), nbrt.zeros(N, "int64")
    gc.collect()
    nbrt.synchronize()
    at_start = allocated()
    with nbrt.graph() as g:
        main, side = nbrt.current_stream(), nbrt.Stream()
        temporary = nbrt.full(N, 3, "int64")
        side.wait_stream(main)
        with nbrt.stream(side):
            mix.forall(N)(y, temporary, 1)
        if is_freed_early:
            del temporary
            mix.forall(N)(x, nbrt.full(N, 7, "int64"), 1)
        main.wait_stream(side)
        temporary = None
        mix.forall(N)(y, nbrt.full(N, 5, "int64"), 1)
    assert graph_races(g) == []
    g.replay()
    nbrt.synchronize()
    assert nbrt.to_host(y).tolist() == [3 * (3 + i) + 5 + i for i in range(N)]
    g.reset()
    nbrt.synchronize()
    assert allocated() == at_start
    assert memory_stats(device).get("pending.all.current", 0) == 0


def test_a_number_that_branches_use_too_has_no_common_name(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no control flow")
    flag, x, y = nbrt.full(1, 1, "int64"), nbrt.zeros(N, "int64"), nbrt.full(N, 1, "int64")
    with nbrt.graph() as g:
        mix.forall(N)(x, y, 2)
        nbrt.graphs.cond(flag, lambda: mix.forall(N)(x, y, 2))
    assert "factor" not in g.parameters
    (name,) = (each for each in g.parameters if each.endswith(".factor"))
    g.replay(**{name: 5})
    nbrt.synchronize()
    assert nbrt.to_host(x).tolist() == [3 * (5 + i) + 2 + i for i in range(N)]
