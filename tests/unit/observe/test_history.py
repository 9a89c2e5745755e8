"""Memory history against the operations of the test."""

from __future__ import annotations

import _thread
import gc
import itertools
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.errors import ArgumentError, ArgumentTypeError, OutOfMemoryError
from nbrt.observe.history.annotations import annotate
from nbrt.observe.history.recorder import (
    ACTIONS,
    MemoryHistory,
    current_history,
    memory_history,
    record_memory_history,
)
from nbrt.runtime.commands import install_hook
from nbrt.runtime.memory.functions import allocations
from nbrt.runtime.memory.pool import MemoryPool, use_pool
from nbrt.runtime.memory.recording import record_stream
from nbrt.testing.latch import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.runtime.commands import Command

pytestmark = pytest.mark.usefixtures("no_garbage")

DEVICE = "cpu:3"
FREES = ["free_requested", "free_completed"]


@pytest.fixture(autouse=True)
def no_recorder() -> Iterator[None]:
    """No recorder runs, and no memory waits for its free."""
    nbrt.empty_cache(DEVICE)
    yield
    record_memory_history(None, clear_history=True)


def make(nbytes: int, **options: Any) -> Any:
    return nbrt.empty(nbytes, "uint8", device=DEVICE, **options)


def site_of(array: Any) -> Any:
    (found,) = (each for each in allocations(DEVICE) if each.address == array.ctypes.data)
    return found.site


def told(history: MemoryHistory, *actions: str) -> list[tuple[str, int]]:
    events = history.events(DEVICE)
    return [(event.action, event.nbytes) for event in events if event.action in actions]


def test_writes_down_every_allocation_and_free_in_order() -> None:
    rng = random.Random(20)
    alive: list[Any] = []
    expected: list[tuple[str, int]] = []
    with memory_history(device=DEVICE) as history:
        for _ in range(300):
            if alive and rng.random() < 0.45:
                gone = alive.pop(rng.randrange(len(alive)))
                expected += [(action, gone.nbytes) for action in FREES]
                del gone
            else:
                nbytes = rng.choice((1, 100, 4096, 70_000, 3 << 20))
                alive.append(make(nbytes))
                expected.append(("alloc", nbytes))
    assert told(history, "alloc", *FREES) == expected
    times = [event.time for event in history.events(DEVICE)]
    assert times == sorted(times)


def test_addresses_are_those_of_the_arrays() -> None:
    with memory_history(device=DEVICE) as history:
        arrays = [make(1000) for _ in range(5)]
        addresses = [array.ctypes.data for array in arrays]
        del arrays
    found = {
        action: [event.address for event in history.events(DEVICE) if event.action == action]
        for action in ("alloc", *FREES)
    }
    assert found["alloc"] == addresses
    assert sorted(found["free_requested"]) == sorted(addresses)
    assert found["free_completed"] == found["free_requested"]


def test_threads_lose_no_event() -> None:
    rounds, workers = 200, 4
    gate = threading.Barrier(workers)

    def work() -> None:
        gate.wait()
        for _ in range(rounds):
            make(512)

    with memory_history(device=DEVICE) as history:
        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        nbrt.memory_allocated(DEVICE)  # processes the frees that came while the lock was held
    count = Counter(event.action for event in history.events(DEVICE))
    assert [count[action] for action in ("alloc", *FREES)] == [rounds * workers] * 3
    # The uses of an address follow one another: every free has an allocation.
    of_address: dict[int, list[str]] = {}
    for event in history.events(DEVICE):
        if event.action in {"alloc", *FREES}:
            of_address.setdefault(event.address, []).append(event.action)
    for actions in of_address.values():
        cycle = itertools.cycle(("alloc", *FREES))
        assert all(action == expected for action, expected in zip(actions, cycle, strict=False))


def test_keeps_the_latest_entries() -> None:
    with memory_history(device=DEVICE, max_entries=7, skip_actions=FREES) as history:
        for nbytes in range(1, 101):
            make(nbytes)
    assert told(history, "alloc") == [("alloc", nbytes) for nbytes in range(94, 101)]
    assert len(history) == 7


