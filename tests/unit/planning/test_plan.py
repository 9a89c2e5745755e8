"""Plans of runs on real CPU devices, against the statistics of the same run."""

from __future__ import annotations

import json
import pickle
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.planning.plan import MemoryPlan
from nbrt.runtime.memory.registry import allocator_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("no_garbage")

DEVICE = "cpu:1"


@contextmanager
def planned(*devices: str) -> Iterator[MemoryPlan]:
    """Plan the run of a block on real CPU devices."""
    names = devices or (DEVICE,)
    for name in names:
        nbrt.empty(1, device=name)
        nbrt.reset_peak_memory_stats(name)
    plan = MemoryPlan("cpu", tuple(map(nbrt.Device, names)), nbrt.get_device_properties(names[0]))
    plan._start()
    try:
        yield plan
    finally:
        plan._stop()


def _statistics(device: str = DEVICE) -> tuple[int, int]:
    stats = nbrt.memory_stats(device)
    return stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]


def _peaks(plan: MemoryPlan, device: str = DEVICE) -> tuple[int, int]:
    peak = plan.peaks[device]
    return peak.allocated, peak.reserved


@nbrt.kernel
def add_one(x: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


SIZES = st.one_of(st.integers(0, 5000), st.integers(0, 3_000_000), st.just(1 << 20))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 40)), max_size=60))
def test_peaks_equal_the_statistics(steps: list[tuple[bool, int, int]]) -> None:
    live: list[Any] = []
    with planned() as plan:
        for frees, nbytes, place in steps:
            if frees and live:
                live.pop(place % len(live))
            else:
                live.append(nbrt.empty(nbytes, "uint8", device=DEVICE))
        expected = _statistics()
    assert _peaks(plan) == expected
    assert sum(holder.nbytes for holder in plan.holders) == plan.peak == expected[0]


def test_arrays_from_before_count() -> None:
    kept = nbrt.empty(3 << 20, "uint8", device=DEVICE)
    with planned() as plan:
        x = nbrt.empty(2 << 20, "uint8", device=DEVICE)
        del x, kept
        expected = _statistics()
    assert _peaks(plan) == expected
    assert plan.peak >= 5 << 20
    assert plan.peaks[DEVICE].allocated_at_end == nbrt.memory_allocated(DEVICE)


def test_an_array_that_dies_in_the_pool_counts_before_the_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = allocator_for(DEVICE).default_pool.backend
    allocate = pool.allocate
    dying: list[Any] = []

    def allocate_after_a_collection(*args: Any) -> Any:
        dying.clear()  # as the collector, which may run in any call
        return allocate(*args)

    with planned() as plan:
        dying.append(nbrt.empty(4 << 20, "uint8", device=DEVICE))
        before = plan.peak
        monkeypatch.setattr(pool, "allocate", allocate_after_a_collection)
        x = nbrt.empty(3 << 20, "uint8", device=DEVICE)
        expected = _statistics()
    assert _peaks(plan) == expected
    assert plan.peak == before
    assert sum(holder.nbytes for holder in plan.holders) == plan.peak
    del x


def test_peaks_of_pools_and_of_several_devices() -> None:
    with planned("cpu:1", "cpu:2") as plan:
        pool = nbrt.MemoryPool("cpu:2")
        with nbrt.use_pool(pool):
            a = nbrt.empty(5 << 20, "uint8", device="cpu:2")
        b = nbrt.empty(1 << 20, "uint8", device="cpu:1")
        expected = {name: _statistics(name) for name in ("cpu:1", "cpu:2")}
        del a, b
    assert {name: _peaks(plan, name) for name in expected} == expected
    assert plan.busiest.device == nbrt.Device("cpu:2")
    assert plan.peak == expected["cpu:2"][0]


def test_page_locked_memory_is_no_memory_of_the_device() -> None:
    with planned() as plan:
        x = nbrt.empty_pinned(1 << 20, "uint8", device=DEVICE)
        expected = _statistics()
    assert _peaks(plan) == expected
    assert plan.peaks[DEVICE].page_locked >= x.nbytes


