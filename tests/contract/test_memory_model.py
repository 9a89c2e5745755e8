"""A device's memory against a model that knows who may touch what."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import nbrt
from helpers.garbage import freeze_objects
from helpers.memory_model import (
    HostAllocator,
    Numbers,
    Span,
    address_of,
    assert_apart,
)
from nbrt.errors import OutOfMemoryError
from nbrt.runtime.commands import install_hook
from nbrt.testing import Latch

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command, RuntimeEvent

MIB = 1 << 20
SIZES = (0, 1, 100, 700, 5_000, 70_000, MIB, MIB + 1, 3 * MIB, 7 * MIB)
GROWTH = 2 * MIB
"""The most by which any pool grows beyond what it needs, when it is short of room."""

sizes = st.sampled_from(SIZES)
picks = st.integers(0, 59)


class MemoryMachine(RuleBasedStateMachine):
    """Streams move only where a rule lets them, so the model knows what each has passed."""

    device: ClassVar[nbrt.Device]
    streams: ClassVar[list[nbrt.Stream]]
    kinds: ClassVar[list[str]]

    def __init__(self) -> None:
        super().__init__()
        nbrt.synchronize(self.device)  # frees what replays of earlier tests used
        nbrt.empty_cache(self.device)
        nbrt.reset_peak_memory_stats(self.device)
        nbrt.memory.reset_accumulated_memory_stats(self.device)
        default = nbrt.memory.default_pool(self.device)
        self.start = nbrt.memory_reserved(self.device)
        self.numbers = Numbers(nbrt.memory.memory_stats(self.device))
        self.pools: list[Any] = [default]
        self.pool_numbers = [Numbers(default.stats())]
        self.allocators: dict[int, HostAllocator] = {}
        self.is_open = [True]
        self.live: list[Span] = []
        self.pending: list[Span] = []
        self.latches: dict[nbrt.Stream, list[Latch]] = {stream: [] for stream in self.streams}
        self.passed = dict.fromkeys(self.streams, 0)
        self.marks = 0

    # -- the model's side --------------------------------------------------------------------------

    def both(self, span: Span) -> tuple[Numbers, Numbers]:
        return self.numbers, self.pool_numbers[span.pool]

    def ended(self, span: Span) -> None:
        self.live.remove(span)
        span.waits = {
            stream: self.passed[stream] + len(self.latches[stream])
            for stream in span.recorded
            if self.latches[stream]
        }
        for numbers in self.both(span):
            numbers.end(span)
        self.pending.append(span)

    def settle(self) -> None:
        if self.pending:
            nbrt.memory_allocated(self.device)  # the streams get their marks
            for stream, latches in self.latches.items():
                if not latches:
                    stream.synchronize()
        for span in list(self.pending):
            if all(self.passed[stream] >= count for stream, count in span.waits.items()):
                self.pending.remove(span)
                for numbers in self.both(span):
                    numbers.give_back(span)

    def rooms(self, pool: int) -> list[int]:
        found = [nbrt.mem_get_info(self.device)[0]]
        limit = self.pools[pool].limit
        if limit is not None:
            found.append(limit - self.pools[pool].memory_reserved())
        return found

    # -- arrays ------------------------------------------------------------------------------------

    def make(self, size: int, stream: nbrt.Stream, pool: int) -> Span | None:
        if self.is_limited():
            self.let_all_pass()  # an allocation that fails waits for what is pending
        try:
            with nbrt.memory.use_pool(self.pools[pool]):
                array = nbrt.empty(size, "uint8", device=self.device, stream=stream)
        except OutOfMemoryError:
            assert min(self.rooms(pool)) < size + GROWTH
            for numbers in (self.numbers, self.pool_numbers[pool]):
                numbers.ooms += 1
            return None
        allocation: Any = stream.interface.owner_of(array)
        assert allocation.address == address_of(array)
        assert allocation.requested == size <= allocation.nbytes
        assert allocation.stream is stream
        self.marks = self.marks % 255 + 1
        span = Span(allocation.address, allocation.nbytes, size, pool, stream, [array])
        span.mark = self.marks
        if isinstance(array, np.ndarray):
            array[:1] = array[-1:] = span.mark
        self.live.append(span)
        for numbers in self.both(span):
            numbers.begin(span)
        return span

    def is_limited(self) -> bool:
        limits = [nbrt.memory.get_memory_limit(self.device), *(pool.limit for pool in self.pools)]
        return any(limit is not None for limit in limits)

    def chosen_pool(self, pick: int) -> int:
        usable = [number for number, is_open in enumerate(self.is_open) if is_open]
        return usable[pick % len(usable)]

    @rule(size=sizes, stream=picks, pool=picks)
    def allocate(self, size: int, stream: int, pool: int) -> None:
        self.make(size, self.streams[stream % len(self.streams)], self.chosen_pool(pool))

    @rule(sizes=st.lists(st.sampled_from(SIZES[:6]), min_size=2, max_size=6), pool=picks)
    def allocate_and_drop_unobserved(self, sizes: list[int], pool: int) -> None:
        """Events that are read together; the order of drops is not that of allocations."""
        stream, number = self.streams[0], self.chosen_pool(pool)
        if self.is_limited():
            return
        with nbrt.memory.use_pool(self.pools[number]):
            arrays = [nbrt.empty(size, "uint8", stream=stream) for size in sizes]
            spans = [
                Span(each.address, each.nbytes, each.requested, number, stream)
                for each in (stream.interface.owner_of(array) for array in arrays)
            ]
            del arrays[0]
            arrays.append(nbrt.empty(sizes[-1], "uint8", stream=stream))
            del arrays
        again = Span(0, spans[-1].nbytes, spans[-1].requested, number, stream)
        for numbers in self.both(again):
            for span in spans:
                numbers.begin(span)
            for span in (spans[0], None, *spans[1:], again):
                if span is None:
                    numbers.begin(again)
                else:
                    numbers.end(span)
                    numbers.give_back(span)

    def chosen(self, pick: int) -> list[Span]:
        # No precondition: whether an allocation fails depends on what earlier examples left.
        return [self.live[pick % len(self.live)]] if self.live else []

    @rule(pick=picks)
    def take_a_view(self, pick: int) -> None:
        for span in self.chosen(pick):
            span.arrays.append(span.arrays[0][pick % 3 :][:: 1 + pick % 2])

    @rule(pick=picks, which=picks)
    def drop_a_reference(self, pick: int, which: int) -> None:
        for span in self.chosen(pick):
            del span.arrays[which % len(span.arrays)]
            if not span.arrays:
                self.ended(span)

    @rule(pick=picks)
    def drop_several(self, pick: int) -> None:
        for span in self.live[pick % 3 :: 2]:
            span.arrays.clear()
            self.ended(span)

    # -- streams -----------------------------------------------------------------------------------

    @rule(pick=picks, stream=picks, view=picks)
    def record(self, pick: int, stream: int, view: int) -> None:
        chosen = self.streams[stream % len(self.streams)]
        for span in self.chosen(pick):
            nbrt.memory.record_stream(span.arrays[view % len(span.arrays)], chosen)
            if chosen is not span.stream:
                span.recorded.add(chosen)

    @precondition(lambda self: self.streams[1].interface.capabilities.concurrent_streams)
    @rule(pick=picks)
    def hold(self, pick: int) -> None:
        stream = self.streams[1 + pick % (len(self.streams) - 1)]
        if len(self.latches[stream]) < 3:
            latch = Latch()
            latch.hold(stream)
            self.latches[stream].append(latch)

    @precondition(lambda self: any(self.latches.values()))
    @rule(size=sizes, pick=picks)
    def drop_what_held_streams_use(self, size: int, pick: int) -> None:
        span = self.make(size, self.streams[0], self.chosen_pool(pick))
        if span is not None:
            for stream in self.streams[1:]:
                nbrt.memory.record_stream(span.arrays[0], stream)
                span.recorded.add(stream)
            span.arrays.clear()
            self.ended(span)

    @precondition(lambda self: any(self.latches.values()))
    @rule(pick=picks)
    def let_one_stream_move(self, pick: int) -> None:
        held = [stream for stream, latches in self.latches.items() if latches]
        self.move(held[pick % len(held)])

    @precondition(lambda self: any(self.latches.values()))
    @rule(size=sizes, pick=picks)
    def let_a_stream_move_unobserved(self, size: int, pick: int) -> None:
        """Allocations before the stream has passed add to the pending frees."""
        self.make(size, self.streams[0], self.chosen_pool(pick))
        if any(self.latches.values()):
            self.let_one_stream_move(pick)

    def move(self, stream: nbrt.Stream) -> None:
        self.latches[stream].pop(0).release()
        self.passed[stream] += 1
        if self.latches[stream]:
            self.latches[stream][0].wait_reached()
        else:
            stream.synchronize()

    def let_all_pass(self) -> None:
        for stream in self.streams:
            while self.latches[stream]:
                self.move(stream)
        self.settle()
        nbrt.memory_stats(self.device)

    def before_giving_back(self) -> None:
        if self.device.kind == "cuda":
            self.let_all_pass()  # CUDA waits for the whole device

    # -- pools and limits --------------------------------------------------------------------------

    @rule(pick=picks)
    def make_a_pool(self, pick: int) -> None:
        if sum(self.is_open) > 3:
            return
        kind = self.kinds[pick % len(self.kinds)]
        if kind == "allocator":
            allocator = self.allocators[len(self.pools)] = HostAllocator()
            pool = nbrt.MemoryPool(self.device, allocator=allocator)
        else:
            pool = nbrt.MemoryPool(self.device, kind)
        self.pools.append(pool)
        self.pool_numbers.append(Numbers(pool.stats()))
        self.is_open.append(True)

    @rule(pick=picks)
    def close_a_pool(self, pick: int) -> None:
        if len(self.pools) == 1:
            return
        number = 1 + pick % (len(self.pools) - 1)
        self.before_giving_back()
        if self.device.kind == "cuda" and any(span.pool == number for span in self.live):
            return  # their ends would give memory back
        self.pools[number].close()
        self.is_open[number] = False

    @rule(more=st.sampled_from([None, None, 0, 70_000, 3 * MIB, 24 * MIB]), pool=picks)
    def set_limit(self, more: int | None, pool: int) -> None:
        number = pool % (len(self.pools) + 1)
        if number == len(self.pools):
            limit = None if more is None else nbrt.memory_reserved(self.device) + more
            nbrt.memory.set_memory_limit(limit, self.device)
        else:
            chosen = self.pools[number]
            chosen.limit = None if more is None else chosen.memory_reserved() + more

    @rule(pool=picks)
    def empty_a_cache(self, pool: int) -> None:
        number = pool % (len(self.pools) + 1)
        self.before_giving_back()
        if number == len(self.pools):
            nbrt.empty_cache(self.device)
        else:
            self.pools[number].empty_cache()

    @rule(pick=st.integers(1, 3))
    def reset_numbers(self, pick: int) -> None:
        if pick & 1:
            nbrt.reset_peak_memory_stats(self.device)
        if pick & 2:
            nbrt.memory.reset_accumulated_memory_stats(self.device)
        for numbers in (self.numbers, *self.pool_numbers):
            numbers.reset(peaks=bool(pick & 1), sums=bool(pick & 2))

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        self.settle()
        self.check_numbers()
        self.check_blocks()

    def check_numbers(self) -> None:
        stats = nbrt.memory.memory_stats(self.device)
        self.numbers.assert_equal(stats)
        reserved = [pool.memory_reserved() for pool in self.pools]
        assert stats["reserved_bytes.all.current"] == sum(reserved)
        assert nbrt.memory_reserved(self.device) == sum(reserved)
        segments = 0
        users = {span.pool for span in self.live + self.pending}
        for number, (pool, numbers) in enumerate(zip(self.pools, self.pool_numbers, strict=True)):
            if not self.is_open[number] and number not in users:
                assert (pool.memory_reserved(), pool.segments(), pool.allocations()) == (0, [], [])
                continue
            own = pool.stats()
            numbers.assert_equal(own)
            found = pool.segments()
            segments += len(found)
            assert own["segment.all.current"] == len(found)
            assert own["reserved_bytes.all.current"] == sum(each.nbytes for each in found)
            small = sum(each.nbytes for each in found if each.is_small)
            assert own["reserved_bytes.small_pool.current"] == small
            assert pool.limit is None or pool.memory_reserved() <= pool.limit
        assert stats["segment.all.current"] == segments
        limit = nbrt.memory.get_memory_limit(self.device)
        assert limit is None or sum(reserved) <= limit
        for number, allocator in self.allocators.items():
            assert sum(size for _, size in allocator.out.values()) == reserved[number]

    def check_blocks(self) -> None:
        out = self.live + self.pending
        assert_apart(out)
        for number, pool in enumerate(self.pools):
            segments = pool.segments()
            spans = [span for span in out if span.pool == number]
            for span in spans:
                assert any(
                    each.address <= span.address
                    and span.address + span.nbytes <= each.address + each.nbytes
                    for each in segments
                )
            live = {span.address for span in self.live if span.pool == number}
            assert live <= {each.address for each in pool.allocations()}
        if self.device.kind != "cuda":
            assert all(span.holds_its_mark() for span in out)

    def teardown(self) -> None:
        for latches in self.latches.values():
            while latches:
                latches.pop(0).release()
        for span in list(self.live):
            span.arrays.clear()
            self.ended(span)
        nbrt.memory.set_memory_limit(None, self.device)
        self.pools[0].limit = None
        for pool in self.pools[1:]:
            pool.close()
        self.settle()
        nbrt.empty_cache(self.device)
        reserved = [pool.memory_reserved() for pool in self.pools]
        assert reserved == [self.start, *[0] * (len(self.pools) - 1)]
        assert nbrt.memory_reserved(self.device) == self.start
        assert not any(allocator.out for allocator in self.allocators.values())


class Looker:
    """A tap that only looks; with one, allocations and ends take another road."""

    def before(self, stream: nbrt.Stream, command: Command) -> None:
        assert command.kind in {"allocate", "free"}

    def after(self, stream: nbrt.Stream, command: Command, result: object) -> None:
        assert stream.device.kind

    def on_event(self, event: RuntimeEvent) -> None:
        assert event.nbytes >= 0


@pytest.mark.parametrize("is_watched", [False, True])
def test_memory_equals_the_model(device: nbrt.Device, is_watched: bool) -> None:
    interface = nbrt.get_interface_for_device(device)
    names: dict[str, Any] = {
        "device": device,
        "streams": [nbrt.default_stream(device), nbrt.Stream(device), nbrt.Stream(device)],
        "kinds": ["caching"],
    }
    if device.kind == "cpu":
        names["kinds"] += ["expandable", "plain"]  # which on cuda wait for all streams, too
    if device.kind != "sample":  # which takes no memory by address
        names["kinds"].append("allocator")
    assert set(names["kinds"]) <= {*interface.pool_kinds, "allocator"}
    chosen = settings(
        max_examples=15 if is_watched else 40,
        stateful_step_count=40,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    look = install_hook(Looker(), {"allocate", "free"}) if is_watched else nullcontext()
    freeze_objects()  # it is collected when memory is short
    with look:
        run_state_machine_as_test(type("Machine", (MemoryMachine,), names), settings=chosen)
