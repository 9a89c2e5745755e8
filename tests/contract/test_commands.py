"""Every operation is a command: hooks see it once, and a hook can refuse it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import NbrtCleanupWarning
from nbrt.runtime.commands import install_hook
from nbrt.testing import CommandRecorder

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command

pytestmark = pytest.mark.usefixtures("no_garbage")


class RefusalError(Exception):
    """Raised by a tap."""


class Refuser:
    """Refuses commands of one kind, before or after the backend has seen them."""

    def __init__(self, kind: str, *, late: bool = False) -> None:
        self.kind = kind
        self.late = late

    def before(self, stream: nbrt.Stream, command: Command) -> None:
        if command.kind == self.kind and not self.late:
            raise RefusalError(self.kind)

    def after(self, stream: nbrt.Stream, command: Command, result: object) -> None:
        if command.kind == self.kind and self.late:
            raise RefusalError(self.kind)


def settle(stream: nbrt.Stream) -> None:
    gc.collect()
    stream.synchronize()


def test_each_operation_is_seen_once_in_order(device: nbrt.Device, stream: nbrt.Stream) -> None:
    settle(stream)
    other = nbrt.Stream(device)
    with CommandRecorder() as recorder, nbrt.stream(stream):
        x = nbrt.empty(10)
        y = nbrt.zeros(10)
        nbrt.copy(x, y)
        z = nbrt.to(x, device, copy=True)
        event = stream.record_event()
        other.wait_event(event)
        stream.call(int)
        stream.synchronize()
        del z
    expected = [
        "allocate",
        "allocate",
        "fill",
        "copy",
        "allocate",
        "copy",
        "record",
        "wait",
        "call",
        "free",
    ]
    assert recorder.kinds == expected
    assert recorder.seen == recorder.commands
    assert {command.device for command in recorder.commands} == {device}
    on_other = [command.kind for command in recorder.commands if command.stream_id == other.id]
    assert on_other == ["wait"]
    assert recorder.commands[-2].label == "int"


def test_nothing_else_is_a_command(device: nbrt.Device, stream: nbrt.Stream) -> None:
    x = nbrt.zeros(10, device=device)
    stream.synchronize()
    with CommandRecorder() as recorder, nbrt.device(device), nbrt.stream(stream):
        nbrt.Stream(device)
        nbrt.Event()
        stream.query()
        nbrt.synchronize(device)
        nbrt.memory_allocated(device)
        nbrt.empty_cache(device)
        nbrt.asarray(x)
        nbrt.device_of(x)
    assert recorder.commands == []


def test_hooks_nest_and_end(stream: nbrt.Stream) -> None:
    outer, inner = CommandRecorder(), CommandRecorder()
    with outer:
        with inner:
            stream.call(int)
        stream.call(int)
    stream.call(int)
    stream.synchronize()
    assert (len(outer.commands), len(inner.commands)) == (2, 1)


def test_hooks_see_other_threads(stream: nbrt.Stream) -> None:
    import threading

    with CommandRecorder() as recorder:
        thread = threading.Thread(target=stream.call, args=(int,))
        thread.start()
        thread.join()
    stream.synchronize()
    assert [command.thread for command in recorder.commands] == [thread.ident]


def test_a_refused_call_does_not_run(stream: nbrt.Stream) -> None:
    seen: list[int] = []
    with install_hook(Refuser("call")), pytest.raises(RefusalError):
        stream.call(seen.append, 1)
    stream.synchronize()
    assert seen == []


def test_a_refused_allocation_takes_no_memory(device: nbrt.Device, stream: nbrt.Stream) -> None:
    settle(stream)
    before = nbrt.memory_allocated(device)
    with install_hook(Refuser("allocate")), pytest.raises(RefusalError):
        nbrt.empty(10, device=device)
    assert nbrt.memory_allocated(device) == before
    assert nbrt.empty(10, device=device).size == 10


@pytest.mark.parametrize("kind", ["fill", "copy"])
def test_a_refused_fill_or_copy_leaves_values_and_memory(
    device: nbrt.Device, stream: nbrt.Stream, kind: str
) -> None:
    x = nbrt.full(10, 3.0, device=device)
    settle(stream)
    before = nbrt.memory_allocated(device)

    def attempt() -> Any:
        return nbrt.zeros(10, device=device) if kind == "fill" else nbrt.copy(x, np.zeros(10))

    with install_hook(Refuser(kind)), pytest.raises(RefusalError):
        attempt()
    gc.collect()
    assert nbrt.memory_allocated(device) == before
    assert np.all(nbrt.to_host(x) == 3.0)


def test_a_refused_record_and_wait_change_nothing(stream: nbrt.Stream) -> None:
    event = nbrt.Event()
    with install_hook(Refuser("record")), pytest.raises(RefusalError):
        event.record(stream)
    assert event.device is None
    event.record(stream)
    with install_hook(Refuser("wait")), pytest.raises(RefusalError):
        event.wait(stream)
    event.synchronize()
    assert event.query()


def test_a_free_cannot_be_refused(device: nbrt.Device, stream: nbrt.Stream) -> None:
    kept = [nbrt.empty(10, device=device)]
    before = nbrt.memory_allocated(device)

    def drop() -> int:
        kept.clear()
        # Ends of arrays from before the tap are read with the next thing that depends on them.
        return nbrt.memory_allocated(device)

    with install_hook(Refuser("free")), pytest.warns(NbrtCleanupWarning, match="RefusalError"):
        after = drop()
    assert after < before


@pytest.mark.parametrize("kind", ["allocate", "fill", "call"])
def test_a_hook_that_fails_afterwards_only_warns(
    device: nbrt.Device, stream: nbrt.Stream, kind: str
) -> None:
    def work() -> nbrt.typing.Array:
        stream.call(int)
        return nbrt.zeros(10, device=device)

    settle(stream)
    before = nbrt.memory_allocated(device)
    hooked = install_hook(Refuser(kind, late=True))
    with hooked, pytest.warns(NbrtCleanupWarning, match="accepted Command"):
        x = work()
    stream.synchronize()
    assert not nbrt.to_host(x).any()
    del x
    assert nbrt.memory_allocated(device) == before


def test_a_recorder_keeps_no_array_alive(device: nbrt.Device, stream: nbrt.Stream) -> None:
    settle(stream)
    before = nbrt.memory_allocated(device)
    with CommandRecorder() as recorder:
        x = nbrt.zeros(10, device=device)
        nbrt.synchronize(device)
        del x
        assert nbrt.memory_allocated(device) == before
    assert recorder.kinds == ["allocate", "fill", "free"]
