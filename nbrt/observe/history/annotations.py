"""`annotate`: names for parts of a program, which memory history writes beside what it sees."""

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

__all__ = ["AnnotationListener", "annotate", "current_annotations", "entered", "listen"]

Wrapped = TypeVar("Wrapped", bound="Callable[..., Any]")


class AnnotationListener(Protocol):
    """Something that is told when an annotation begins and ends."""

    def annotated(self, name: str, stage: Literal["START", "END"]) -> None:
        """See that the innermost annotation of the running thread or task begins or has ended."""
        ...


_listeners: tuple[AnnotationListener, ...] = ()
_lock = threading.Lock()
_entered: ContextVar[tuple[annotate, ...]] = ContextVar("nbrt_annotations", default=())

entered = _entered.get
"""Return the annotations in force, the outermost first; a bare C call for the sake of recorders."""


class annotate:  # noqa: N801  # read as a statement: with annotate("epoch 3")
    """Name a part of the program; a context manager and a decorator.

    Memory history writes the names in force beside every event (``user_metadata`` in a snapshot),
    and the beginning and the end of each as entries of their own. Annotations nest, and belong to
    the thread or asyncio task that entered them. With nobody recording they cost about a
    microsecond.

    Parameters
    ----------
    name : str
        What to call it.

    Raises
    ------
    ArgumentTypeError
        If the name is no text, or what is decorated is a generator: that runs in pieces, of which
        the caller of each decides where; use a ``with`` block inside it.

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
        _entered.set((*_entered.get(), self))
        for listener in _listeners:
            listener.annotated(self.name, "START")
        return self

    def __exit__(self, *_failure: object) -> None:
        for listener in _listeners:
            listener.annotated(self.name, "END")
        # Not by token: a generator suspended inside a block may end in another context, or late.
        inside = _entered.get()
        for place in range(len(inside) - 1, -1, -1):
            if inside[place] is self:
                _entered.set(inside[:place] + inside[place + 1 :])
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
    """Return the names in force in the running thread or task, the outermost first."""
    return tuple(each.name for each in _entered.get())


@contextmanager
def listen(listener: AnnotationListener) -> Iterator[None]:
    """Tell `listener` of every annotation, in every thread, for the length of a block."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _lock:
            _listeners = tuple(each for each in _listeners if each is not listener)
