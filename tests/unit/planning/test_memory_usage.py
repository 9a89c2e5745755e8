"""The memory of one device: peaks and holders against a recomputation from the start."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nbrt.planning import memory_usage
from nbrt.planning.memory_usage import MemoryUsage, Samples

if TYPE_CHECKING:
    import pytest


def _alloc(time: int, address: int, nbytes: int, site: Any, stream: int) -> tuple[Any, ...]:
    return ("alloc", time, None, stream, address, nbytes, site, (), None, "", nbytes)


def _free(time: int, address: int) -> tuple[Any, ...]:
    return ("free_requested", time, None, 0, address, 0, None, (), None, "", 0)


def _trace(data: Any) -> list[tuple[Any, ...]]:
    """Draw allocations and frees of them in any order; addresses are reused."""
    trace: list[tuple[Any, ...]] = []
    live: list[int] = []
    idle: list[int] = []
    for time in range(data.draw(st.integers(0, 80))):
        if live and data.draw(st.booleans()):
            address = live.pop(data.draw(st.integers(0, len(live) - 1)))
            idle.append(address)
            trace.append(_free(time, address))
        else:
            address = idle.pop() if idle and data.draw(st.booleans()) else 10_000 + time
            live.append(address)
            site, stream = data.draw(st.sampled_from("abc")), data.draw(st.integers(0, 1))
            trace.append(_alloc(time, address, data.draw(st.integers(1, 9)), site, stream))
    return trace


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_holders_at_the_peak_equal_a_recomputation(data: Any) -> None:
    trace = _trace(data)
    usage = MemoryUsage()
    # From the start again after every event: which state is the first that has most bytes?
    live: dict[int, tuple[Any, int]] = {}
    best, best_holders, best_entry = 0, Counter[Any](), None
    for entry in trace:
        if entry[0] == "alloc":
            usage.allocate(entry, (), ())
            live[entry[4]] = ((entry[6], (), entry[3]), entry[10])
        else:
            usage.free(entry[1], entry[4])
            del live[entry[4]]
        total = sum(nbytes for _, nbytes in live.values())
        if total > best:
            best, best_entry, best_holders = total, entry, Counter()
            for key, nbytes in live.values():
                best_holders[key] += nbytes
            arrays = Counter(key for key, _ in live.values())
    assert usage.peak == best
    assert usage.allocated == sum(nbytes for _, nbytes in live.values())
    assert usage.peak_entry is best_entry
    assert {key: nbytes for key, nbytes, _ in usage.at_peak()} == best_holders
    if best:
        assert {key: count for key, _, count in usage.at_peak()} == arrays


def test_memory_from_before_the_run_counts() -> None:
    class Before:
        address, nbytes, site = 64, 100, "before"

    usage = MemoryUsage()
    usage.begin(0, [Before()], 100, 4096)  # type: ignore[list-item]  # what it reads of an Allocation
    usage.allocate(_alloc(1, 256, 10, "a", 0), (), ())
    usage.free(2, 64)
    assert (usage.peak, usage.allocated, usage.peak_reserved) == (110, 10, 4096)
    assert {key[0]: nbytes for key, nbytes, _ in usage.at_peak()} == {"before": 100, "a": 10}


def test_endless_names_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_usage, "_MIN_HOLDERS_TO_DROP", 8)
    usage = MemoryUsage()
    usage.allocate(_alloc(0, 1, 1000, "kept", 0), ("first",), ())
    for step in range(1, 1000):
        usage.allocate(_alloc(step, 2, 1, "a", 0), (f"step {step}",), ())
        usage.free(step, 2)
    assert len(usage._held) <= 16
    assert usage.peak == 1001
    assert {key[1]: nbytes for key, nbytes, _ in usage.at_peak()} == {
        ("first",): 1000,
        ("step 1",): 1,
    }


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_an_array_freed_at_once_counts_as_two_events(data: Any) -> None:
    trace = _trace(data)
    single, paired = MemoryUsage(), MemoryUsage()
    size = memory_usage._MAX_SAMPLES
    memory_usage._MAX_SAMPLES = 4  # intervals with many events
    try:
        for usage in (single, paired):
            usage.begin(0, (), 0, 0)
            events = list(reversed(trace))
            while events:
                entry = events.pop()
                if entry[0] != "alloc":
                    usage.free(entry[1], entry[4])
                elif (
                    usage is paired
                    and events
                    and (events[-1][0], events[-1][4]) == ("free_requested", entry[4])
                    and usage.allocate_and_free(entry[10])
                ):
                    events.pop()
                else:
                    usage.allocate(entry, (), ())
    finally:
        memory_usage._MAX_SAMPLES = size
    for name in ("peak", "allocated", "allocations", "peak_entry"):
        assert getattr(paired, name) == getattr(single, name)
    for name in ("times", "allocated", "left", "top"):
        assert getattr(paired.samples, name) == getattr(single.samples, name)
    assert sorted(paired.at_peak()) == sorted(single.at_peak())


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.integers(0, 10**6), min_size=1, max_size=200))
def test_samples_keep_the_peak_and_the_order(values: list[int]) -> None:
    size = memory_usage._MAX_SAMPLES
    memory_usage._MAX_SAMPLES = 16
    try:
        samples = Samples()
        for time, value in enumerate(values):
            samples.add(time, value, 2 * value)
    finally:
        memory_usage._MAX_SAMPLES = size
    assert len(samples.times) == len(samples.allocated) == len(samples.reserved) <= 16
    assert samples.times == sorted(samples.times)
    assert samples.times[0] == 0
    # Each interval has the largest value of its changes.
    ends = [*samples.times[1:], len(values)]
    intervals = zip(samples.times, ends, strict=True)
    assert samples.allocated == [max(values[start:end]) for start, end in intervals]
    assert samples.reserved == [2 * value for value in samples.allocated]
