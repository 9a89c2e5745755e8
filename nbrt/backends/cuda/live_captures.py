"""`LiveCaptures`: the captures in progress in the process, and calls that they defer."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbrt.errors import NbrtCleanupWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LiveCaptures"]


_shared: list[LiveCaptures] = []


class LiveCaptures:
    """The captures that nbrt has begun in the process and not ended; use `shared`.

    CUDA forbids some calls during a capture: frees, queries of events, the destruction of another
    graph. Depending on the mode of the capture, a forbidden call fails, or makes it invalid.

    Parameters
    ----------
    bindings : module
        ``cuda.bindings.driver``.
    """

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        # Finalizers run at any point, so also within these methods.
        self._lock = threading.RLock()
        self._indices: dict[object, int] = {}
        self._waiting: deque[Callable[[], object]] = deque()

    @classmethod
    def shared(cls, bindings: Any) -> LiveCaptures:
        """Return the object of the process."""
        if not _shared:
            _shared.append(cls(bindings))
        return _shared[0]

    def __bool__(self) -> bool:
        return bool(self._indices)

    def add(self, capture: object, index: int) -> None:
        """Add a capture on a device."""
        with self._lock:
            self._indices[capture] = index

    def remove(self, capture: object) -> None:
        """Remove a capture; after the last one, make the deferred calls."""
        with self._lock:
            self._indices.pop(capture, None)
        self._run()

    def on_device(self, index: int) -> bool:
        """Return whether a capture is under way on a device."""
        with self._lock:
            return index in self._indices.values()

    def put_off(self, call: Callable[[], object]) -> None:
        """Make a call now, or after the end of the last capture; its errors become warnings."""
        self._waiting.append(call)
        self._run()

    def keep_until_end(self, resource: object) -> None:
        """Keep an object whose end frees memory until the captures under way have ended."""
        if self._indices:
            self._waiting.append([resource].clear)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow this thread for a block the calls that its captures exclude.

        They neither fail nor make a capture invalid then. Only for calls that touch no captured
        work, such as an allocation.
        """
        if not self._indices:
            yield
            return
        exchange = self._bindings.cuThreadExchangeStreamCaptureMode
        modes = self._bindings.CUstreamCaptureMode
        _, before = exchange(modes.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            yield
        finally:
            exchange(before)

    def _run(self) -> None:
        while self._waiting and not self._indices:
            try:
                call = self._waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                call()
            except Exception as error:  # noqa: BLE001  # a deferred call has no caller
                message = f"a release after a capture failed: {error!r}"
                warnings.warn(message, NbrtCleanupWarning, stacklevel=3)
