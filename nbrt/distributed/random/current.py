"""The tracker that random draws of distributed tensors go through: one for each rank."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from nbrt._internal import rank_context
from nbrt.distributed.process_group import world
from nbrt.distributed.random.single_device import SingleDeviceRNGTracker
from nbrt.distributed.random.state_tracker import RNGStateTracker
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.distributed.communicators.base import Communicator

__all__ = ["current_tracker", "set_tracker", "use_tracker"]

_defaults: WeakKeyDictionary[Communicator, RNGStateTracker] = WeakKeyDictionary()
"""What the ranks of this process have until they choose; a rank is its place in a world."""


def current_tracker() -> RNGStateTracker:
    """Return the running rank's tracker: a `SingleDeviceRNGTracker` unless another one was set."""
    chosen: RNGStateTracker | None = rank_context.tracker.get()
    if chosen is not None:
        return chosen
    place = world()
    own = _defaults.get(place)
    return _defaults.setdefault(place, SingleDeviceRNGTracker()) if own is None else own


def set_tracker(tracker: RNGStateTracker | None) -> None:
    """Choose the tracker of the running rank; None: its default one.

    It holds in the running context, as `contextvars` have it.
    """
    rank_context.tracker.set(_checked(tracker))


@contextmanager
def use_tracker(tracker: RNGStateTracker | None) -> Iterator[RNGStateTracker]:
    """Choose the tracker of the running rank for a block, which may nest.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> before = dist.current_tracker()
    >>> with dist.use_tracker(dist.SingleDeviceRNGTracker()) as own:
    ...     dist.current_tracker() is own
    True
    >>> dist.current_tracker() is before
    True
    """
    token = rank_context.tracker.set(_checked(tracker))
    try:
        yield current_tracker()
    finally:
        rank_context.tracker.reset(token)


def _checked(tracker: object) -> RNGStateTracker | None:
    if tracker is None or isinstance(tracker, RNGStateTracker):
        return tracker
    raise ArgumentTypeError(f"expected an RNGStateTracker or None, got {tracker!r}")
