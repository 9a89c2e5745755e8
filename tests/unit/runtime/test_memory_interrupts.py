"""Ctrl-C at every call and return within the memory runtime: no block is lost or miscounted."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from nbrt._internal.critical_section import DeferInterrupt
from nbrt.runtime import commands
from nbrt.runtime.commands import MemoryRecorder, install_hook
from nbrt.runtime.memory.device_allocator import DeviceAllocator
from nbrt.runtime.memory.hooks import FreeNotifier

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("ctrl_c_raises")

PACKAGE = str(Path(nbrt.__file__).parent)


def interrupt_at(place: int) -> Callable[..., None]:
    """Return a profiler that presses Ctrl-C at the n-th call or return of nbrt's own code.

    Not before calls of C functions: no signal handler runs there without a profiler.
    """
    seen = 0

    def profile(frame: Any, event: str, argument: object) -> None:
        nonlocal seen
        if event == "c_call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        seen += 1
        if seen == place:
            signal.raise_signal(signal.SIGINT)

    return profile


def scenario(pool: nbrt.MemoryPool) -> None:
    """Small and large arrays that come and go; the end is an attribute error, not more memory."""
    with nbrt.use_pool(pool):
        kept = [nbrt.empty(size, "uint8", device="cpu:1") for size in (10, 3000, 3 * MIB)]
        del kept[1:]
        kept += [nbrt.empty(size, "uint8", device="cpu:1") for size in (5000, 2 * MIB)]
        for _ in range(3):  # the block that was freed last, at once
            nbrt.empty(MIB, "uint8", device="cpu:1")
        pool.stats()
        kept.clear()
        pool.empty_cache()


@pytest.mark.parametrize("kind", ["caching", "expandable"])
def test_statistics_are_exact_after_ctrl_c_anywhere(kind: str) -> None:
    assert threading.current_thread() is threading.main_thread()
    interrupts = 0
    for place in range(1, 700, 3):
        pool = nbrt.MemoryPool("cpu:1", kind)
        gc.disable()  # whose callbacks, of other libraries, are not to be interrupted
        try:
            sys.setprofile(interrupt_at(place))
            scenario(pool)
        except KeyboardInterrupt:
            interrupts += 1
        finally:
            sys.setprofile(None)
            gc.enable()
        live = pool.allocations()
        stats = pool.stats()
        assert stats["allocated.all.current"] == len(live) == 0
        assert stats["allocated_bytes.all.current"] == 0
        assert stats["reserved_bytes.all.current"] == pool.memory_reserved()
        with nbrt.use_pool(pool):
            assert nbrt.full(7, 3, "uint8", device="cpu:1").sum() == 21
    assert interrupts > 100
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Onlooker:
    def before(self, *args: object) -> None:
        pass

    def after(self, *args: object) -> None:
        pass


class SilentRecorder(MemoryRecorder):
    def __init__(self) -> None:
        self.before = self.after = Onlooker().after
        self.allocated = self.freed = Onlooker().after


def watched(pool: nbrt.MemoryPool, kept: list[Any]) -> None:
    """Small and large arrays that come and go, after one from before anybody looked."""
    with nbrt.use_pool(pool):
        kept += [nbrt.empty(size, "uint8", device="cpu:1") for size in (10, 3000, 3 * MIB)]
        del kept[2:], kept[0]
        kept += [nbrt.empty(size, "uint8", device="cpu:1") for size in (3000, 2 * MIB)]
        kept.clear()


@pytest.mark.parametrize("hook", [Onlooker(), SilentRecorder()])
def test_nothing_is_lost_under_hooks(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first step of the function that tells of an end is left, as the design says.
    left = FreeNotifier.on_free.__code__
    monkeypatch.setattr("sys.unraisablehook", lambda raised: None)  # of the profiler, in callbacks
    interrupts = 0
    for place in range(1, 400, 2):
        pool = nbrt.MemoryPool("cpu:1")
        with nbrt.use_pool(pool):
            kept = [nbrt.empty(2 * MIB, "uint8", device="cpu:1")]
        press = interrupt_at(place)

        def profile(frame: Any, event: str, argument: object, press: Any = press) -> None:
            if frame.f_code is not left:
                press(frame, event, argument)

        gc.disable()
        with install_hook(hook, before=["free"], after=["allocate"]):
            assert commands.memory_recorder is (None if isinstance(hook, Onlooker) else hook)
            try:
                sys.setprofile(profile)
                watched(pool, kept)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                sys.setprofile(None)
                gc.enable()
            kept.clear()
        pool.empty_cache()
        assert pool.stats()["allocated.all.current"] == 0, place
        assert pool.memory_reserved() == 0, place
    assert interrupts > 60
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_interrupt_leaves_the_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every instruction of the function that only tries to have it."""
    monkeypatch.setattr("sys.unraisablehook", lambda raised: None)
    pool = nbrt.MemoryPool("cpu:1", "plain")
    lock: Any = pool._allocator.lock
    code = DeviceAllocator.try_process.__code__
    ended = False
    for place in range(1, 200):
        seen = 0

        def trace(frame: Any, event: str, argument: object, place: int = place) -> Any:
            nonlocal seen
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            if event == "call" and sys.version_info[:2] == (3, 12):
                sys.settrace(trace)  # which alone looks at that
            seen += event == "opcode"
            if event == "opcode" and seen == place:
                signal.raise_signal(signal.SIGINT)
            return trace

        with nbrt.use_pool(pool):
            array = nbrt.empty(1000, "uint8", device="cpu:1")
        try:
            sys.settrace(trace)
            del array
            for _ in range(2):  # an interrupt that was put off comes here
                pass
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert not lock._is_owned(), place
        ended = seen < place
        if ended:
            break
        assert pool.stats()["allocated.all.current"] == pool.memory_reserved() == 0
    assert ended
    assert place > 30
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_waits_for_the_end_of_a_block() -> None:
    lock = threading.RLock()
    defer = DeferInterrupt(lock)  # type: ignore[arg-type]  # has it, as Condition knows
    done = []

    def work() -> None:
        with lock, defer:
            signal.raise_signal(signal.SIGINT)
            with lock, defer:
                signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_let_through() -> None:
    lock = threading.RLock()
    defer = DeferInterrupt(lock)  # type: ignore[arg-type]
    handlers: list[object] = []

    def work() -> None:
        with lock, defer:
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
