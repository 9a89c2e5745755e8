"""Hooks see each free once, in order, and before the memory is reused."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from nbrt.errors import NbrtCleanupWarning
from nbrt.runtime.commands import install_hook
from nbrt.runtime.memory.recording import record_stream
from nbrt.runtime.memory.registry import allocator_for
from nbrt.testing.latch import Latch

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command, RuntimeEvent

pytestmark = pytest.mark.usefixtures("no_garbage")

DEVICE = "cpu:2"


class Log:
    """A tap that writes down what it is told, with the address and the thread."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.threads: list[int] = []

    def before(self, stream: nbrt.Stream, command: Command) -> None:
        if command.kind == "free":
            self.told.append(("free", command.args[0].address))
            self.threads.append(threading.get_ident())

    def after(self, stream: nbrt.Stream, command: Command, result: Any) -> None:
        if command.kind == "allocate":
            self.told.append(("allocate", result.address))

    def on_event(self, event: RuntimeEvent) -> None:
        if event.kind in {"free_completed", "late_free_completed"}:
            subject: Any = event.subject
            self.told.append((event.kind, subject.address))

    def of(self, address: int) -> list[str]:
        return [kind for kind, where in self.told if where == address]


def make(nbytes: int = 1000) -> Any:
    return nbrt.empty(nbytes, "uint8", device=DEVICE)


def address_of(array: Any) -> int:
    return int(array.ctypes.data)


ONCE = ["allocate", "free", "free_completed"]


@pytest.fixture(autouse=True)
def nothing_else_ends() -> None:
    """Arrays of other tests are gone."""
    gc.collect()


@pytest.mark.parametrize("nbytes", [1000, 3 << 20])
def test_an_end_is_told_at_once_and_once(nbytes: int) -> None:
    log = Log()
    with install_hook(log, ("allocate", "free")):
        x = make(nbytes)
        address = address_of(x)
        del x
        assert log.of(address) == ONCE
        nbrt.memory_stats(DEVICE)
        nbrt.empty_cache(DEVICE)
    assert log.of(address) == ONCE
    assert set(log.threads) == {threading.get_ident()}


