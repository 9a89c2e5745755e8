"""`graph`: captures the work of a ``with`` block, or of a function."""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, get_args

from nbrt.backends.driver_capture import CaptureErrorMode
from nbrt.errors import ArgumentError, ArgumentTypeError, CaptureError
from nbrt.graphs.capture import StreamCapture
from nbrt.graphs.graph import Graph
from nbrt.graphs.hooks import call_hooks
from nbrt.graphs.stream_methods import stream_method
from nbrt.runtime.memory.pool import MemoryPool, use_pool
from nbrt.runtime.stream import Stream, checked_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from types import FrameType, TracebackType

    from nbrt.backends.graphs import ArrayView

__all__ = ["GraphFunction", "graph"]

_P = ParamSpec("_P")
_MAX_GRAPHS = 16


class graph:  # noqa: N801  # used like a function, as `torch.cuda.graph` is
    """Capture the work of a block, or of a function, instead of running it.

    In the block, and in streams that wait for its events, launches, copies, fills, draws,
    allocations, events, host calls and replays of other graphs are recorded. Nothing runs.
    Functions of NumPy are no work of a stream: they run at the capture, on memory without values.

    Parameters
    ----------
    stream : Stream, optional
        The stream to capture, which is current in the block; a new one of the current device by
        default.
    pool : MemoryPool, optional
        The memory of arrays made in the block; a new pool by default. Graphs may share one if they
        are not replayed at the same time.
    error_mode : {"thread_local", "global", "relaxed"}
        On cuda, which threads' calls that a capture excludes are refused.
    on_error : {"raise", "eager"}
        For functions: what to do if a call cannot be captured. ``"eager"`` runs the function
        without a capture, and captures again at the next call.
    deterministic : bool
        Whether nodes without an order between them run in one fixed order.

    Raises
    ------
    CaptureError
        If a call cannot be captured. Streams, pools and generators are then as before.

    Examples
    --------
    As a block, whose graph is complete at its end:

    >>> import nbrt
    >>> with nbrt.device("cpu:0"):
    ...     x = nbrt.zeros(2)
    ...     with nbrt.graph() as g:
    ...         _ = nbrt.default_generator().random(out=x, dtype="float32")
    ...     g.replay()

    As a decorator; the first call with arguments of these types captures, all calls replay:

    >>> from numba import cuda
    >>> @nbrt.kernel
    ... def scale(x, factor):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] *= factor
    >>> @nbrt.graph
    ... def twice(x):
    ...     scale.forall(x.size)(x, 3.0)
    ...     scale.forall(x.size)(x, 2.0)
    >>> with nbrt.device("cpu:0"):
    ...     y = nbrt.full(2, 1.0)
    ...     twice(y)
    >>> y
    array([6., 6.])
    """

    def __new__(cls, stream: Any = None, *args: Any, **options: Any) -> Any:  # noqa: D102
        if inspect.isroutine(stream):
            return GraphFunction(stream, cls(*args, **options))
        return super().__new__(cls)

    def __init__(
        self,
        stream: Stream | None = None,
        pool: MemoryPool | None = None,
        error_mode: CaptureErrorMode = "thread_local",
        *,
        on_error: str = "raise",
        deterministic: bool = False,
    ) -> None:
        if stream is not None:
            checked_stream(stream)
        if pool is not None and not isinstance(pool, MemoryPool):
            raise ArgumentTypeError(f"expected an nbrt.MemoryPool, got {pool!r}")
        if error_mode not in get_args(CaptureErrorMode):
            modes = ", ".join(get_args(CaptureErrorMode))
            raise ArgumentError(f"expected one of {modes} as error_mode, got {error_mode!r}")
        if on_error not in ("raise", "eager"):
            raise ArgumentError(f'expected on_error as "raise" or "eager", got {on_error!r}')
        self._stream = stream
        self._pool = pool
        self._error_mode = error_mode
        self._on_error = on_error
        self._deterministic = bool(deterministic)
        self._stack: ExitStack | None = None
        self._capture: StreamCapture | None = None
        self._graph: Graph | None = None

    def __call__(self, function: Callable[_P, Any]) -> GraphFunction[_P]:
        """Return the function as one whose work is captured."""
        if not callable(function):
            raise ArgumentTypeError(f"expected a function to capture, got {function!r}")
        return GraphFunction(function, self)

    def __enter__(self) -> Graph:
        if self._stack is not None:
            raise CaptureError(
                "expected one capture for each nbrt.graph, got a second one inside; make another "
                "nbrt.graph() for the inner block"
            )
        stream = Stream() if self._stream is None else self._stream
        pool = MemoryPool(stream.device) if self._pool is None else self._pool
        if pool.device != stream.device:
            raise ArgumentError(
                f"expected a pool of {stream.device}, the stream's device, got {pool!r}"
            )
        stream.interface.lazy.ensure()
        made = Graph(stream.device, pool)
        capture = StreamCapture(stream, pool, self._error_mode)
        with ExitStack() as stack:
            stack.enter_context(capture.recording())
            enter = stream_method(stream.device.kind, "create_stream_context")
            stack.enter_context(enter(stream))
            stack.enter_context(use_pool(pool))
            made._capture = capture
            stack.callback(setattr, made, "_capture", None)
            call_hooks("capture_begin", made)
            self._stack = stack.pop_all()
        self._capture, self._graph = capture, made
        return made

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        named = {} if error is not None else _variables(sys._getframe(1))
        self._end(kind, error, traceback, named)

    def _end(self, kind: Any, error: Any, traceback: Any, named: Mapping[str, Any]) -> None:
        stack, capture, made = self._stack, self._capture, self._graph
        assert stack is not None
        assert capture is not None
        assert made is not None
        self._stack = self._capture = self._graph = None
        stack.__exit__(kind, error, traceback)
        if error is None:
            call_hooks("capture_end", made)
            made._finish(capture, _known(capture, named), deterministic=self._deterministic)

    def capture(self, function: Callable[..., Any], args: Mapping[str, Any]) -> Graph:
        """Capture a call of a function; the graph's arrays have the names of its arguments."""
        made = self.__enter__()
        try:
            made.result = function(**args)
        except BaseException as error:
            self._end(type(error), error, error.__traceback__, {})
            raise
        self._end(None, None, None, args)
        return made


