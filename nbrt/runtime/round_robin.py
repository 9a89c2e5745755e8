"""`RoundRobin`: objects that are made on demand and returned in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RoundRobin"]

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """At most `count` objects, the first of which follows the last.

    Parameters
    ----------
    make : callable
        Makes an object.
    count : int
        The largest number of objects.
    """

    def __init__(self, make: Callable[[], T], count: int) -> None:
        self._make = make
        self._count = count
        self._members: list[T] = []
        self._next_slot = 0

    def next(self) -> tuple[T, bool]:
        """Return the next object, and whether it is new."""
        slot = self._next_slot
        is_new = slot == len(self._members)
        if is_new:
            self._members.append(self._make())
        self._next_slot = (slot + 1) % self._count
        return self._members[slot], is_new
