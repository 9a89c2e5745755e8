"""`CellRing`: page-locked memory for the values of each replay under way."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["Cell", "CellRing"]

_MAX_CELLS = 64
_WORD = 8


class Cell:
    """The values of one replay.

    Attributes
    ----------
    values : ndarray of uint64
        In page-locked memory; copies of the replay read and write it.
    event : int
        Recorded behind the replay.
    queue : CudaQueue or None
        The queue of the replay.
    """

    __slots__ = ("event", "queue", "values")

    def __init__(self, event: int) -> None:
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
        self._driver.record_event(cell.event, queue.handle)
        cell.queue = queue
        self._cells.append(cell)

    def discard(self, cell: Cell) -> None:
        """Destroy a cell whose replay failed."""
        self._driver.destroy_event(cell.event)

    def retire(self, resource: object) -> None:
        """Keep an object until the last replay is done, and destroy the cells."""
        cells, self._cells = self._cells, deque()
        if cells:
            last = cells.pop()
            self._driver.retired.add(last.event, (resource, last.values, [c.values for c in cells]))
        for cell in cells:
            self._driver.destroy_event(cell.event)

    def _reusable(self) -> Cell:
        # The last cell orders the next replay, so it stays.
        if len(self._cells) > 1 and (
            len(self._cells) >= _MAX_CELLS or self._driver.query_event(self._cells[0].event)
        ):
            cell = self._cells.popleft()
            self._driver.synchronize_event(cell.event)
            return cell
        return Cell(
            self._driver.new_event(self._index, timing=False, blocking=False, interprocess=False)
        )
