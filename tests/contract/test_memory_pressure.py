"""A device without room: what is tried, in which order, what is said, and that nothing is lost."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.garbage import freeze_objects
from nbrt import memory
from nbrt.errors import ArgumentError, ArgumentTypeError, NbrtCleanupWarning, OutOfMemoryError
from nbrt.runtime.commands import install_hook
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.runtime.commands import Command

MIB = 1 << 20
ROOM = 12 * MIB


@pytest.fixture(scope="module", autouse=True)
def quick() -> None:
    """Garbage is collected in nearly every test."""
    freeze_objects()


@pytest.fixture(autouse=True)
def on_demand() -> Iterator[None]:
    """Garbage is collected where a test says so, or memory is short."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def full(device: nbrt.Device) -> Iterator[nbrt.Device]:
    """A device that may hold 12 MiB more than what earlier tests left."""
    nbrt.synchronize(device)
    memory.empty_cache(device)
    memory.reset_accumulated_memory_stats(device)
    memory.set_memory_limit(memory.memory_reserved(device) + ROOM, device)
    yield device
    memory.set_memory_limit(None, device)


def numbers(device: nbrt.Device) -> dict[str, int]:
    stats = memory.memory_stats(device)
    return {name: stats[name] for name in stats if name.endswith((".current", "num_ooms"))}


def take(device: nbrt.Device, mib: int = 8, **more: Any) -> nbrt.typing.Array:
    return nbrt.empty(mib * MIB, "uint8", device=device, **more)


def test_the_error_says_what_there_is(full: nbrt.Device) -> None:
    others = {each.address for each in memory.allocations(full)}
    kept = take(full, 3), take(full, 3)
    freed = take(full, 4)
    del freed
    with pytest.raises(OutOfMemoryError) as caught:
        take(full, 11)
    first, *rest = str(caught.value).splitlines()
    limit = memory.get_memory_limit(full)
    reserved = memory.memory_reserved(full)
    assert f"expected room for {11 * MIB} bytes on {full}" in first
    assert f"got {memory.memory_allocated(full)} in use and {reserved} reserved" in first
    assert f"{limit} allowed by the limits" in first
    text = "\n".join(rest)
    assert "Largest free block of the pool: " in text
    mine = [each for each in memory.allocations(full) if each.address not in others]
    sizes = sum(each.nbytes for each in mine)
    assert f"  {sizes} bytes in {len(kept)} array(s): {__file__}:" in text
    assert text.count(" in take") == 1
    assert "nbrt.memory.set_memory_limit" in rest[-1]


def test_failures_are_counted_and_change_nothing(full: nbrt.Device) -> None:
    kept = take(full, 3)
    memory.empty_cache(full)
    before = numbers(full)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            take(full, 10)
    after = numbers(full)
    assert after.pop("num_ooms") == before.pop("num_ooms") + 2
    assert after == before
    stats = memory.memory_stats(full)
    assert (stats["num_alloc_retries"], stats["num_oom_rejections"]) == (2, 2)
    kept[:1]
    assert take(full, 2).size == 2 * MIB


def test_caches_of_other_pools_are_dropped_first(full: nbrt.Device) -> None:
    if full.kind == "sample":
        pytest.skip("the sample backend has no cache")
    seen: list[int] = []
    with memory.use_pool(nbrt.MemoryPool(full)) as pool:
        cached = take(full)
        del cached
    assert pool.memory_reserved() >= 8 * MIB
    with memory.attach_out_of_memory_observer(lambda *about: seen.append(1)):
        assert take(full).size
    assert seen == []
    assert memory.memory_stats(full)["num_alloc_retries"] == 1
    assert memory.memory_stats(full)["num_ooms"] == 0


def test_pending_frees_are_waited_for(
    full: nbrt.Device, side_streams: tuple[nbrt.Stream, nbrt.Stream]
) -> None:
    side = side_streams[0]
    x = take(full)
    memory.record_stream(x, side)
    with Latch() as latch:
        latch.hold(side)
        del x
        assert memory.memory_stats(full)["active_bytes.all.current"] >= 8 * MIB
        latch.wait_reached()
        waiting = threading.Thread(target=lambda: results.append(take(full).size))
        results: list[int] = []
        waiting.start()
        # The ladder's counter rises before it waits, without the allocator's lock.
        while memory.memory_stats(full)["num_sync_all_streams"] == 0:
            waiting.join(0.001)
        assert results == []
        latch.release()
        waiting.join(HANG_TIMEOUT)
    assert results == [8 * MIB]


