"""The system refuses memory at the n-th call, for every n: nothing is lost or half-allocated."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.garbage import freeze_objects
from helpers.sample_backend import SampleInterface
from nbrt import memory
from nbrt.backends.cpu.backend import CpuInterface
from nbrt.backends.cpu.memory import CachingPool, ExpandablePool, PinnedPool, PlainPool
from nbrt.backends.cpu.memory.mapping import map_segment, reserve_segment
from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Make: TypeAlias = Callable[["Faults"], tuple[nbrt.Device, nbrt.MemoryPool]]

MIB = 1 << 20
SIZES = (100, 5000, 2 * MIB, 300_000, 0, MIB + 1, 70_000, 3 * MIB)


class Faults:
    """Counts the calls to the system, and fails some of them."""

    def __init__(
        self, first: int, count: float, error: Callable[[], BaseException] = MemoryError
    ) -> None:
        self.first, self.count, self.error = first, count, error
        self.calls = 0

    def strike(self) -> None:
        self.calls += 1
        if self.first <= self.calls < self.first + self.count:
            raise self.error()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.strike()
            return function(*args)

        return call


class FaultyInterface(SampleInterface):
    faults = Faults(0, 0)

    def allocate(self, queue: Any, nbytes: int) -> Any:
        self.faults.strike()
        return super().allocate(queue, nbytes)


@pytest.fixture(params=["caching", "expandable", "plain", "pinned", "backend"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a pool whose every call to the system passes the faults."""
    made: list[nbrt.MemoryPool] = []
    if request.param == "backend":
        interface = FaultyInterface("faulty")
        nbrt.register_interface_for_device("faulty", interface)

    def make(faults: Faults) -> tuple[nbrt.Device, nbrt.MemoryPool]:
        if request.param == "backend":
            interface.faults = faults
            device = nbrt.Device("faulty", 0)
            made.append(nbrt.MemoryPool(device))
        else:
            device = nbrt.Device("cpu", 0)
            maps = faults.around(map_segment)
            memory.memory_stats(device)  # the default pool is there, and not ours
            backend = {
                "caching": lambda: CachingPool(maps),
                "expandable": lambda: ExpandablePool(maps, faults.around(reserve_segment)),
                "plain": lambda: PlainPool(maps),
                "pinned": lambda: PinnedPool(maps, lambda address, nbytes: "the test refuses"),
            }[request.param]()
            with monkeypatch.context() as patch:
                patch.setattr(CpuInterface, "create_pool", lambda *args: backend)
                made.append(nbrt.MemoryPool(device))
        return device, made[-1]

    freeze_objects()  # it is collected at every failure
    yield make
    made.clear()
    if request.param == "backend":
        nbrt.unregister_interface_for_device("faulty")


def scenario(device: nbrt.Device, pool: nbrt.MemoryPool, live: list[Any]) -> int:
    """Allocate, drop and give back; return how many allocations failed."""
    failures = 0
    with memory.use_pool(pool):
        for number, size in enumerate(SIZES):
            try:
                array = nbrt.full(size, number + 1, "uint8", device=device)
            except OutOfMemoryError as error:
                failures += 1
                found = re.match(r"expected room for (\d+) bytes on", str(error))
                assert found is not None
                assert int(found[1]) >= size
            else:
                live.append((array, number + 1))
            if number == 3:
                del live[:2]
            if number == 5:
                pool.empty_cache()
    return failures


def check(pool: nbrt.MemoryPool, live: list[Any], failures: int) -> None:
    """The pool has the arrays and nothing else."""
    stats = pool.stats()
    owners = [each.handle for each in pool.allocations()]
    assert len(owners) == stats["allocated.all.current"] == len(live)
    assert stats["requested_bytes.all.current"] == sum(array.nbytes for array, _ in live)
    assert stats["num_ooms"] == failures
    assert stats["reserved_bytes.all.current"] == pool.memory_reserved()
    assert pool.memory_reserved() == sum(each.nbytes for each in pool.segments())
    assert all(np.all(array == value) for array, value in live)


def calls_without_faults(make: Make) -> int:
    faults = Faults(0, 0)
    device, pool = make(faults)
    live: list[Any] = []
    assert scenario(device, pool, live) == 0
    check(pool, live, 0)
    return faults.calls


def no_memory() -> BaseException:
    return OSError(errno.ENOMEM, "planned")


def no_room() -> BaseException:
    return OutOfMemoryError("planned")


@pytest.mark.parametrize("count", [1, float("inf")])
def test_a_refusal_at_every_call(make: Make, count: float) -> None:
    for first in range(1, calls_without_faults(make) + 1):
        faults = Faults(first, count)
        device, pool = make(faults)
        faults.error = no_memory if device.kind == "cpu" else no_room
        memory.empty_cache(device)
        before = memory.memory_stats(device)
        live: list[Any] = []
        failures = scenario(device, pool, live)
        assert failures == 0 if count == 1 else failures > 0
        check(pool, live, failures)
        faults.count = 0
        assert scenario(device, pool, live) == 0
        check(pool, live, failures)
        live.clear()
        pool.empty_cache()
        check(pool, live, failures)
        assert pool.memory_reserved() == 0
        memory.empty_cache(device)
        after = memory.memory_stats(device)
        currents = [name for name in before if name.endswith(".current")]
        assert {name: after[name] - before[name] for name in currents} == dict.fromkeys(currents, 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_another_exception_at_every_call(make: Make, error: type[BaseException]) -> None:
    for first in range(1, calls_without_faults(make) + 1):
        faults = Faults(first, 1, lambda: error("planned"))
        device, pool = make(faults)
        live: list[Any] = []
        with pytest.raises(error, match="planned"):
            scenario(device, pool, live)
        check(pool, live, 0)
        assert scenario(device, pool, live) == 0
        check(pool, live, 0)
        live.clear()
        pool.empty_cache()
        assert pool.memory_reserved() == 0