def test_a_block_is_not_used_again_before_all_are_told() -> None:
    log = Log()
    with install_hook(log, ("allocate", "free")):
        for _ in range(1000):
            make()
    uses: dict[int, list[str]] = {}
    for kind, address in log.told:
        uses.setdefault(address, []).append(kind)
    assert all(kinds == ONCE * (len(kinds) // 3) for kinds in uses.values())
    assert sum(map(len, uses.values())) == 3000
    assert len(uses) < 1000


def test_what_was_there_before_is_told_before_what_comes_next() -> None:
    x, y = make(), make()
    gone = [address_of(x), address_of(y)]
    log = Log()
    with install_hook(log, ("allocate", "free")):
        del x
        z = make()
        del y
        here = address_of(z)
        del z
    assert log.told == [
        *[(kind, gone[0]) for kind in ("free", "free_completed")],
        ("allocate", here),
        *[(kind, gone[1]) for kind in ("free", "free_completed")],
        *[(kind, here) for kind in ("free", "free_completed")],
    ]


def test_hooks_see_no_free_while_the_thread_holds_the_lock() -> None:
    """A finalizer may run in the middle of a change."""
    log, allocator = Log(), allocator_for(DEVICE)
    with install_hook(log, ("allocate", "free")):
        x = make()
        address = address_of(x)
        with allocator.lock:
            del x
            assert log.of(address) == ["allocate"]
        nbrt.memory_stats(DEVICE)
        assert log.of(address) == ONCE


def test_other_threads_need_no_lock_to_free() -> None:
    log, allocator = Log(), allocator_for(DEVICE)
    with install_hook(log, ("allocate", "free")):
        held = [make()]
        address = address_of(held[0])
        thread = threading.Thread(target=held.clear)
        with allocator.lock:
            thread.start()
            thread.join()
            assert log.of(address) == ONCE
    assert log.threads == [thread.ident]


def test_a_pool_that_closes_in_between_tells_no_end_twice() -> None:
    log = Log()
    with install_hook(log, ("allocate", "free")):
        pool = nbrt.MemoryPool(DEVICE)
        with nbrt.use_pool(pool):
            x = make()
        address = address_of(x)
        del x
        pool.close()
        assert log.of(address) == ONCE
        assert pool.memory_reserved() == 0


def test_a_late_end_is_told_as_such() -> None:
    log, side = Log(), nbrt.Stream(DEVICE)
    with install_hook(log, ("allocate", "free")), Latch() as latch:
        x = make()
        address = address_of(x)
        latch.hold(side)
        record_stream(x, side)
        del x
        assert log.of(address) == ONCE[:2]
        latch.release()
        side.synchronize()
        nbrt.memory_stats(DEVICE)
        assert log.of(address) == [*ONCE, "late_free_completed"]


@pytest.mark.usefixtures("ctrl_c_raises")
def test_an_interrupted_hook_loses_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Log):
        def before(self, stream: nbrt.Stream, command: Command) -> None:
            raise KeyboardInterrupt

    before = nbrt.memory_allocated(DEVICE)
    hooked: list[Any] = []  # where Python says what the end of an array has raised
    monkeypatch.setattr("sys.unraisablehook", lambda raised: hooked.append(raised.exc_type))
    with install_hook(Interrupted(), ("free",)):
        for nbytes in (1000, 3 << 20):
            with pytest.raises(KeyboardInterrupt):
                print(make(nbytes).nbytes)  # it comes after the end
    assert hooked == []
    assert nbrt.memory_allocated(DEVICE) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("nbytes", [1000, 3 << 20])
def test_an_allocation_that_a_hook_interrupts_is_freed(
    nbytes: int, error: type[BaseException]
) -> None:
    class Broken(Log):
        def after(self, stream: nbrt.Stream, command: Command, result: Any) -> None:
            raise error

    pool = nbrt.MemoryPool(DEVICE)
    with nbrt.use_pool(pool):
        make(100)  # the command of another size is remembered
        with install_hook(Broken(), ("allocate",)):
            for _ in range(3):
                with pytest.raises(error):
                    make(nbytes)
    pool.empty_cache()
    assert pool.stats()["allocated.all.current"] == pool.memory_reserved() == 0


def test_a_hook_that_fails_only_warns() -> None:
    class Failing(Log):
        def before(self, stream: nbrt.Stream, command: Command) -> None:
            raise RuntimeError(command.kind)

    before = nbrt.memory_allocated(DEVICE)
    with install_hook(Failing(), ("free",)), pytest.warns(NbrtCleanupWarning, match="RuntimeErr"):
        make()
    assert nbrt.memory_allocated(DEVICE) == before


@pytest.mark.parametrize("nbytes", [1000, 3 << 20])
def test_a_bad_shape_leaves_nothing_in_use(nbytes: int) -> None:
    before, log = nbrt.memory_allocated(DEVICE), Log()
    with install_hook(log, ("allocate", "free")), pytest.raises(nbrt.errors.ArgumentError):
        nbrt.empty((nbytes, *[1] * 64), "uint8", device=DEVICE)
    assert [kind for kind, _ in log.told] == ONCE
    assert nbrt.memory_allocated(DEVICE) == before


def test_each_side_is_chosen_by_itself() -> None:
    log = Log()
    with install_hook(log, (), after=("allocate",), events=()):
        make()
    assert [kind for kind, _ in log.told] == ["allocate"]
    log = Log()
    with install_hook(log, before=("free",), after=(), events=("free_completed",)):
        make()
    assert [kind for kind, _ in log.told] == ["free", "free_completed"]


def test_commands_that_nobody_looks_at_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*facts: object) -> None:
        raise AssertionError(facts)

    called: list[int] = []
    with install_hook(Log(), ("allocate", "free")):
        monkeypatch.setattr("nbrt.runtime.stream.Command", refuse)
        nbrt.default_stream(DEVICE).call(called.append, 1)
    assert called == [1]
