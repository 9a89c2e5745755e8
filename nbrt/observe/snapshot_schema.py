"""The schema of memory snapshots: the parts of torch's format that nbrt relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_snapshot", "check_types"]

_Path: TypeAlias = tuple[str | int, ...]
"""Keys and indices that lead to a part of a snapshot."""

# The required keys of each kind of part, and the types of known keys. torch adds further keys.
_SCHEMA: dict[str, tuple[tuple[str, ...], dict[str, type]]] = {
    "snapshot": (
        ("segments", "device_traces"),
        {"segments": list, "device_traces": list, "external_annotations": list, "nbrt": dict},
    ),
    "segment": (
        ("address", "total_size", "blocks"),
        {"address": int, "total_size": int, "blocks": list, "device": int, "stream": int},
    ),
    "block": (
        ("size", "state"),
        {"address": int, "size": int, "requested_size": int, "state": str, "frames": list},
    ),
    "event": (
        ("action",),
        {
            "action": str, "addr": int, "size": int, "stream": int, "time_us": int, "frames": list,
            "device_free": int, "stage": str, "name": str,
        },
    ),
    "frame": (("filename", "line", "name"), {"filename": str, "line": int, "name": str}),
}  # fmt: skip
_TYPE_NAMES = {int: "an int", str: "a text", list: "a list", dict: "a mapping"}
_POOL_IDS = {"segment_pool_id", "pool_id"}

_MAX_NUMBER = 2**63 - 1
"""Plots compute with 64-bit integers."""

_ALLOCATION, _SEGMENT = ("time_us", "addr", "size"), ("time_us", "size")
_EVENT_NUMBERS: dict[str, tuple[str, ...]] = {
    "alloc": _ALLOCATION,
    "free_requested": _ALLOCATION,
    "free_completed": _ALLOCATION,
    "segment_alloc": _SEGMENT,
    "segment_free": _SEGMENT,
    "segment_map": _SEGMENT,
    "segment_unmap": _SEGMENT,
    "oom": ("time_us", "size", "device_free"),
}
"""The numbers that plots need of an event, by its action."""


def check_types(snapshot: Any) -> None:
    """Raise a ValueError if a part of a snapshot lacks a required key or has a wrong type.

    Examples
    --------
    >>> check_types({"segments": [], "device_traces": [[{}]]})
    Traceback (most recent call last):
    ValueError: ['device_traces'][0][0] has no 'action'
    """
    for kind, path, part in _parts(snapshot):
        required, types = _SCHEMA[kind]
        for key in required:
            if key not in part:
                raise _wrong_item(part, key, path, "")
        for key, value in part.items():
            expected = types.get(key)
            if expected is not None and not isinstance(value, expected):
                raise _wrong_item(part, key, path, _TYPE_NAMES[expected])
        for key in part.keys() & _POOL_IDS:
            pool = part[key]
            is_pair = isinstance(pool, list | tuple) and len(pool) == 2
            if not (is_pair and all(isinstance(number, int) for number in pool)):
                raise _wrong_item(part, key, path, "two numbers")


def check_snapshot(snapshot: Any) -> None:
    """Raise an error that names the part of a snapshot that cannot be plotted.

    Checks only the values that plots need.

    Raises
    ------
    ArgumentTypeError
        If it is no snapshot.
    ArgumentError
        If a part of it is missing or invalid.

    Examples
    --------
    >>> check_snapshot({"segments": [], "device_traces": [[{"action": "oom", "time_us": 5}]]})
    Traceback (most recent call last):
    nbrt.errors.ArgumentError: expected a memory snapshot in torch's format, got one in which
    ['device_traces'][0][0] has no 'size'; take one with nbrt.memory.snapshot()
    """
    is_mapping = isinstance(snapshot, Mapping)
    lists = [snapshot.get(key) for key in ("segments", "device_traces")] if is_mapping else [None]
    if not all(isinstance(part, Sequence) for part in lists):
        raise ArgumentTypeError(
            f"expected a memory snapshot, a mapping with the lists 'segments' and 'device_traces', "
            f"got {type(snapshot).__name__}; take one with nbrt.memory.snapshot()"
        )
    try:
        for kind, path, part in _parts(snapshot):
            _check_plotted(kind, path, part)
    except ValueError as error:
        raise ArgumentError(
            f"expected a memory snapshot in torch's format, got one in which {error}; take one "
            f"with nbrt.memory.snapshot()"
        ) from None


def _check_plotted(kind: str, path: _Path, part: Mapping[str, Any]) -> None:
    match kind:
        case "event":
            _check_text(part, "action", path)
            action = part["action"]
            _check_numbers(part, _EVENT_NUMBERS.get(action, ("time_us",)), path)
            if action == "annotate" and part.get("stage") != "END":
                _check_text(part, "name", path)
        case "frame":
            _check_numbers(part, ("line",), path)
            _check_text(part, "filename", path)
            _check_text(part, "name", path)
        case "block":
            _check_numbers(part, ("address", "size"), path)
            _check_text(part, "state", path)
            if part["state"].startswith("active"):
                _check_numbers(part, ("requested_size",), path)
        case "segment":
            optional = [key for key in ("device", "stream") if key in part]
            _check_numbers(part, ("address", "total_size", *optional), path)
        case "snapshot":
            own = part.get("nbrt") or {}
            _check_mapping(own, ("nbrt",))
            if own.get("kind") is not None:
                _check_text(own, "kind", ("nbrt",))


def _parts(snapshot: Any) -> Iterator[tuple[str, _Path, Mapping[str, Any]]]:
    """Yield kind, path and value of every part; a stack that several parts share, once.

    A part is yielded before its lists are read, so that the caller can check it first.
    """
    seen: set[int] = set()

    def stack(part: Mapping[str, Any], path: _Path) -> Iterator[tuple[str, _Path, Any]]:
        frames = part.get("frames", ())
        if id(frames) not in seen:
            seen.add(id(frames))
            yield from _list("frame", frames, (*path, "frames"))

    _check_mapping(snapshot, ())
    yield "snapshot", (), snapshot
    for kind, path, segment in _list("segment", snapshot["segments"], ("segments",)):
        yield kind, path, segment
        for part in _list("block", segment.get("blocks"), (*path, "blocks")):
            yield part
            yield from stack(part[2], part[1])
    for at, trace in enumerate(snapshot["device_traces"]):
        for part in _list("event", trace, ("device_traces", at)):
            yield part
            yield from stack(part[2], part[1])


def _list(kind: str, parts: Any, path: _Path) -> Iterator[tuple[str, _Path, Mapping[str, Any]]]:
    if not isinstance(parts, Sequence) or isinstance(parts, str | bytes):
        raise _wrong(parts, path, "a list")
    for at, part in enumerate(parts):
        inner = (*path, at)
        _check_mapping(part, inner)
        yield kind, inner, part


def _check_mapping(part: Any, path: _Path) -> None:
    if type(part) is not dict and not isinstance(part, Mapping):
        raise _wrong(part, path, "a mapping")


def _check_numbers(part: Mapping[str, Any], keys: Sequence[str], path: _Path) -> None:
    for key in keys:
        value: Any = part.get(key)
        if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
            raise _wrong_item(part, key, path, "an int from 0 to 2**63 - 1")


def _check_text(part: Mapping[str, Any], key: str, path: _Path) -> None:
    if not isinstance(part.get(key), str):
        raise _wrong_item(part, key, path, "a text")


def _wrong_item(part: Mapping[str, Any], key: str, path: _Path, expected: str) -> ValueError:
    if key not in part:
        return ValueError(f"{_text(path)} has no {key!r}")
    return _wrong(part[key], (*path, key), expected)


def _wrong(value: Any, path: _Path, expected: str) -> ValueError:
    return ValueError(f"{_text(path)} is {value!r:.60}, not {expected}")


def _text(path: _Path) -> str:
    return "".join(f"[{step!r}]" for step in path) or "the snapshot"
