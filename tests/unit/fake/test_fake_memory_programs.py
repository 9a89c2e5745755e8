"""Programs on fake devices against real ones, by the public statistics: every number is equal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbrt
from helpers.allocation_traces import all_traces, load
from nbrt.backends.fake import memory_device
from nbrt.backends.fake.memory import POOL_KINDS, DriverNumbers
from nbrt.errors import NotSupportedError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helpers.allocation_traces import Event

KIB = 1 << 10
MIB = 1 << 20
BYTE = np.dtype(np.uint8)
TRACES = all_traces()
RECORDED = load()


def facts(pool: nbrt.MemoryPool) -> tuple[dict[str, int], list[tuple[object, ...]]]:
    """Return all statistics of a pool, and its segments without addresses and streams."""
    stats = pool.stats()
    if pool.device.kind == "cuda" and pool.kind in {"caching", "managed"}:
        # Where several free blocks are equal, CuPy takes any, which decides which ones merge.
        stats = {key: value for key, value in stats.items() if "inactive_split" not in key}
    segments = [(each.nbytes, each.is_small, each.is_expandable) for each in pool.segments()]
    return stats, sorted(segments)


def replay(events: Sequence[Event], device: str, kind: str) -> list[object]:
    """Return what a new pool says during a trace, and at the end."""
    count = 1 + max(event.stream for event in events)
    streams = [nbrt.default_stream(device), *(nbrt.Stream(device) for _ in range(count - 1))]
    arrays: dict[int, Any] = {}
    found: list[object] = []
    with nbrt.MemoryPool(device, kind) as pool, nbrt.memory.use_pool(pool):
        for number, event in enumerate(events):
            if event.nbytes:
                stream = streams[event.stream]
                arrays[event.block] = nbrt.empty(event.nbytes, BYTE, stream=stream)
            else:
                del arrays[event.block]
            if number % 50 == 0:
                found.append(facts(pool))
        found.append(facts(pool))
        arrays.clear()
        pool.empty_cache()
        found.append(facts(pool))
    return found


@pytest.mark.parametrize("kind", ["caching", "expandable"])
@pytest.mark.parametrize("name", TRACES)
def test_traces_on_a_fake_cpu(name: str, kind: str) -> None:
    real = replay(TRACES[name], "cpu:1", kind)
    with nbrt.fake("cpu", devices=2) as plan:
        fake = replay(TRACES[name], "cpu:1", kind)
    assert fake == real
    stats: Any = real[-1]
    device = nbrt.Device("cpu", 1)
    assert plan.peaks[device].allocated == stats[0]["allocated_bytes.all.peak"]
    assert plan.peaks[device].reserved == stats[0]["reserved_bytes.all.peak"]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["caching", "plain", "pinned", "managed", "async", "expandable"])
@pytest.mark.parametrize("name", RECORDED)
def test_traces_on_a_fake_gpu(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the recorded traces CuPy's choice among equal blocks changes no peak."""
    monkeypatch.setattr(memory_device, "DriverNumbers", partial(DriverNumbers, 0, 2 * MIB, 2 * MIB))
    if not nbrt.is_available("cuda"):
        pytest.skip("there is no CUDA device, real or simulated")
    try:
        real = replay(RECORDED[name], "cuda:0", kind)
    except NotSupportedError as error:
        pytest.skip(str(error))
    with nbrt.fake("cuda", gpu="H100"):
        fake = replay(RECORDED[name], "cuda:0", kind)
    assert fake == real


sizes = st.one_of(
    st.integers(0, 4 * KIB),
    st.sampled_from([KIB, 64 * KIB, MIB, MIB + 1, 3 * MIB, 8 * MIB, 20 * MIB]),
    st.integers(1, 40 * MIB),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 99), st.just(0)),
        st.tuples(st.sampled_from(["empty", "limit", "unlimit"]), st.integers(1, 99), st.just(0)),
    ),
    max_size=60,
)


def run(program: list[tuple[str, int, int]], device: str, kind: str) -> list[object]:
    """Return what a new pool says after each step of a program."""
    streams = [nbrt.default_stream(device), nbrt.Stream(device), nbrt.Stream(device)]
    arrays: list[Any] = []
    found: list[object] = []
    with nbrt.MemoryPool(device, kind) as pool, nbrt.memory.use_pool(pool):
        for action, number, place in program:
            if action == "allocate":
                try:
                    arrays.append(nbrt.empty(number, BYTE, stream=streams[place]))
                except OutOfMemoryError:
                    found.append("out of memory")
            elif action == "free" and arrays:
                del arrays[number % len(arrays)]
            elif action == "empty":
                pool.empty_cache()
            elif action in {"limit", "unlimit"}:
                pool.limit = number * MIB if action == "limit" else None
            found.append(facts(pool))
        arrays.clear()
    return found


@pytest.mark.parametrize("kind", POOL_KINDS["cpu"])
@given(program=steps)
@settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
def test_programs_on_a_fake_cpu(kind: str, program: list[tuple[str, int, int]]) -> None:
    real = run(program, "cpu:1", kind)
    with nbrt.fake("cpu", devices=2):
        fake = run(program, "cpu:1", kind)
    assert fake == real
