"""`check_snapshot`: a clear error for what no picture can be drawn of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_snapshot"]

_Keys: TypeAlias = tuple[str, ...]
_Place: TypeAlias = tuple[str | int, ...]
"""Keys and indices that lead to a part of a snapshot."""

_END = 2**63
"""Where numbers end: pictures count in 64 bits."""

_ALLOCATION: _Keys = ("time_us", "addr", "size")
_GROWTH: _Keys = ("time_us", "size")
_EVENTS: dict[str, _Keys] = {
    "alloc": _ALLOCATION,
    "free_requested": _ALLOCATION,
    "free_completed": _ALLOCATION,
    "segment_alloc": _GROWTH,
    "segment_free": _GROWTH,
    "segment_map": _GROWTH,
    "segment_unmap": _GROWTH,
    "oom": ("time_us", "size", "device_free"),
}
"""The numbers that an event must have, by its action."""


def check_snapshot(snapshot: Any) -> None:
    """Raise an error that names the place, if a part of a snapshot is missing or makes no sense.

    Asked for is what pictures need, and no more.

    Raises
    ------
    ArgumentTypeError
        If it is no snapshot at all.
    ArgumentError
        If a part of it is broken.

    Examples
    --------
    >>> check_snapshot({"segments": [], "device_traces": [[{"action": "oom", "time_us": 5}]]})
    Traceback (most recent call last):
    nbrt.errors.ArgumentError: expected a memory snapshot in torch's format, got one in which
    ['device_traces'][0][0] has no 'size'; take one with nbrt.memory.snapshot()
    """
    is_one = isinstance(snapshot, Mapping)
    parts = [snapshot.get(key) for key in ("segments", "device_traces")] if is_one else [None]
    if not all(isinstance(part, Sequence) for part in parts):
        raise ArgumentTypeError(
            f"expected a memory snapshot, a mapping with the lists 'segments' and 'device_traces', "
            f"got {type(snapshot).__name__}; take one with nbrt.memory.snapshot()"
        )
    own = snapshot.get("nbrt") or {}
    _check_numbers(own, (), ("nbrt",))
    _check_text(own, "kind", ("nbrt",), needed=False)
    seen: set[int] = set()  # equal stacks are one list
    for at, segment in enumerate(snapshot["segments"]):
        _check_segment(segment, ("segments", at), seen)
    for at, trace in enumerate(snapshot["device_traces"]):
        place: _Place = ("device_traces", at)
        _check_list(trace, place)
        for number, event in enumerate(trace):
            _check_event(event, (*place, number), seen)


def _check_segment(segment: Any, place: _Place, seen: set[int]) -> None:
    _check_numbers(segment, ("address", "total_size"), place)
    _check_numbers(segment, [key for key in ("device", "stream") if key in segment], place)
    _check_list(segment.get("blocks"), (*place, "blocks"))
    for number, block in enumerate(segment["blocks"]):
        inner = (*place, "blocks", number)
        _check_numbers(block, ("address", "size"), inner)
        _check_text(block, "state", inner)
        if block["state"].startswith("active"):
            _check_numbers(block, ("requested_size",), inner)
        _check_stack(block, inner, seen)


def _check_event(event: Any, place: _Place, seen: set[int]) -> None:
    _check_numbers(event, (), place)
    _check_text(event, "action", place)
    action = event["action"]
    _check_numbers(event, _EVENTS.get(action, ("time_us",)), place)
    if action == "annotate" and event.get("stage") != "END":
        _check_text(event, "name", place)
    if action == "alloc":
        _check_stack(event, place, seen)


def _check_stack(found: Mapping[str, Any], place: _Place, seen: set[int]) -> None:
    stack = found.get("frames", ())
    if id(stack) in seen:
        return
    seen.add(id(stack))
    _check_list(stack, (*place, "frames"))
    for number, frame in enumerate(stack):
        inner = (*place, "frames", number)
        _check_numbers(frame, ("line",), inner)
        _check_text(frame, "filename", inner)
        _check_text(frame, "name", inner)


def _check_numbers(found: Any, keys: Sequence[str], place: _Place) -> None:
    if type(found) is not dict and not isinstance(found, Mapping):
        raise _broken(f"{_text(place)} is {found!r:.60}, not a mapping")
    for key in keys:
        value: Any = found.get(key)
        if type(value) is not int or not 0 <= value < _END:
            raise _missing(found, key, place, "an int from 0 to 2**63 - 1")


def _check_text(found: Mapping[str, Any], key: str, place: _Place, *, needed: bool = True) -> None:
    if not isinstance(found.get(key), str) and (needed or found.get(key) is not None):
        raise _missing(found, key, place, "a text")


def _check_list(found: Any, place: _Place) -> None:
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise _broken(f"{_text(place)} is {found!r:.60}, not a list")


def _missing(found: Mapping[str, Any], key: str, place: _Place, wanted: str) -> ArgumentError:
    if key not in found:
        return _broken(f"{_text(place)} has no {key!r}")
    return _broken(f"{_text((*place, key))} is {found[key]!r:.60}, not {wanted}")


def _broken(what: str) -> ArgumentError:
    return ArgumentError(
        f"expected a memory snapshot in torch's format, got one in which {what}; take one with "
        f"nbrt.memory.snapshot()"
    )


def _text(place: _Place) -> str:
    return "".join(f"[{step!r}]" for step in place)
