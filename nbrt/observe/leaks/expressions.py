"""How an array is reached from something with a name, written as a Python expression.

Any object of the program may come by, so nothing here runs code of their classes: even `isinstance`
asks a proxy for what it stands for.
"""

from __future__ import annotations

import gc
import reprlib
from collections import deque
from contextlib import suppress
from types import (
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.observe.leaks.frames import locals_of, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Link", "Paths", "is_array_type", "referents", "roots"]

_MAX_ELEMENTS = 10_000
"""Elements of an array of objects that are looked at."""

_LARGE = 50
"""Elements of a container from which on it is remembered where they are."""

_GONE = object()

_PLAIN = (str, bytes, int, float, bool, type(None))
"""The types of keys that are written out: `repr` of any other runs code of the program."""


class Link:
    """One step of a chain from a holder down to an array."""

    __slots__ = ("below", "held")

    def __init__(self, held: Any, below: Link | None = None) -> None:
        self.held = held
        self.below = below


def is_array_type(cls: type) -> bool:
    """Return whether objects of a class can be device arrays."""
    return any("__dlpack__" in vars(base) for base in cls.__mro__)


def referents(holder: Any) -> list[Any]:
    """Return what an object refers to."""
    if issubclass(type(holder), np.ndarray):
        array = np.ndarray.view(holder, np.ndarray)
        if array.dtype == object:
            return [array.flat[place] for place in range(min(array.size, _MAX_ELEMENTS))]
    return gc.get_referents(holder)


def roots(held: Any) -> list[tuple[str, str]]:
    """Return the name of an object that needs no further explanation, if it is one."""
    if _is_globals(held):
        return [("", f", a global of {held['__name__']}")]
    cls = type(held)
    if cls is FrameType:
        return [("", f", a local of {place_of(held)}, which has ended{_keeper(held)}")]
    if issubclass(cls, type | FunctionType) and "<locals>" not in str(held.__qualname__):
        return [(f"{held.__module__}.{held.__qualname__}", "")]
    if issubclass(cls, ModuleType):
        name = (_namespace(held) or {}).get("__name__")  # a lazy module would be loaded by asking
        return [(name, "")] if type(name) is str else []
    return []


def _is_globals(held: object) -> bool:
    return type(held) is dict and "__builtins__" in held and type(held.get("__name__")) is str


def _keeper(frame: FrameType) -> str:
    kept = any(type(each) is TracebackType for each in gc.get_referrers(frame))
    return "; a traceback keeps it (see release_tracebacks)" if kept else ""


class Paths:
    """Writes paths, and remembers where things are in large containers.

    Made for one search, and let go of before the program goes on and changes them.
    """

    def __init__(self) -> None:
        # By the `id` of a container and of what is in it: the first key or place it is at.
        self._known: dict[int, dict[int, Any]] = {}

    def path(self, link: Link, is_namespace: bool = False) -> tuple[str, bool]:
        """Return what to write behind the name of the first object to reach the last.

        With it goes, as it comes in, whether the object at the end is the namespace of that name.
        """
        text = ""
        is_namespace = is_namespace or _is_globals(link.held)
        while link.below is not None:
            held, inner = link.held, link.below.held
            cls = type(held)
            if issubclass(cls, dict):
                key = self._key(held, inner)
                text += ".<key>" if key is _GONE else _subscript(key, is_namespace)
                is_namespace = False
            elif _namespace(held) is inner or (issubclass(cls, type) and type(inner) is dict):
                is_namespace = True
            elif issubclass(cls, list | tuple | deque | np.ndarray):
                place = self._key(held, inner)
                flat = ".flat" if issubclass(cls, np.ndarray) else ""
                text += f"{flat}[{'?' if place is _GONE else place}]"
            else:
                text += _step(held, inner)
            link = link.below
        return text, is_namespace

    def _key(self, held: Any, inner: Any) -> Any:
        """Return the key or place of an element; another thread may have taken it out just now."""
        known = self._known.get(id(held))
        if known is None:
            items = _items(held)
            if len(items) < _LARGE:
                return next((key for key, value in items if value is inner), _GONE)
            known = self._known[id(held)] = {}
            for key, value in items:
                known.setdefault(id(value), key)
        return known.get(id(inner), _GONE)


def _items(held: Any) -> tuple[tuple[Any, Any], ...]:
    """Return the elements of a container, each behind its key or place."""
    cls = type(held)
    if issubclass(cls, dict):
        return tuple(dict.items(held))
    for sequence in (list, tuple, deque):
        if issubclass(cls, sequence):
            return tuple(enumerate(tuple(sequence.__iter__(held))))
    return tuple(enumerate(referents(held)))


def _subscript(key: Any, is_namespace: bool) -> str:
    if is_namespace and type(key) is str:
        return f".{key}"
    return f"[{reprlib.repr(key) if _is_plain(key) else f'<{type(key).__name__}>'}]"


def _is_plain(key: Any) -> bool:
    cls = type(key)
    return cls in _PLAIN or (cls is tuple and all(map(_is_plain, tuple.__iter__(key))))


def _step(held: Any, inner: Any) -> str:
    cls = type(held)
    if cls is CellType:
        return ".cell_contents"
    frame = held if cls is FrameType else None
    if cls is GeneratorType:
        frame = held.gi_frame
    elif cls is CoroutineType:
        frame = held.cr_frame
    named = _attributes(held) if frame is None else iter(locals_of(frame).items())
    name = next((name for name, value in named if value is inner), None)
    return f".<{type(inner).__name__}>" if name is None else f".{name}"


def _namespace(held: object) -> Any:
    with suppress(AttributeError):
        return object.__getattribute__(held, "__dict__")
    return None


def _attributes(held: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that lie in an object, without running code of its class."""
    yield from dict(_namespace(held) or {}).items()
    if type(held) is FunctionType:
        yield "__defaults__", held.__defaults__
    for cls in type(held).__mro__:
        for name, member in list(vars(cls).items()):
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):
                    yield name, member.__get__(held)
