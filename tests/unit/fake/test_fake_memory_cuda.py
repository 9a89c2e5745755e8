"""Pools of a fake CUDA device against those of the CUDA backend, with the real CuPy."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.allocation_traces import all_traces
from helpers.guided_ranges import Guide, GuidedRanges
from nbrt.backends.cpu.memory.caching import Arena
from nbrt.backends.fake import memory_cuda
from nbrt.backends.fake.memory import POOL_KINDS, DeviceMemory, DriverNumbers, make_pool
from nbrt.errors import NotSupportedError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from helpers.allocation_traces import Event
    from nbrt.backends.cuda.backend import CudaInterface

pytestmark = pytest.mark.gpu

KIB = 1 << 10
MIB = 1 << 20
SIMULATED = DriverNumbers(context=0, page=2 * MIB, pool_unit=2 * MIB)
TRACES = all_traces()
KINDS = POOL_KINDS["cuda"]


class GuidedArena(Arena):
    """An arena that leaves the choice among equal blocks to the test."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.free = GuidedRanges()


class Pair:
    """A real pool and its fake, on which everything is done alike."""

    def __init__(self, interface: CudaInterface, kind: str, streams: int) -> None:
        try:
            self.real = interface.create_pool(0, kind, {})
        except NotSupportedError as error:
            pytest.skip(str(error))
        properties = interface.get_device_properties(0)
        free = interface.mem_get_info(0)[0]
        memory = DeviceMemory(
            "cuda",
            dataclasses.replace(properties, total_memory=free),
            enforce=True,
            driver=SIMULATED,
        )
        self.fake: Any = make_pool(memory, kind, {})
        arenas = getattr(self.fake, "_arenas", None)
        self.guide = None if arenas is None else Guide(self.real, arenas)
        self.queues = [interface.create_queue(0, 0) for _ in range(streams)]
        self.blocks: dict[int, tuple[Any, Any, Any]] = {}

    def allocate(self, name: int, nbytes: int, stream: int) -> None:
        queue = self.queues[stream]
        real = _block_or_none(self.real, queue, nbytes)
        if self.guide is not None and real is not None:
            self.guide.before(real.address)
        fake = _block_or_none(self.fake, SimpleNamespace(handle=queue.handle), nbytes)
        assert (real is None) == (fake is None)
        if real is not None:
            assert real.nbytes == fake.nbytes
            if self.guide is not None:
                self.guide.after(real.address, fake.arena, fake.position)
            self.blocks[name] = queue, real, fake

    def free(self, name: int) -> None:
        queue, real, fake = self.blocks.pop(name)
        self.real.deallocate(queue, real)
        queue.synchronize()  # the driver's own pools take memory back when the stream is there
        self.fake.deallocate(SimpleNamespace(handle=queue.handle), fake)

    def both(self, function: Callable[[Any], object]) -> None:
        function(self.real)
        function(self.fake)

    def check(self, at: object) -> None:
        """Compare what the pools say, but for the addresses."""
        assert self.fake.reserved() == self.real.reserved(), at
        found = [
            (
                pool.segment_counts(),
                sorted((each.stream, each.is_small, each.nbytes) for each in pool.segments()),
            )
            for pool in (self.real, self.fake)
        ]
        assert found[1] == found[0], at

    def close(self) -> None:
        for name in list(self.blocks):
            self.free(name)
        self.both(lambda pool: pool.close())
        self.check("the end")
        assert self.fake.reserved() == 0


def _block_or_none(pool: Any, queue: Any, nbytes: int) -> Any:
    try:
        return pool.allocate(queue, nbytes)
    except OutOfMemoryError:
        return None


@pytest.fixture
def make_pair(
    cuda_interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, int], Pair]]:
    monkeypatch.setattr(memory_cuda, "Arena", GuidedArena)
    return lambda kind, streams: Pair(cuda_interface, kind, streams)


def cases() -> Iterator[Any]:
    """Yield each trace with each kind, and how many events of it are replayed."""
    for name in TRACES:
        for kind in KINDS:
            # The simulated driver maps each of their blocks, which takes long; nbrt caches none of
            # them, so that what comes later in a trace is more of the same.
            is_slow = kind in {"plain", "async"} and not name.startswith("notebook")
            count = 800 if is_slow else len(TRACES[name])
            marks = [pytest.mark.slow] * is_slow
            yield pytest.param(name, kind, count, marks=marks, id=f"{name}-{kind}")


WHOLE = 16
"""Every such event of a trace all segments are compared; what is reserved, after each."""


@pytest.mark.parametrize(("name", "kind", "count"), list(cases()))
def test_traces_reserve_the_same(
    name: str, kind: str, count: int, make_pair: Callable[[str, int], Pair], simulation: ModuleType
) -> None:
    events: Sequence[Event] = TRACES[name][:count]
    pair = make_pair(kind, 1 + max(event.stream for event in events))
    for number, event in enumerate(events):
        if event.nbytes:
            pair.allocate(event.block, event.nbytes, event.stream)
        elif event.block in pair.blocks:
            pair.free(event.block)
        if number % WHOLE == 0:
            pair.check((number, event))
        else:
            assert pair.fake.reserved() == pair.real.reserved(), (number, event)
    pair.close()


sizes = st.one_of(
    st.integers(1, 4 * KIB),
    st.sampled_from([512, KIB, 64 * KIB, MIB, MIB + 1, 2 * MIB, 3 * MIB, 8 * MIB]),
    st.integers(1, 20 * MIB),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 99), st.just(0)),
        st.tuples(st.sampled_from(["empty", "limit", "unlimit"]), st.integers(1, 60), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("kind", KINDS)
def test_programs_reserve_the_same(
    kind: str, make_pair: Callable[[str, int], Pair], simulation: ModuleType
) -> None:
    @given(program=steps, total=st.sampled_from([16 * MIB, 64 * MIB, 256 * MIB]))
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def run(program: list[tuple[str, int, int]], total: int) -> None:
        with simulation.limited_memory(total):
            pair = make_pair(kind, 3)
            for name, (action, number, stream) in enumerate(program):
                if action == "allocate":
                    pair.allocate(name, number, stream)
                elif action == "free" and pair.blocks:
                    pair.free(list(pair.blocks)[number % len(pair.blocks)])
                elif action == "empty":
                    pair.both(lambda pool: pool.empty_cache())
                elif action != "free":
                    limit = number * MIB if action == "limit" else None
                    pair.both(lambda pool, limit=limit: pool.set_limit(limit))  # type: ignore[misc]
                pair.check((name, action, number))
            pair.close()

    run()
