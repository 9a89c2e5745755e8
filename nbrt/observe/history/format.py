"""The form of a memory snapshot, as far as its readers rely on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_file_schema"]

_Form = tuple[tuple[str, ...], dict[str, type]]
"""The keys that must be there, and the types of those that are known; torch adds further ones."""

_SNAPSHOT: _Form = (
    ("segments", "device_traces"),
    {"segments": list, "device_traces": list, "external_annotations": list, "nbrt": dict},
)
_SEGMENT: _Form = (
    ("address", "total_size", "blocks"),
    {"address": int, "total_size": int, "blocks": list, "device": int, "stream": int},
)
_BLOCK: _Form = (
    ("size", "state"),
    {"address": int, "size": int, "requested_size": int, "state": str, "frames": list},
)
_EVENT: _Form = (
    ("action",),
    {
        "action": str, "addr": int, "size": int, "stream": int, "time_us": int, "frames": list,
        "device_free": int, "stage": str, "name": str,
    },
)  # fmt: skip
_FRAME: _Form = (("filename", "line", "name"), {"filename": str, "line": int, "name": str})


def check_file_schema(found: Any) -> None:
    """Raise a ValueError or TypeError that says what is wrong, if this is no snapshot.

    Examples
    --------
    >>> check_file_schema({"segments": [], "device_traces": [[{}]]})
    Traceback (most recent call last):
    ValueError: device_traces[0][0] has no 'action'
    """
    _check("the file", found, _SNAPSHOT)
    seen: dict[int, None] = {}  # equal stacks are one list
    for at, segment in enumerate(found["segments"]):
        _check(f"segments[{at}]", segment, _SEGMENT)
        _check_pool(f"segments[{at}]", segment, "segment_pool_id")
        for number, block in enumerate(segment["blocks"]):
            _check_with_frames(f"segments[{at}]['blocks'][{number}]", block, _BLOCK, seen)
    for at, trace in enumerate(found["device_traces"]):
        if not isinstance(trace, list):
            raise TypeError(f"device_traces[{at}] is a {type(trace).__name__}, not a list")
        for number, event in enumerate(trace):
            _check_with_frames(f"device_traces[{at}][{number}]", event, _EVENT, seen)
            _check_pool(f"device_traces[{at}][{number}]", event, "pool_id")


def _check_with_frames(place: str, found: Any, form: _Form, seen: dict[int, None]) -> None:
    _check(place, found, form)
    frames = found.get("frames", [])
    if id(frames) not in seen:
        seen[id(frames)] = None
        for number, frame in enumerate(frames):
            _check(f"{place}['frames'][{number}]", frame, _FRAME)


def _check(place: str, found: Any, form: _Form) -> None:
    if not isinstance(found, dict):
        raise TypeError(f"{place} holds a {type(found).__name__}, not a dict")
    needed, types = form
    for key in needed:
        if key not in found:
            raise ValueError(f"{place} has no {key!r}")
    for key, value in found.items():
        wanted = types.get(key)
        if wanted is not None and not isinstance(value, wanted):
            kind = type(value).__name__
            raise TypeError(f"{key!r} of {place} is a {kind}, not a {wanted.__name__}")


def _check_pool(place: str, found: Mapping[str, Any], key: str) -> None:
    pool = found.get(key, (0, 0))
    is_pair = isinstance(pool, list | tuple) and len(pool) == 2
    if not (is_pair and all(isinstance(number, int) for number in pool)):
        raise ValueError(f"{key!r} of {place} is {pool!r:.60}, not two numbers")
