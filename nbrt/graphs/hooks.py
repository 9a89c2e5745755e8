"""Functions that are called when graphs are captured, instantiated, replayed or destroyed."""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from nbrt.errors import ArgumentError, ArgumentTypeError, NbrtCleanupWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["GraphEvent", "call_hooks", "check_captures", "on", "run_checks"]

GraphEvent: TypeAlias = Literal[
    "capture_begin", "capture_end", "instantiate", "replay_begin", "replay_end", "destroy"
]

_functions: dict[str, tuple[Callable[[Any], object], ...]] = {}
_checks: tuple[Callable[[Any], object], ...] = ()
_lock = threading.Lock()


@contextlib.contextmanager
def on(event: GraphEvent, function: Callable[[Any], object]) -> Iterator[None]:
    """Call a function with each graph at an event, of all threads, for the length of a block.

    Parameters
    ----------
    event : str
        ``"capture_begin"``, ``"capture_end"``, ``"instantiate"``, ``"replay_begin"`` (before the
        replay is queued), ``"replay_end"`` (after it was queued) or ``"destroy"``.
    function : callable
        Takes the `Graph`. Its exceptions become warnings.

    Examples
    --------
    >>> import nbrt
    >>> seen = []
    >>> with nbrt.graphs.on("instantiate", lambda g: seen.append(len(g.nodes))):
    ...     with nbrt.device("cpu:0"), nbrt.graph() as g:
    ...         x = nbrt.zeros(4)
    >>> seen
    [1]
    """
    if event not in get_args(GraphEvent):
        names = ", ".join(get_args(GraphEvent))
        raise ArgumentError(f"expected an event of graphs ({names}), got {event!r}")
    if not callable(function):
        raise ArgumentTypeError(f"expected a function to call, got {function!r}")
    with _lock:
        _functions[event] = (*_functions.get(event, ()), function)
    try:
        yield
    finally:
        with _lock:
            left = list(_functions[event])
            left.remove(function)
            _functions[event] = tuple(left)


def call_hooks(event: GraphEvent, graph: Any) -> None:
    """Call the functions of an event."""
    for function in _functions.get(event, ()):
        try:
            function(graph)
        except Exception as error:  # noqa: BLE001  # the graph is in order
            message = f"a hook of graphs failed at {event!r}: {error!r}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=3)


@contextlib.contextmanager
def check_captures(function: Callable[[Any], object]) -> Iterator[None]:
    """Call a function with each graph at the end of its capture; an exception refuses the graph."""
    global _checks
    with _lock:
        _checks = (*_checks, function)
    try:
        yield
    finally:
        with _lock:
            left = list(_checks)
            left.remove(function)
            _checks = tuple(left)


def run_checks(graph: Any) -> None:
    """Call the functions of `check_captures`."""
    for function in _checks:
        function(graph)