def test_pending_frees_come_before_garbage(
    full: nbrt.Device, side_streams: tuple[nbrt.Stream, nbrt.Stream]
) -> None:
    side = side_streams[0]
    cycle: list[Any] = [take(full, 1)]
    cycle.append(cycle)
    gone = weakref.ref(cycle[0])
    x = take(full)
    memory.record_stream(x, side)
    with Latch() as latch:
        latch.hold(side)
        del cycle, x
        memory.memory_stats(full)
    assert take(full).size == 8 * MIB
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_garbage_is_collected(full: nbrt.Device) -> None:
    cycle: list[Any] = [take(full)]
    cycle.append(cycle)
    del cycle
    assert take(full).size == 8 * MIB
    assert memory.memory_stats(full)["num_ooms"] == 0


def test_an_observer_that_frees_memory_is_enough(full: nbrt.Device) -> None:
    cache = [take(full)]
    seen: list[tuple[Any, ...]] = []

    def drop(*about: Any) -> None:
        seen.append(about)
        cache.clear()

    in_use, reserved = memory.memory_allocated(full), memory.memory_reserved(full)
    with memory.attach_out_of_memory_observer(drop):
        assert take(full).size == 8 * MIB
        assert take(full, 1).size == MIB
    assert seen == [(full, 8 * MIB, in_use, reserved)]
    assert memory.memory_stats(full)["num_ooms"] == 0


def test_observers_come_last_and_in_order_until_one_helps(full: nbrt.Device) -> None:
    cycle: list[Any] = [take(full, 2)]
    cycle.append(cycle)
    gone = weakref.ref(cycle[0])
    del cycle
    kept = [take(full)]
    seen: list[object] = []
    with (
        memory.attach_out_of_memory_observer(lambda *about: seen.append(gone() is None)),
        memory.attach_out_of_memory_observer(lambda *about: kept.clear()),
        memory.attach_out_of_memory_observer(lambda *about: seen.append("not needed")),
    ):
        assert take(full, 6).size == 6 * MIB
    assert seen == [True]


def test_an_observer_that_raises_only_warns(full: nbrt.Device) -> None:
    kept = take(full)

    def fail(*about: object) -> None:
        raise LookupError("planned")

    with (
        memory.attach_out_of_memory_observer(fail),
        pytest.warns(NbrtCleanupWarning, match=r"observer failed: LookupError\('planned'\)"),
        pytest.raises(OutOfMemoryError),
    ):
        take(full)
    assert kept.size == 8 * MIB


def test_an_observer_may_allocate(full: nbrt.Device) -> None:
    kept = [take(full)]
    notes: list[Any] = []

    def note(*about: object) -> None:
        notes.append(nbrt.zeros(10, device=full))
        kept.clear()

    with memory.attach_out_of_memory_observer(note):
        assert take(full).size == 8 * MIB
    assert nbrt.to_host(notes[0]).sum() == 0


def test_an_observer_that_runs_out_itself_is_not_called_again(full: nbrt.Device) -> None:
    kept = take(full)
    calls: list[object] = []

    def greedy(*about: object) -> None:
        calls.append(about[1])
        take(full, 9)

    with (
        memory.attach_out_of_memory_observer(greedy),
        pytest.warns(NbrtCleanupWarning, match="expected room for 9437184 bytes"),
        pytest.raises(OutOfMemoryError),
    ):
        take(full)
    assert calls == [8 * MIB]
    assert kept.size == 8 * MIB


