"""`CellRing`: page-locked memory for the values of each replay under way; `ReplayOrder`."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cuda.events import CudaEvent
from nbrt.backends.queue import EventOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["Cell", "CellRing", "ReplayOrder", "locked"]

_MAX_CELLS = 64
_WORD = 8


class Cell:
    """The values of one replay.

    Attributes
    ----------
    values : ndarray of uint64
        In page-locked memory; copies of the replay read and write it.
    event : CudaEvent
        Recorded behind the replay.
    queue : CudaQueue or None
        The queue of the replay.
    """

    __slots__ = ("event", "queue", "values")

    def __init__(self, event: CudaEvent) -> None:
        self.event = event
        self.values: Any = np.empty(0, np.uint64)
        self.queue: CudaQueue | None = None


class CellRing:
    """The cells of one graph, in the order of its replays.

    A replay does not wait for an earlier one on the host, so each keeps a cell until it is done.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self._driver = driver
        self._index = index
        self._cells: deque[Cell] = deque()

    @property
    def last(self) -> Cell | None:
        """The cell of the last replay."""
        return self._cells[-1] if self._cells else None

    def take(self, words: int) -> Cell:
        """Return a cell that no replay uses; call `add` after the replay is queued."""
        cell = self._reusable()
        if len(cell.values) < words:
            with self._driver.relaxed():
                memory = self._driver.staging.malloc(words * _WORD)
            cell.values = np.ndarray(words, np.uint64, memory)
        return cell

    def add(self, cell: Cell, queue: CudaQueue) -> None:
        """Record the cell's event behind the replay."""
        self._driver.record_event(cell.event.handle, queue.handle)
        cell.queue = queue
        self._cells.append(cell)

    def retire(self, resource: object) -> None:
        """Keep an object until the last replay is done, and drop the cells."""
        cells, self._cells = self._cells, deque()
        if cells:
            last = cells.pop()
            self._driver.retired.add(last.event, (resource, last.values, [c.values for c in cells]))

    def _reusable(self) -> Cell:
        # The last cell orders the next replay, so it stays.
        if len(self._cells) > 1 and (
            len(self._cells) >= _MAX_CELLS or self._driver.query_event(self._cells[0].event.handle)
        ):
            cell = self._cells.popleft()
            self._driver.synchronize_event(cell.event.handle)
            return cell
        return Cell(CudaEvent.create(self._driver, self._index, EventOptions()))


_numbers = itertools.count()


class ReplayOrder:
    """The replays that use the memory of one captured graph: those of all graphs that contain it.

    Attributes
    ----------
    last : Cell or None
        That of the last replay.
    lock : RLock
        Held while a replay is queued.
    """

    __slots__ = ("_number", "last", "lock")

    def __init__(self) -> None:
        self._number = next(_numbers)
        self.last: Cell | None = None
        self.lock = threading.RLock()

    def __lt__(self, other: ReplayOrder) -> bool:
        return self._number < other._number


def locked(orders: Iterable[ReplayOrder]) -> ExitStack:
    """Hold the locks of orders for the length of a block."""
    with ExitStack() as stack:
        for order in sorted(orders):
            stack.enter_context(order.lock)
        return stack.pop_all()