def test_frees_that_wait_for_a_stream() -> None:
    side = nbrt.Stream(DEVICE)
    with planned() as plan:
        for _ in range(5):
            x = nbrt.empty(2 << 20, "uint8", device=DEVICE)
            nbrt.memory.record_stream(x, side)
            del x
        expected = _statistics()
    assert _peaks(plan) == expected


def test_threads_lose_no_event() -> None:
    def work() -> None:
        for size in range(1000):
            nbrt.empty(size + 1, "uint8", device=DEVICE)

    with planned() as plan:
        before = plan.peaks[DEVICE].allocated_at_end
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert plan.peaks[DEVICE].allocations == 4000
    assert plan.peaks[DEVICE].allocated_at_end == before


def test_holders_name_line_annotation_and_stream() -> None:
    side = nbrt.Stream(DEVICE)
    line = test_holders_name_line_annotation_and_stream.__code__.co_firstlineno
    with planned() as plan:
        with nbrt.memory.annotate("weights"):
            first = [nbrt.empty(1 << 20, "uint8", device=DEVICE) for _ in range(3)]
        with nbrt.memory.annotate("step"), nbrt.stream(side):
            second = nbrt.empty(5 << 20, "uint8", device=DEVICE)
        del first, second
    a, b = (each for each in plan.holders if each.annotations)
    assert (a.nbytes, a.arrays, a.annotations, a.lineno) == (5 << 20, 1, ("step",), line + 7)
    assert (b.nbytes, b.arrays, b.annotations, b.lineno) == (3 << 20, 3, ("weights",), line + 5)
    assert a.stream != b.stream == 0
    assert a.line == f"test_plan.py:{line + 7} test_holders_name_line_annotation_and_stream"
    assert a.filename == __file__
    peak = plan.peaks[DEVICE]
    assert (peak.line, peak.annotations) == (a.line, ("step",))


def test_the_peak_names_the_entry_of_its_annotations_and_the_work_before() -> None:
    with planned() as plan, nbrt.memory.annotate("train"):
        for size in (1, 2, 4, 3):
            with nbrt.memory.annotate("step"):
                x = nbrt.zeros(size << 20, "uint8", device=DEVICE)
                with nbrt.device(DEVICE):
                    add_one.forall(16)(x)
                y = nbrt.empty(size << 20, "uint8", device=DEVICE)
                del x, y
    peak = plan.peaks[DEVICE]
    assert (peak.annotations, peak.entries) == (("train", "step"), (1, 3))
    assert peak.work == "add_one"
    assert "in train / step (3rd time) after add_one" in str(plan)


def test_launches_copies_and_commands_are_counted() -> None:
    with planned("cpu:1", "cpu:2") as plan:
        x = nbrt.asarray(np.ones(1000), device="cpu:1")
        with nbrt.device("cpu:1"):
            for _ in range(7):
                add_one.forall(1000)(x)
        y = nbrt.to(x, "cpu:2")
        nbrt.to_host(y)
        nbrt.copy(y, y)
    assert plan.launches == {"add_one": 7}
    assert [(each.kernel, str(each.device), each.launches) for each in plan.kernels] == [
        ("add_one", "cpu:1", 7)
    ]
    assert plan.bytes_moved == {
        "host_to_device": 8000,
        "peer_to_peer": 8000,
        "device_to_host": 8000,
        "device_to_device": 8000,
    }
    links = {(str(each.source), str(each.destination)): each.nbytes for each in plan.transfers}
    assert links[("cpu:1", "cpu:2")] == links[("None", "cpu:1")] == 8000
    assert plan.commands["launch"] == 7
    assert plan.commands["copy"] == 4


def test_a_plan_is_live_in_its_block_and_fixed_after_it() -> None:
    with planned() as plan:
        before = plan.peak
        x = nbrt.empty(1 << 20, "uint8", device=DEVICE)
        assert plan.peak == before + (1 << 20)
        assert plan.snapshot()["segments"]
    y = nbrt.empty(8 << 20, "uint8", device=DEVICE)
    assert plan.peak == before + (1 << 20)
    del x, y