def test_an_interrupt_in_an_observer_ends_the_allocation(full: nbrt.Device) -> None:
    kept = take(full)
    before = numbers(full)

    def interrupt(*about: object) -> None:
        raise KeyboardInterrupt

    with (
        memory.attach_out_of_memory_observer(interrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        take(full)
    assert numbers(full) == before
    del kept
    assert take(full).size == 8 * MIB


def test_an_observer_is_removed_once(full: nbrt.Device) -> None:
    calls: list[object] = []
    handle = memory.attach_out_of_memory_observer(calls.append)  # type: ignore[arg-type]
    handle.remove()
    handle.remove()
    with pytest.raises(OutOfMemoryError):
        take(full, 13)
    assert calls == []
    with pytest.raises(ArgumentTypeError, match="expected an observer to call, got 3"):
        memory.attach_out_of_memory_observer(3)  # type: ignore[arg-type]


def holder_of_an_array(device: nbrt.Device, mib: int) -> weakref.ref[Any]:
    """Allocate beside a local array, which must not outlive the call."""
    local = take(device, 2)
    with contextlib.suppress(OutOfMemoryError):
        take(device, mib)
    return weakref.ref(local)


@pytest.mark.parametrize("mib", [4, 11])
def test_neither_a_retry_nor_a_failure_keeps_its_callers_alive(full: nbrt.Device, mib: int) -> None:
    """Without the help of the garbage collector, which is off here."""
    kept = [take(full)]
    with memory.attach_out_of_memory_observer(lambda *about: kept.clear()):
        assert holder_of_an_array(full, mib)() is None
    assert memory.memory_stats(full)["num_ooms"] == (mib == 11)


@pytest.mark.parametrize("shape", [-1, (-1, -1), (2, 0, -3), (1,) * 80, 2.5, (2, 1.5), "3", None])
def test_shapes_that_no_array_has_take_nothing(device: nbrt.Device, shape: Any) -> None:
    nbrt.empty(4, device=device)
    before = numbers(device)
    for _ in range(3):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="expected"):
            nbrt.empty(shape, device=device)
    assert numbers(device) == before


@pytest.mark.parametrize("size", [1 << 62, 1 << 63, 1 << 64, 1 << 100, (1 << 40, 1 << 40)])
def test_sizes_beyond_all_devices(device: nbrt.Device, size: Any) -> None:
    memory.empty_cache(device)
    before = numbers(device)
    with pytest.raises(OutOfMemoryError, match="expected room for"):
        nbrt.empty(size, "uint8", device=device)
    after = numbers(device)
    assert after.pop("num_ooms") == before.pop("num_ooms") + 1
    assert after == before


class Refusing:
    """A tap that lets nothing pass."""

    def before(self, stream: nbrt.Stream, command: Command) -> None:
        raise LookupError("planned")

    def after(self, stream: nbrt.Stream, command: Command, result: object) -> None:
        raise AssertionError("nothing was accepted")


@pytest.mark.parametrize("kind", ["allocate", "fill"])
def test_a_refused_command_takes_nothing(device: nbrt.Device, kind: Any) -> None:
    memory.empty_cache(device)
    before = numbers(device)
    with install_hook(Refusing(), [kind]):
        for size in (10, 2 * MIB):
            with pytest.raises(LookupError, match="planned"):
                nbrt.zeros(size, "uint8", device=device)
    memory.empty_cache(device)
    assert numbers(device) == before


def test_a_copy_that_cannot_be_takes_nothing(device: nbrt.Device) -> None:
    before = memory.memory_allocated(device)
    for size in (10, MIB // 2):
        with pytest.raises(ValueError, match="shape"):
            nbrt.copy(nbrt.empty((2, size), device=device), nbrt.empty((3, 5), device=device))
    assert memory.memory_allocated(device) == before


def test_work_that_fails_gives_its_arrays_back(side_stream: nbrt.Stream) -> None:
    device = side_stream.device
    before = memory.memory_allocated(device)

    def fail(array: object) -> None:
        raise ZeroDivisionError("planned")

    with Latch() as latch:
        latch.hold(side_stream)
        for _ in range(3):  # the first fails, the others are dropped
            side_stream.call(fail, nbrt.empty(2 * MIB, "uint8", stream=side_stream))
        assert memory.memory_allocated(device) - before >= 6 * MIB
    with pytest.raises(nbrt.errors.StreamError, match="planned"):
        side_stream.synchronize()
    gc.collect()
    assert memory.memory_allocated(device) == before
    side_stream.synchronize()
