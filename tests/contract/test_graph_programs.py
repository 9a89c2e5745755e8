"""Random programs: eager, captured, replayed, and replayed with other arguments, bit for bit."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbrt
from helpers.graph_programs import ARRAYS, Program, World, programs
from nbrt.memory import graph_races, memory_stats

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = settings(
    max_examples=40,
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


@EXAMPLES
@given(data=st.data())
def test_programs_replay_what_eager_calls_do(device: nbrt.Device, data: st.DataObject) -> None:
    program = data.draw(some_programs(device))
    world, twin, other = World(device, 3), World(device, 3), World(device, 4)
    other_twin = World(device, 4)
    gc.collect()
    nbrt.synchronize()
    at_start = allocated()
    before = world.state()
    with nbrt.graph(deterministic=data.draw(st.booleans())) as g:
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