@pytest.mark.parametrize("action", sorted(ACTIONS - {"segment_map", "segment_unmap"}))
def test_skips_actions_alone(action: str) -> None:
    def script() -> None:
        with annotate("here"), use_pool(MemoryPool(DEVICE, limit=1 << 22)):
            make(100)
            with pytest.raises(OutOfMemoryError):
                make(1 << 23)

    gc.collect()  # running out of memory does so as well, and arrays of other tests would end there
    nbrt.empty_cache(DEVICE)
    with memory_history(device=DEVICE) as whole:
        script()
        whole.mark_snapshot(nbrt.Device(DEVICE))
    with memory_history(device=DEVICE, skip_actions=[action]) as without:
        script()
        without.mark_snapshot(nbrt.Device(DEVICE))
    expected = Counter(event.action for event in whole.events())
    assert expected.pop(action) > 0  # type: ignore[call-overload]  # an action
    assert Counter(event.action for event in without.events()) == expected


def test_stacks_by_context() -> None:
    found = {}
    for context in ("all", "alloc", "state", None):
        with memory_history(context=context, device=DEVICE) as history:  # type: ignore[arg-type]
            array = make(100)
            on_block = site_of(array) is not None
            del array
        with_stack = {event.action for event in history.events(DEVICE) if event.site is not None}
        found[context] = (with_stack & {"alloc", *FREES}, on_block)
    assert found == {
        "all": ({"alloc", *FREES}, True),
        "alloc": ({"alloc"}, True),
        "state": (set(), True),
        None: (set(), False),
    }


def test_stacks_lead_to_the_lines() -> None:
    line = make.__code__.co_firstlineno + 1
    with memory_history(device=DEVICE) as history:
        array = make(100)
        del array
    sites = {event.action: event.site for event in history.events(DEVICE)}
    assert sites["alloc"] is not None
    assert sites["free_requested"] is not None
    alloc, free = sites["alloc"].frames(), sites["free_requested"].frames()
    test = "test_stacks_lead_to_the_lines"
    assert [(frame["line"], frame["name"]) for frame in alloc[:1]] == [(line, "make")]
    assert [alloc[1]["name"], free[0]["name"]] == [test, test]
    assert free[0]["line"] == alloc[1]["line"] + 1


def test_a_thread_that_is_nothing_but_an_allocation() -> None:
    """No call is above that of nbrt, and none at all where the array ends."""
    done = threading.Event()

    class Last:
        def before(self, stream: nbrt.Stream, command: Command) -> None:
            done.set()

        def after(self, stream: nbrt.Stream, command: Command, result: object) -> None: ...

    with memory_history(device=DEVICE) as history, install_hook(Last(), (), before=("free",)):
        _thread.start_new_thread(nbrt.empty, (10, "uint8"), {"device": DEVICE})
        assert done.wait(HANG_TIMEOUT)
    assert told(history, "alloc", *FREES) == [(each, 10) for each in ("alloc", *FREES)]
    assert all(event.site is not None for event in history.events(DEVICE))


def test_state_keeps_stacks_of_what_is_alive_and_no_events() -> None:
    with memory_history("state", device=DEVICE) as history:
        array = make(100)
        frames = site_of(array).frames()
    assert array.nbytes == 100
    assert frames[0]["name"] == "make"
    assert len(history) == 0


def test_annotations_stand_beside_events_and_as_entries() -> None:
    with memory_history(device=DEVICE, skip_actions=["segment_alloc"]) as history:
        with annotate("epoch 1"), annotate("step 2"):
            array = make(100)
        del array
    seen = [
        (event.action, event.label, tuple(each.name for each in event.annotations))
        for event in history.events(DEVICE)
    ]
    assert seen == [
        ("annotate", "START epoch 1", ("epoch 1",)),
        ("annotate", "START step 2", ("epoch 1", "step 2")),
        ("alloc", "", ("epoch 1", "step 2")),
        ("annotate", "END step 2", ("epoch 1", "step 2")),
        ("annotate", "END epoch 1", ("epoch 1",)),
        ("free_requested", "", ()),
        ("free_completed", "", ()),
    ]


@pytest.mark.parametrize("kind", ["caching", "expandable", "plain"])
def test_segments_add_up_to_what_a_pool_holds(kind: str) -> None:
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}

    def held(history: MemoryHistory) -> int:
        return sum(signs.get(event.action, 0) * event.nbytes for event in history.events(DEVICE))

    with memory_history(device=DEVICE) as history:
        pool = MemoryPool(DEVICE, kind)
        with use_pool(pool):
            arrays = [make(nbytes) for nbytes in (100, 5 << 20, 40 << 20)]
        assert held(history) == pool.memory_reserved() > 0
        begins = {info.address for info in pool.segments()}
        taken = {e.address for e in history.events(DEVICE) if signs.get(e.action) == 1}
        assert begins <= taken
        arrays.clear()
        pool.empty_cache()
        assert held(history) == pool.memory_reserved()
        pool.close()
        assert held(history) == 0