class GraphFunction(Generic[_P]):
    """A function whose calls are captured once for each kind of arguments, and then replayed.

    Calls with arrays of another shape, dtype or device, or with other numbers, capture again.

    Parameters
    ----------
    function : callable
        Its work is captured; what it returns at the capture is returned by each call.
    options : graph
        The options of the captures.

    Attributes
    ----------
    graphs : list of Graph
        The graphs so far.
    """

    def __init__(self, function: Callable[_P, Any], options: graph) -> None:
        self._function = function
        self._options = options
        self._signature = inspect.signature(function)
        self._graphs: dict[Hashable, Graph] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> Any:
        """Capture the function, if arguments of this kind are new, and replay its graph."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        key = tuple((name, _kind(value)) for name, value in bound.arguments.items())
        made = self._graphs.get(key)
        if made is None:
            try:
                made = self._options.capture(self._call, bound.arguments)
            except CaptureError:
                if self._options._on_error == "raise":
                    raise
                return self._function(*args, **kwargs)
            if len(self._graphs) >= _MAX_GRAPHS:
                self._graphs.clear()
            self._graphs[key] = made
            made.replay()
            return made.result
        given = bound.arguments
        made.replay(**{name: given[name] for name in made.parameters if _is_array(given.get(name))})
        return made.result

    def _call(self, **arguments: Any) -> Any:
        bound = inspect.BoundArguments(self._signature, arguments)
        return self._function(*bound.args, **bound.kwargs)

    @property
    def graphs(self) -> list[Graph]:
        """The graphs that calls have captured."""
        return list(self._graphs.values())


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "strides")


def _kind(value: Any) -> Hashable:
    """Return what arguments of one graph have in common: of arrays all but the values."""
    if _is_array(value):
        return type(value), tuple(value.shape), str(value.dtype), tuple(value.strides)
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _variables(frame: FrameType) -> Mapping[str, Any]:
    """Return the local variables of the capturing function."""
    return dict(frame.f_locals)


def _known(capture: StreamCapture, named: Mapping[str, Any]) -> dict[str, tuple[Any, ArrayView]]:
    """Return the arrays among variables that the capture has used."""
    found = {}
    for name, value in named.items():
        view = capture.table.known_view(value)
        if view is not None and not name.startswith("_"):
            found[name] = value, view
    return found
