"""The ambient state itself."""

from __future__ import annotations

import contextvars

from nbrt._internal import scopes
from nbrt._internal.device import Device

FIRST, SECOND, OTHER = Device("cpu", 1), Device("cpu", 2), Device("cuda", 5)


def test_push_and_pop() -> None:
    guard = object()
    before = scopes.current()
    scopes.push(guard, FIRST, None)
    assert scopes.current().device == FIRST
    assert scopes.current().streams is before.streams
    assert scopes.pop_frame(guard).device == FIRST
    assert scopes.current() is before


def test_popping_what_is_not_there_changes_nothing() -> None:
    mine, stranger = object(), object()
    scopes.push(mine, FIRST, None, lambda: None)
    for pop in (scopes.pop_frame, scopes.pop_device):
        left = pop(stranger)
        assert left.undo is None
        assert scopes.current().device == FIRST
    scopes.pop_frame(mine)
    scopes.pop_frame(mine)


def test_a_frame_is_taken_out_of_the_middle() -> None:
    lower, upper = object(), object()
    before = scopes.current()
    scopes.push(lower, FIRST, None, lambda: None)
    scopes.push(upper, SECOND, {SECOND: "stream"})
    left = scopes.pop_device(lower)
    assert left.device == FIRST
    assert left.undo is not None
    assert scopes.current().device == SECOND
    assert scopes.current().streams == {SECOND: "stream"}
    scopes.pop_frame(upper)
    assert scopes.current() is before


def test_pop_device_keeps_streams_set_inside() -> None:
    guard = object()
    scopes.push(guard, FIRST, None)
    scopes.replace(SECOND, {SECOND: "stream"})
    scopes.pop_device(guard)
    assert scopes.current().streams == {SECOND: "stream"}
    assert scopes.current().device is None


def test_the_index_of_a_kind() -> None:
    assert scopes.current_index("cuda") == 0
    scopes.replace(OTHER, None)
    scopes.push(None, FIRST, None)
    scopes.push(None, SECOND, None)
    assert scopes.current_index("cpu") == 2
    assert scopes.current_index("cuda") == 5
    scopes.pop_frame(None)
    assert scopes.current_index("cpu") == 1
    scopes.replace(OTHER, None)
    assert scopes.current_index("cpu") == 0


def test_contexts_are_apart() -> None:
    def inside() -> Device | None:
        scopes.push(None, SECOND, None)
        return scopes.current().device

    scopes.push(None, FIRST, None)
    assert contextvars.copy_context().run(inside) == SECOND
    assert contextvars.Context().run(lambda: scopes.current().device) is None
    assert scopes.current().device == FIRST
