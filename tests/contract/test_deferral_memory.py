"""Deferred commands: memory, captures, hooks, raw streams and threads, on every device."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.gates import Gate
from nbrt.errors import OutOfMemoryError
from nbrt.runtime import commands, deferral
from nbrt.runtime.memory import oom
from nbrt.testing import CommandRecorder


@nbrt.kernel
def add(out, step):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = out[i] * 2 + step


def test_memory_lives_as_long_as_deferred_work_needs_it(
    any_stream: nbrt.Stream, gate: Gate
) -> None:
    stream = any_stream
    with nbrt.stream(stream):
        results = nbrt.zeros((8, 1000), "int64")
        gate.hold(stream)
        for index in range(8):
            temporary = nbrt.full(1000, index, "int64")
            add[8, 128](temporary, index)
            nbrt.copy(results[index], temporary)
            del temporary
        other = nbrt.zeros(1000, "int64")
        nbrt.copy(other, results[3])
        del results
        gate.open()
        assert nbrt.to_host(other).tolist() == [9] * 1000
        found = nbrt.memory_allocated(stream.device)
        del other
        assert nbrt.memory_allocated(stream.device) < found


def test_memory_of_another_stream(device: nbrt.Device, gate: Gate) -> None:
    """It is freed while deferred work of another stream needs it, and allocated again."""
    owner, user = nbrt.Stream(device), nbrt.Stream(device)
    result = nbrt.zeros(1000, "int64", device=device)
    with nbrt.stream(owner):
        array = nbrt.full(1000, 7, "int64")
    user.wait_stream(owner)
    user.wait_stream(nbrt.current_stream(device))
    gate.hold(user)
    nbrt.copy(result, array, stream=user)
    del array
    with nbrt.stream(owner):
        reused = nbrt.full(1000, -1, "int64")
        owner.synchronize()
    gate.open()
    assert nbrt.to_host(result, stream=user).tolist() == [7] * 1000
    del reused


def test_arguments_die_with_their_command(device: nbrt.Device, gate: Gate) -> None:
    class Thing:
        def method(self) -> None:
            pass

    stream = nbrt.Stream(device)
    thing = Thing()
    dead = weakref.ref(thing)
    gate.hold(stream)
    stream.call(thing.method)
    del thing
    assert dead() is not None
    gate.open()
    stream.synchronize()
    stream.call(print)  # on cuda, arguments are dropped by a later call
    stream.synchronize()
    stream.query()
    assert dead() is None


def test_a_full_device_waits_for_deferred_work(
    device: nbrt.Device, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[bool] = []

    def wait_for_all() -> bool:
        gate.open()
        waits.append(deferral.wait_for_all())
        stream.queue.synchronize()  # work of a CPU stream holds its arrays until it has run
        return waits[-1]

    monkeypatch.setattr(oom, "wait_for_all", wait_for_all)
    stream = nbrt.Stream(device)
    gc.collect()
    nbrt.synchronize(device)
    nbrt.empty_cache(device)
    reserved = nbrt.memory_reserved(device)
    size = 2 * reserved + (4 << 20)  # fits into no block that is cached
    nbrt.memory.set_memory_limit(reserved + size + size // 2, device)
    try:
        with nbrt.stream(stream):
            array = nbrt.zeros(size, "uint8")
            gate.hold(stream)
            nbrt.copy(array[:8], array[8:16])
            del array
            again = nbrt.empty(size, "uint8")
            assert waits == [True]
            with pytest.raises(OutOfMemoryError):
                nbrt.empty(size, "uint8")
            assert waits == [True, False]
            del again
    finally:
        nbrt.memory.set_memory_limit(None, device)


def test_hooks_see_commands_at_the_call(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    with nbrt.stream(stream), CommandRecorder() as recorder:
        gate.hold(stream)
        out = nbrt.zeros(4, "int64")
        add[1, 4](out, 1)
        seen = [command.kind for command in recorder.commands if command.kind != "free"]
        assert seen == ["allocate", "fill", "launch"]
        gate.open()
        stream.synchronize()
        assert len([c for c in recorder.commands if c.kind == "launch"]) == 1


def test_a_capture_waits_for_the_stream(device: nbrt.Device, gate: Gate) -> None:
    stream = nbrt.Stream(device)
    with nbrt.stream(stream):
        out = nbrt.zeros(4, "int64")
        gate.hold(stream)
        add[1, 4](out, 1)
        opener = threading.Thread(target=gate.open)
        opener.start()
        with nbrt.graph(stream=stream) as graph:
            assert stream.deferral is None
            add[1, 4](out, 1)
        opener.join()
        behind = Gate()
        behind.hold(stream)
        add[1, 4](out, 5)
        opener = threading.Thread(target=behind.open)
        opener.start()
        graph.replay()
        opener.join()
        assert nbrt.to_host(out).tolist() == [15] * 4


def test_the_raw_stream_is_taken_after_deferred_work(device: nbrt.Device) -> None:
    stream, gate = nbrt.Stream(device), Gate()
    seen: list[int] = []
    gate.hold(stream)
    stream.call(seen.append, 1)
    opener = threading.Thread(target=gate.open)
    opener.start()
    assert isinstance(stream.handle, int)
    opener.join()
    stream.queue.synchronize()
    assert seen == [1]


def test_threads_submit_to_a_deferred_stream(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    seen: list[tuple[int, int]] = []

    def submit(number: int) -> None:
        for index in range(50):
            stream.call(seen.append, (number, index))

    gate.hold(stream)
    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join()
    stream.synchronize()
    for number in range(4):
        assert [index for thread, index in seen if thread == number] == list(range(50))


def test_nothing_remains(device: nbrt.Device, gate: Gate) -> None:
    stream = nbrt.Stream(device)
    gate.hold(stream)
    assert commands.hooks
    stream.call(print)
    gate.open()
    stream.synchronize()
    assert stream.deferral is None
    for thread in threading.enumerate():
        if thread.name.startswith("compilations of"):
            thread.join(HANG_TIMEOUT)
    assert not commands._is_deferring