def test_out_of_memory_is_written_down() -> None:
    with memory_history(device=DEVICE) as history:
        pool = MemoryPool(DEVICE, limit=1 << 20)
        with use_pool(pool), pytest.raises(OutOfMemoryError):
            make(1 << 24)
    event = next(event for event in history.events(DEVICE) if event.action == "oom")
    assert event.nbytes == 1 << 24
    assert event.address > 0  # free bytes of the device


def test_a_free_completes_when_the_other_stream_has_passed() -> None:
    side = nbrt.Stream(DEVICE)
    with memory_history(device=DEVICE) as history, Latch() as latch:
        array = make(100)
        latch.hold(side)
        record_stream(array, side)
        del array
        nbrt.memory_allocated(DEVICE)
        assert told(history, *FREES) == [("free_requested", 100)]
        latch.release()
        side.synchronize()
        make(100)
        assert ("free_completed", 100) in told(history, *FREES)


def test_streams_are_told_apart() -> None:
    side = nbrt.Stream(DEVICE)
    with memory_history(device=DEVICE) as history:
        make(100)
        make(100, stream=side)
    streams = [event.stream for event in history.events(DEVICE) if event.action == "alloc"]
    assert streams == [0, side.id]


def test_a_device_alone() -> None:
    with memory_history() as everything, memory_history(device="cpu:2") as one:
        nbrt.empty(10, "uint8", device="cpu:1")
        nbrt.empty(20, "uint8", device="cpu:2")
    made = [(str(e.device), e.nbytes) for e in everything.events() if e.action == "alloc"]
    assert made == [("cpu:1", 10), ("cpu:2", 20)]
    assert [e.nbytes for e in everything.events("cpu:1") if e.action == "alloc"] == [10]
    assert {str(event.device) for event in one.events()} == {"cpu:2"}


def test_stops_keeps_goes_on_and_forgets() -> None:
    record_memory_history(device=DEVICE, skip_actions=[*FREES, "segment_alloc"])
    make(1)
    record_memory_history(None)
    make(2)
    history = current_history()
    assert history is not None
    assert told(history, "alloc") == [("alloc", 1)]
    record_memory_history(device=DEVICE, skip_actions=[*FREES, "segment_alloc"])
    make(3)
    history = current_history()
    assert history is not None
    assert told(history, "alloc") == [("alloc", 1), ("alloc", 3)]
    record_memory_history(clear_history=True, device=DEVICE)
    history = current_history()
    assert history is not None
    assert len(history) == 0


def test_a_block_has_a_history_of_its_own() -> None:
    record_memory_history(device=DEVICE)
    outer = current_history()
    assert outer is not None
    with memory_history(device=DEVICE) as inner:
        assert current_history() is inner
        make(5)
    assert current_history() is outer
    make(6)
    assert told(inner, "alloc") == [("alloc", 5)]
    assert told(outer, "alloc") == [("alloc", 5), ("alloc", 6)]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"enabled": "some"}, ArgumentError, "enabled"),
        ({"context": "none"}, ArgumentError, "context"),
        ({"stacks": "all"}, ArgumentError, "stacks"),
        ({"max_entries": 0}, ArgumentError, "at least 1"),
        ({"max_entries": 1.5}, ArgumentTypeError, "as an int"),
        ({"max_entries": True}, ArgumentTypeError, "as an int"),
        ({"skip_actions": ["frees"]}, ArgumentError, "skip_actions"),
        ({"skip_actions": "alloc"}, ArgumentTypeError, "list of names"),
    ],
)
def test_refuses_and_changes_nothing(
    options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    record_memory_history(device=DEVICE)
    before = current_history()
    with pytest.raises(kind, match=words):
        record_memory_history(**options)
    assert current_history() is before
    assert before is not None
    assert before.is_recording


def test_none_skips_nothing() -> None:
    with memory_history(device=DEVICE, skip_actions=None) as history:
        x = make(1000)
        del x
    wanted = {"alloc", "free_requested", "free_completed"}
    assert wanted <= {event.action for event in history.events()}