def test_the_snapshot_has_the_events_of_the_plan() -> None:
    with planned() as plan:
        x = nbrt.empty(1 << 20, "uint8", device=DEVICE)
        del x
        y = nbrt.empty(3 << 20, "uint8", device=DEVICE)
    found = plan.snapshot()
    trace = [each for each in found["device_traces"][1] if each["size"] >= 1 << 20]
    actions = [each["action"] for each in trace if not each["action"].startswith("segment")]
    assert actions == ["alloc", "free_requested", "free_completed", "alloc"]
    assert nbrt.memory.timeline(found, device=DEVICE).total.max() >= 3 << 20
    assert nbrt.memory.to_html(found)
    del y


def test_peaks_are_found_by_device_name_and_index() -> None:
    with planned("cpu:1", "cpu:2") as plan:
        pass
    assert plan.peaks["cpu:2"] is plan.peaks[2]
    assert plan.peaks[2] == plan.peaks[nbrt.Device("cpu", 2)]
    assert list(plan.peaks) == [nbrt.Device("cpu:1"), nbrt.Device("cpu:2")]
    assert "cpu:2" in plan.peaks
    assert "cpu:3" not in plan.peaks
    with pytest.raises(ArgumentError, match=r"expected a device of the plan \(cpu:1, cpu:2\)"):
        plan.peaks["cpu:3"]
    with pytest.raises(ArgumentTypeError, match="its name or its index"):
        plan.peaks[1.5]  # type: ignore[index]


def test_pickles_and_json_hold_the_plan_and_no_array() -> None:
    with planned() as plan:
        x = nbrt.asarray(np.ones(1000), device=DEVICE)
    text = plan.to_json()
    copied = pickle.loads(pickle.dumps(plan))
    read = MemoryPlan.from_json(text)
    assert copied.data == read.data == plan.data
    assert copied.snapshot() == plan.snapshot()
    assert str(copied) == str(plan) == str(read)
    assert read.to_json() == text
    with pytest.raises(ArgumentError, match="got one read from JSON"):
        read.snapshot()
    assert nbrt.memory_allocated(DEVICE) > 0
    before = nbrt.memory_allocated(DEVICE)
    del x
    assert nbrt.memory_allocated(DEVICE) < before


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 99}'])
def test_other_texts_are_no_plan(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"expected (the JSON text|a memory plan)"):
        MemoryPlan.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("total_memory", "x"), ("kind", 5), ("commands", {"copy": "many"}), ("assumptions", [1])],
)
def test_values_of_other_types_are_no_plan(name: str, value: object) -> None:
    with planned() as plan:
        nbrt.zeros(4, device=DEVICE)
    found = {**json.loads(plan.to_json()), name: value}
    with pytest.raises(ArgumentError, match=f"PlanData.{name} is"):
        MemoryPlan.from_json(json.dumps(found))
    found = json.loads(plan.to_json())
    found["peaks"][0]["timeline"]["times"][0] = "soon"
    with pytest.raises(ArgumentError, match=r"PlanTimeline\.times is"):
        MemoryPlan.from_json(json.dumps(found))


def test_fits_compares_reserved_bytes() -> None:
    with planned() as plan:
        x = nbrt.empty(30 << 20, "uint8", device=DEVICE)
        expected = _statistics()[1]
        del x
    assert plan.fits(expected)
    assert not plan.fits(expected - 1)
    assert plan.fits(f"{expected}B")
    assert plan.fit(expected + 5).spare == 5
    assert plan.fits()
    with pytest.raises(ArgumentError, match="expected a GPU"):
        plan.fits("no such GPU")
    with pytest.raises(ArgumentTypeError):
        plan.fits(1.5)  # type: ignore[arg-type]


def test_largest_needs_a_function() -> None:
    with planned() as plan:
        pass
    with pytest.raises(ArgumentError, match=r"call nbrt\.plan\(function, \.\.\.\)"):
        plan.largest("batch", 1, 8)
