"""`GraphFunction`: a function that is captured once for each kind of arguments."""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec

from nbrt.errors import ArgumentTypeError, CaptureError
from nbrt.graphs.call_arguments import CallArguments, Returned
from nbrt.runtime.configured_kernel import ConfiguredKernel
from nbrt.runtime.kernel import Kernel
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from typing import Protocol

    from nbrt.graphs.graph import Graph
    from nbrt.runtime.stream import Stream

    class _Options(Protocol):
        """The options of captures: a `nbrt.graph`."""

        @property
        def captured_stream(self) -> Stream | None:
            """Return the stream that was chosen."""
            ...

        @property
        def on_error(self) -> str:
            """Return what to do with calls that cannot be captured."""
            ...

        def capture(self, function: Callable[[], Any], named: Mapping[str, Any]) -> Graph:
            """Capture a call."""
            ...


__all__ = ["GraphFunction"]

_P = ParamSpec("_P")
_MAX_GRAPHS = 16


class _Entry(NamedTuple):
    """A graph of calls with one key.

    Attributes
    ----------
    graph : Graph
        The graph.
    returned : Returned
        What the calls return.
    replaced : tuple of str
        The arrays that each call replaces.
    watched : tuple of weakref.ref
        The objects of the key: the entry is dropped when one of them dies.
    """

    graph: Graph
    returned: Returned
    replaced: tuple[str, ...]
    watched: tuple[Any, ...]


class GraphFunction(Generic[_P]):
    """A function whose calls are captured once for each kind of arguments, and then replayed.

    Calls with arrays of another shape, dtype, strides or device, or with other numbers, capture
    again; containers are looked into. Objects count by identity: what a function reads from their
    attributes, or from globals, is that of the capture. Threads may call it at the same time, and
    it may call itself with other arguments. In a class it is a method.

    Parameters
    ----------
    function : callable
        Its work is captured. What it returns at the capture is returned by each call, with the
        arguments of the call and views of them in their places.
    options : graph
        The options of the captures.

    Attributes
    ----------
    graphs : list of Graph
        The graphs so far; at most 16 are kept.
    """

    def __init__(self, function: Callable[_P, Any], options: _Options) -> None:
        self._function = function
        self._options = options
        self._signature = _checked_signature(function)
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()
        functools.update_wrapper(self, function)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the function as a method of an object."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, /, *args: _P.args, **kwargs: _P.kwargs) -> Any:
        """Capture the function, if arguments of this kind are new, and replay its graph."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        chosen = self._options.captured_stream
        stream = current_stream() if chosen is None else chosen
        call = CallArguments(bound.arguments, stream.interface)
        key = stream.device, call.key
        entry = self._entries.get(key)
        if entry is None:
            try:
                made = self._options.capture(
                    lambda: self._function(*bound.args, **bound.kwargs), call.arrays
                )
            except CaptureError:
                if self._options.on_error == "raise":
                    raise
                return self._function(*args, **kwargs)
            entry = self._add(key, made, call, stream)
        arrays = call.arrays
        entry.graph._replay_with({name: arrays[name] for name in entry.replaced})
        return entry.returned.of(call)

    def _add(self, key: Hashable, made: Graph, call: CallArguments, stream: Stream) -> _Entry:
        """Keep a graph for later calls, unless another thread was faster."""
        used = made._parameters
        names = () if used is None else used.arrays
        forget = functools.partial(_forget, weakref.ref(self), key)
        entry = _Entry(
            made,
            Returned(made.result, call, stream.interface),
            tuple(name for name in names if name not in call.fixed),
            tuple(each for each in map(functools.partial(_watch, forget), call.objects) if each),
        )
        with self._lock:
            while len(self._entries) >= _MAX_GRAPHS:
                del self._entries[next(iter(self._entries))]
            return self._entries.setdefault(key, entry)

    @property
    def graphs(self) -> list[Graph]:
        """The graphs that calls have captured."""
        return [entry.graph for entry in list(self._entries.values())]


def _forget(function: Any, key: Hashable, _: object) -> None:
    """Drop the graph of an object that has died."""
    alive = function()
    if alive is not None:
        alive._entries.pop(key, None)


def _watch(forget: Callable[[Any], None], value: Any) -> Any:
    """Return a reference that calls a function when an object dies; None if it has none."""
    try:
        return weakref.ref(value, forget)
    except TypeError:
        return None


def _checked_signature(function: Any) -> inspect.Signature:
    """Return the signature of a function that can be captured."""
    if isinstance(function, (Kernel, ConfiguredKernel)):
        raise ArgumentTypeError(
            f"expected a function to capture, got the kernel {function!r}; capture a function that "
            f"launches it"
        )
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise ArgumentTypeError(
            f"expected a function to capture, got a {kind}; put @{kind} above @nbrt.graph"
        )
    if not callable(function) or isinstance(function, type):
        raise ArgumentTypeError(f"expected a function to capture, got {function!r}")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    for test, kind in (
        (inspect.isasyncgenfunction, "an asynchronous generator function"),
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isgeneratorfunction, "a generator function"),
    ):
        if test(inner):
            raise ArgumentTypeError(
                f"expected a function that runs when it is called, got {kind}, {function!r}; "
                f"capture the calls inside of it"
            )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"expected a function with a signature, got {function!r}; wrap it in a def"
        ) from error
