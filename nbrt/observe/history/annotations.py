"""`annotate`: named ranges of a program, which the memory history records with its events."""

from __future__ import annotations

import functools
import inspect
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["AnnotationListener", "active_annotations", "annotate", "current_annotations", "listen"]

Wrapped = TypeVar("Wrapped", bound="Callable[..., Any]")


class AnnotationListener(Protocol):
    """A listener for the start and end of annotations."""

    def annotated(self, name: str, stage: Literal["START", "END"]) -> None:
        """Handle the start or end of the innermost annotation of the running thread or task."""
        ...


_listeners: tuple[AnnotationListener, ...] = ()
_lock = threading.Lock()
_active: ContextVar[tuple[annotate, ...]] = ContextVar("nbrt_annotations", default=())

active_annotations = _active.get
"""Return the active annotations, the outermost first. Recorders call it often: a plain C call."""


class annotate:  # noqa: N801  # read as a statement: with annotate("epoch 3")
    """Name a range of the program; a context manager and a decorator.

    The memory history records the active names with every event (``user_metadata`` in a snapshot),
    and the start and end of each annotation as separate entries. Annotations nest and belong to the
    thread or asyncio task that entered them. Without a recorder they cost about a microsecond.

    Parameters
    ----------
    name : str
        Name of the range.

    Raises
    ------
    ArgumentTypeError
        If the name is not a text, or the decorated function is a generator, whose parts run in the
        contexts of its callers; use a ``with`` block inside it.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.memory.annotate("epoch 3"), nbrt.memory.annotate("evaluation"):
    ...     current_annotations()
    ('epoch 3', 'evaluation')
    >>> @nbrt.memory.annotate("load")
    ... def load():
    ...     return current_annotations()
    >>> load(), current_annotations()
    (('load',), ())
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError(
                f"expected a name as text, got {name!r} of type {type(name).__name__}; as a "
                f"decorator write @annotate('name')"
            )
        self.name = name

    def __enter__(self) -> annotate:
        _active.set((*_active.get(), self))
        for listener in _listeners:
            listener.annotated(self.name, "START")
        return self

    def __exit__(self, *_failure: object) -> None:
        for listener in _listeners:
            listener.annotated(self.name, "END")
        # Not by token: a generator suspended inside a block may end in another context, or late.
        active = _active.get()
        for index in range(len(active) - 1, -1, -1):
            if active[index] is self:
                _active.set(active[:index] + active[index + 1 :])
                break

    def __call__(self, function: Wrapped) -> Wrapped:
        """Return a function that runs under this name."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ArgumentTypeError(
                f"expected a function or coroutine function, got the generator {function!r}; "
                f"put 'with annotate({self.name!r}):' inside it"
            )
        wrapped: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        decorated: Wrapped = wrapped
        return decorated

    def __repr__(self) -> str:
        return f"annotate({self.name!r})"


def current_annotations() -> tuple[str, ...]:
    """Return the names active in the running thread or task, the outermost first."""
    return tuple(annotation.name for annotation in _active.get())


@contextmanager
def listen(listener: AnnotationListener) -> Iterator[None]:
    """Notify `listener` of every annotation in every thread during a ``with`` block."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _lock:
            _listeners = tuple(other for other in _listeners if other is not listener)
