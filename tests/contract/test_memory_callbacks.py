"""`observe` reports exactly the operations that happen, on every kind of device."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.observe.callbacks import Observation, observe
from nbrt.observe.leaks.finder import find_leaks, no_leaks
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command, RuntimeEvent

pytestmark = pytest.mark.usefixtures("no_garbage")


@pytest.fixture
def seen() -> list[Observation]:
    return []


def kinds(seen: list[Observation]) -> list[str]:
    return [each.kind for each in seen]


def test_memory(device: nbrt.Device, stream: nbrt.Stream, seen: list[Observation]) -> None:
    nbrt.memory_allocated(device)  # what died before is accounted for
    with observe(on_memory_allocation=seen.append, on_memory_deallocation=seen.append):
        x = nbrt.empty((30, 10), "float64", stream=stream)
        view = x[10:]
        del x
        assert kinds(seen) == ["memory_allocation"]
        address = nbrt.memory.allocations(device)
        del view
        nbrt.memory_allocated(device)
    first, second = seen
    assert kinds(seen) == ["memory_allocation", "memory_deallocation"]
    assert first[1:] == second[1:]
    assert (first.device, first.stream, first.nbytes, first.event) == (device, stream, 2400, 0)
    assert first.address in [each.address for each in address]


@pytest.mark.parametrize("nbytes", [100, 3 << 20])
def test_callbacks_hold_no_device(device: nbrt.Device, nbytes: int) -> None:
    """Two that each look at the other's device would wait for each other for ever."""
    answers: list[int] = []

    def ask(about: Observation) -> None:
        # Another thread gets at the device's numbers while the callback runs.
        thread = Thread(target=lambda: answers.append(nbrt.memory_allocated(device)))
        thread.start()
        thread.join(HANG_TIMEOUT)
        assert not thread.is_alive()

    x = [nbrt.empty(nbytes, "uint8", device=device)]
    before = nbrt.memory_allocated(device)
    with observe(on_memory_allocation=ask, on_memory_deallocation=ask):
        x.append(nbrt.empty(nbytes, "uint8", device=device))
        x.clear()
        nbrt.memory_allocated(device)
    assert len(answers) == 3
    assert answers[-1] < before


def test_an_event_from_its_making_to_its_end(
    device: nbrt.Device, stream: nbrt.Stream, seen: list[Observation]
) -> None:
    other = nbrt.Stream(device)
    with observe(seen.append):
        event = nbrt.Event()
        assert seen == []
        event.wait(other)  # never recorded: nothing to wait for
        event.record(stream)
        event.record(stream)
        event.wait(other)
        event.synchronize()
        event.query()
        number = id(event)
        del event
    assert kinds(seen) == [
        "event_creation",
        "event_record",
        "event_record",
        "event_wait",
        "event_synchronization",
        "event_deletion",
    ]
    assert {each.event for each in seen} == {number}
    assert {each.device for each in seen} == {device}
    assert [each.stream for each in seen] == [stream, stream, stream, other, stream, stream]


def test_an_event_that_was_never_recorded_was_never_made(seen: list[Observation]) -> None:
    with observe(seen.append):
        event = nbrt.Event()
        event.synchronize()
        del event
    assert seen == []


def test_waiting_for_a_stream_is_a_record_and_a_wait(
    device: nbrt.Device, stream: nbrt.Stream, seen: list[Observation]
) -> None:
    other = nbrt.Stream(device)
    with observe(seen.append):
        other.wait_stream(stream)
    assert kinds(seen) == ["event_creation", "event_record", "event_wait", "event_deletion"]
    assert [each.stream for each in seen] == [stream, stream, other, stream]


def test_a_wait_across_kinds_of_device_tells_its_event(
    device: nbrt.Device, stream: nbrt.Stream, seen: list[Observation]
) -> None:
    elsewhere = nbrt.Stream("sample" if device.kind == "cpu" else "cpu")
    event = stream.record_event()
    with observe(on_event_wait=seen.append):
        elsewhere.wait_event(event)
    elsewhere.synchronize()
    assert [(each.event, each.stream) for each in seen] == [(id(event), elsewhere)]


def test_the_host_waits(device: nbrt.Device, stream: nbrt.Stream, seen: list[Observation]) -> None:
    with observe(seen.append):
        stream.synchronize()
        nbrt.synchronize(device)
    assert seen == [
        Observation("stream_synchronization", device, stream),
        Observation("device_synchronization", device),
    ]


def test_a_stream_is_made_once(device: nbrt.Device, seen: list[Observation]) -> None:
    priority = nbrt.get_interface_for_device(device).capabilities.stream_priorities[1]
    with observe(on_stream_creation=seen.append):
        streams = [nbrt.Stream(device, priority) for _ in range(64)]
        nbrt.default_stream(device)
    made = [each.stream for each in seen]
    assert len(made) == len(set(made)) <= 32
    assert set(made) <= set(streams)
    assert {each.device for each in seen} <= {device}


class EventHook:
    """Notes which event each command and event is about."""

    def __init__(self) -> None:
        self.subjects: list[tuple[str, object]] = []

    def before(self, stream: nbrt.Stream, command: Command) -> None:
        self.subjects.append((command.kind, command.subject))

    def after(self, stream: nbrt.Stream, command: Command, result: object) -> None:
        pass

    def on_event(self, event: RuntimeEvent) -> None:
        self.subjects.append((event.kind, event.subject))


def test_hooks_see_the_event_itself(device: nbrt.Device, stream: nbrt.Stream) -> None:
    hook = EventHook()
    with install_hook(hook, ("record", "wait")):
        event = stream.record_event()
        nbrt.Stream(device).wait_event(event)
        event.synchronize()
        assert event.query()
    created = ["event_create", "record", "wait", "event_sync", "event_query"]
    assert [each for each in hook.subjects if each[0] in created] == [
        (kind, event) for kind in created
    ]


def test_leaks_are_found(device: nbrt.Device, stream: nbrt.Stream) -> None:
    kept = {}
    with find_leaks(device) as report:
        kept["weights"] = nbrt.empty(100, "float32", stream=stream)
        nbrt.empty(50, "float32", stream=stream)
    (leak,) = report.leaks
    assert (leak.device, leak.nbytes, leak.thread) == (device, 400, "MainThread")
    assert "test_leaks_are_found" in leak.site
    assert leak.holders is not None
    assert any(text.startswith("kept['weights'], a local of") for text in leak.holders)


def test_work_that_is_done_is_no_leak(device: nbrt.Device, stream: nbrt.Stream) -> None:
    with no_leaks(), nbrt.stream(stream):
        x = nbrt.zeros(1000)
        total = float(np.sum(nbrt.to_host(nbrt.to(x, device, copy=True))))
        del x
    assert total == 0.0
