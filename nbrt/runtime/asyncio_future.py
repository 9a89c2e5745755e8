"""`queue_future`: the end of queued work as a future of asyncio."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Protocol

from nbrt.errors import NbrtCleanupWarning

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["queue_future"]


class _Notifier(Protocol):
    """A queue, or another ordered source of work."""

    def add_done_callback(self, callback: Callable[[BaseException | None], object]) -> None: ...


def queue_future(queue: _Notifier) -> asyncio.Future[None]:
    """Return a future of the running event loop for the work queued so far."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def set_result(error: BaseException | None) -> None:
        if future.done():
            if error is not None:
                warnings.warn(str(error), NbrtCleanupWarning, stacklevel=1)
        elif error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def on_done(error: BaseException | None) -> bool:
        # Without a waiter, the next synchronisation point raises the failure.
        if future.done() or loop.is_closed():
            return False
        try:
            loop.call_soon_threadsafe(set_result, error)
        except RuntimeError:  # closed meanwhile
            return False
        return True

    queue.add_done_callback(on_done)
    return future
