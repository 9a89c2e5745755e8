"""Python expressions that lead from an object with a name to an array.

The search meets arbitrary objects and must not run code of their classes. It avoids `isinstance`,
which queries a proxy for the class of its target.
"""

from __future__ import annotations

import gc
import inspect
import reprlib
import sys
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

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Link",
    "Paths",
    "is_array_type",
    "is_function",
    "is_of_search",
    "locals_of",
    "place_of",
    "referents",
    "root_names",
    "running_frames",
]

_MAX_ELEMENTS = 10_000
"""Elements of an object array that are searched."""

_LARGE = 50
"""Containers with at least so many elements get an index."""

_GONE = object()

_PLAIN = (str, bytes, int, float, bool, type(None))
"""Types of keys whose `repr` runs no code of the program."""


class Link:
    """One step of a chain from a referrer down to an array."""

    __slots__ = ("below", "held")

    def __init__(self, held: Any, below: Link | None = None) -> None:
        self.held = held
        self.below = below


def is_array_type(cls: type) -> bool:
    """Return whether objects of a class can be device arrays; fake ones have no DLPack."""
    return any(
        "__dlpack__" in vars(base) or "__array_function__" in vars(base) for base in cls.__mro__
    )


def referents(holder: Any) -> list[Any]:
    """Return the objects that an object refers to."""
    if issubclass(type(holder), np.ndarray):
        array = np.ndarray.view(holder, np.ndarray)
        if array.dtype == object:
            return [array.flat[index] for index in range(min(array.size, _MAX_ELEMENTS))]
    return gc.get_referents(holder)


def root_names(held: Any) -> list[tuple[str, str]]:
    """Return name and location of a global namespace, module, class, function or dead frame."""
    if _is_globals(held):
        return [("", f", a global of {held['__name__']}")]
    cls = type(held)
    if cls is FrameType:
        return [("", f", a local of {place_of(held)}, which has ended{_keeper(held)}")]
    if issubclass(cls, type | FunctionType) and "<locals>" not in str(held.__qualname__):
        return [(f"{held.__module__}.{held.__qualname__}", "")]
    if issubclass(cls, ModuleType):
        name = (_namespace(held) or {}).get("__name__")  # `getattr` would load a lazy module
        return [(name, "")] if type(name) is str else []
    return []


def _is_globals(held: object) -> bool:
    return type(held) is dict and "__builtins__" in held and type(held.get("__name__")) is str


def _keeper(frame: FrameType) -> str:
    is_kept = any(type(each) is TracebackType for each in gc.get_referrers(frame))
    return "; a traceback keeps it (see release_tracebacks)" if is_kept else ""


class Paths:
    """Formats paths, with an index of large containers.

    Valid for one search only, because the program changes the containers.
    """

    def __init__(self) -> None:
        # The first key or index of an element, by the ids of the container and of the element.
        self._index: dict[int, dict[int, Any]] = {}

    def path(self, link: Link, is_namespace: bool = False) -> tuple[str, bool]:
        """Return the path from the first object of a chain to the last, as text behind its name.

        Return also whether the last object is the namespace of the named object, as `is_namespace`
        says of the first.
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
                index = self._key(held, inner)
                flat = ".flat" if issubclass(cls, np.ndarray) else ""
                text += f"{flat}[{'?' if index is _GONE else index}]"
            else:
                text += _step(held, inner)
            link = link.below
        return text, is_namespace

    def _key(self, held: Any, inner: Any) -> Any:
        """Return the key or index of an element; `_GONE` if another thread has removed it."""
        index = self._index.get(id(held))
        if index is None:
            items = _items(held)
            if len(items) < _LARGE:
                return next((key for key, value in items if value is inner), _GONE)
            index = self._index[id(held)] = {}
            for key, value in items:
                index.setdefault(id(value), key)
        return index.get(id(inner), _GONE)


def _items(held: Any) -> tuple[tuple[Any, Any], ...]:
    """Return the pairs of key or index and element of a container."""
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
    """Yield the attributes stored in an object without running code of its class."""
    yield from dict(_namespace(held) or {}).items()
    if type(held) is FunctionType:
        yield "__defaults__", held.__defaults__
    for cls in type(held).__mro__:
        for name, member in list(vars(cls).items()):
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):
                    yield name, member.__get__(held)


def is_function(frame: FrameType) -> bool:
    """Return whether a frame belongs to a function, not to a module or a class body."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame by name."""
    f_locals = frame.f_locals
    variables = dict(f_locals)
    # Before Python 3.13, `f_locals` is a copy that the frame keeps alive together with its values
    # until the function ends. Its three references are those of the frame, this function and the
    # call.
    is_copy = type(f_locals) is dict and is_function(frame) and frame.f_trace is None
    if is_copy and sys.getrefcount(f_locals) <= 3:
        f_locals.clear()
    return variables


def running_frames() -> list[FrameType]:
    """Return the frames of all threads, innermost first, without the frames of this search."""
    frames: list[FrameType] = []
    innermost = list(sys._current_frames().values())
    while innermost:  # `pop`: a variable that refers to this frame would form a cycle
        frame: FrameType | None = innermost.pop()
        while frame is not None:
            if not is_of_search(frame):
                frames.append(frame)
            frame = frame.f_back
    return frames


def is_of_search(held: object) -> bool:
    """Return whether an object is a frame or a generator of this search, which must skip itself."""
    frame: Any = held.gi_frame if type(held) is GeneratorType else held
    if type(frame) is not FrameType:
        return False
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(__package__)


def place_of(frame: FrameType) -> str:
    """Return the function and line of a frame, as ``name() (file:line)``."""
    code = frame.f_code
    return f"{code.co_qualname}() ({code.co_filename}:{frame.f_lineno})"
