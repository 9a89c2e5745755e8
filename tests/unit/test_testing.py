"""The public test tools."""

from __future__ import annotations

import pytest

import nbrt
from nbrt.errors import ArgumentError
from nbrt.testing import CommandRecorder, Latch

pytestmark = pytest.mark.usefixtures("no_garbage")


def test_a_latch_holds_until_released() -> None:
    first, second = nbrt.Stream("cpu:0"), nbrt.Stream("cpu:0")
    seen: list[str] = []
    with Latch() as latch:
        assert not latch.is_reached
        latch.hold(first)
        latch.hold(second)
        first.call(seen.append, "first")
        latch.wait_reached()
        assert latch.is_reached
        assert not latch.is_released
        assert seen == []
    assert latch.is_released
    nbrt.synchronize("cpu:0")
    assert seen == ["first"]


def test_a_latch_is_released_when_a_test_fails() -> None:
    stream = nbrt.Stream("cpu:0")

    def failing_test() -> None:
        with latch:
            latch.hold(stream)
            raise AssertionError

    latch = Latch()
    with pytest.raises(AssertionError):
        failing_test()
    stream.synchronize()
    assert latch.is_released


def test_a_latch_nobody_reaches() -> None:
    with pytest.raises(TimeoutError, match=r"at the latch within 0\.01 s"):
        Latch(timeout=0.01).wait_reached()


def test_a_latch_refuses_a_stream_that_would_wait_for_itself() -> None:
    with pytest.raises(ArgumentError, match="runs beside its caller"):
        Latch().hold(nbrt.default_stream("cpu:0"))


def test_a_recorder_is_used_again() -> None:
    recorder = CommandRecorder()
    stream = nbrt.default_stream("cpu:1")
    for count in (1, 2):
        with recorder:
            stream.call(int)
        stream.call(int)
        assert len(recorder.commands) == count
    command = recorder.commands[0]
    assert (command.kind, command.label, command.device) == ("call", "int", nbrt.Device("cpu:1"))
    assert nbrt.Stream.from_id(command.stream_id) is stream
