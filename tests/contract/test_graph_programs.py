"""Random programs: eager, captured, replayed, and replayed with other arguments, bit for bit."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbrt
from helpers.graph_programs import ARRAYS, Op, Program, World, programs
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
