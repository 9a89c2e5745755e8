"""`FakeQueue`: a queue of a fake CUDA device, told from others by its handle."""

from __future__ import annotations

import itertools

from nbrt.backends.synchronous import SynchronousQueue

__all__ = ["FakeQueue"]

_HANDLE_UNIT = 64
"""Handles look like addresses, as those of real devices; 0, 1 and 2 are the default streams."""

_numbers = itertools.count(1)


class FakeQueue(SynchronousQueue):
    """A queue whose handle no other queue of the process has: pools keep freed memory by handle."""

    __slots__ = ()

    def __init__(self, index: int, priority: int = 0) -> None:
        super().__init__(index, priority)
        self.handle = next(_numbers) * _HANDLE_UNIT
