"""`graph`: captures the work of a ``with`` block, or of a function."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, get_args

from nbrt.backends.driver_capture import CaptureErrorMode
from nbrt.errors import ArgumentError, ArgumentTypeError, CaptureError
from nbrt.graphs.capture import StreamCapture
from nbrt.graphs.function import GraphFunction
from nbrt.graphs.graph import Graph
from nbrt.graphs.hooks import call_hooks
from nbrt.graphs.stream_methods import stream_method
from nbrt.runtime.memory.pool import MemoryPool, use_pool
from nbrt.runtime.stream import Stream, checked_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType

    from nbrt.backends.graphs import ArrayView

__all__ = ["graph"]

_P = ParamSpec("_P")

_SNAPSHOT_REFERENCES = 3
"""The references to the variables of a frame: of the frame, `_variables`, and the counting call."""


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
        if callable(stream) and not isinstance(stream, Stream):
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
        self._lock = threading.RLock()
        self._stack: ExitStack | None = None
        self._capture: StreamCapture | None = None
        self._graph: Graph | None = None

    def __call__(self, function: Callable[_P, Any]) -> GraphFunction[_P]:
        """Return the function as one whose work is captured."""
        return GraphFunction(function, self)

    @property
    def captured_stream(self) -> Stream | None:
        """The stream that was chosen; None: a new one for each capture."""
        return self._stream

    @property
    def on_error(self) -> str:
        """The reaction of functions to a call that cannot be captured."""
        return self._on_error

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

    def capture(self, function: Callable[[], Any], named: Mapping[str, Any]) -> Graph:
        """Capture a call of a function; the graph's arrays have the given names.

        Threads may capture at the same time, and captures may nest.
        """
        is_shared = self._stream is not None or self._pool is not None
        with self._lock if is_shared else contextlib.nullcontext():
            stream = self._stream
            if stream is not None and stream.capture is not None:
                stream = Stream(stream.device)  # a function that calls itself
            block = graph(stream, self._pool, self._error_mode, deterministic=self._deterministic)
            made: Graph = block.__enter__()
            try:
                made.result = function()
            except BaseException as error:
                block._end(type(error), error, error.__traceback__, {})
                raise
            block._end(None, None, None, named)
        return made


def _variables(frame: FrameType) -> Mapping[str, Any]:
    """Return the arrays among the local variables of the capturing function, and the like."""
    values = frame.f_locals
    named = {name: value for name, value in values.items() if not name.startswith("_")}
    if "stream" in named:  # a keyword of `Graph.replay`
        named.setdefault("stream_", named.pop("stream"))
    is_snapshot = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    # Before Python 3.13 a frame keeps its snapshot, and so all objects in it, until it returns.
    # Someone else who has it has called `locals` in that function.
    if is_snapshot and sys.getrefcount(values) <= _SNAPSHOT_REFERENCES:
        values.clear()
    return named


def _known(capture: StreamCapture, named: Mapping[str, Any]) -> dict[str, tuple[Any, ArrayView]]:
    """Return the arrays among variables that the capture has used."""
    found = {}
    for name, value in named.items():
        view = capture.table.known_view(value)
        if view is not None:
            found[name] = value, view
    return found
