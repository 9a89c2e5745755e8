"""Barriers, votes and shuffles: the requests of threads and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WARP", "WarpRequest", "complete_warp", "reduce_block"]

WARP = 32


class WarpRequest(NamedTuple):
    """An operation at which a thread waits for others."""

    scope: str
    """``block``, ``grid`` or ``warp``: the threads to wait for; ``yield`` for none of them."""
    operation: str
    """The name under ``numba.cuda``."""
    mask: int = 0
    """The lanes of the warp that take part."""
    value: Any = None
    argument: int = 0
    """The lane that a shuffle reads or the like."""

    def __str__(self) -> str:
        return f"{self.operation} of mask {self.mask:#010x}" if self.mask else self.operation


def reduce_block(operation: str, values: list[Any]) -> Any:
    """Return the result of a barrier for every thread, from the values of all threads."""
    if operation == "syncthreads":
        return None
    reductions: dict[str, Any] = {"count": sum, "and": all, "or": any}
    reduce = reductions[operation.removeprefix("syncthreads_")]
    return np.int32(reduce(bool(value) for value in values))


def complete_warp(requests: dict[int, WarpRequest | None]) -> dict[int, Any]:
    """Return the results of one operation that all live lanes of its mask have reached.

    Parameters
    ----------
    requests : dict
        The request of each lane that has not ended; None: it does not wait.

    Returns
    -------
    dict
        The result for each lane that took part; empty if no operation is complete.

    Raises
    ------
    KernelError
        If a lane leaves itself out of its mask.
    """
    groups: dict[tuple[str, int], _Lanes] = {}
    for lane, request in requests.items():
        if request is not None and request.scope == "warp":
            groups.setdefault((request.operation, request.mask), {})[lane] = request
    for (operation, mask), lanes in groups.items():
        if operation == "activemask":
            return dict.fromkeys(lanes, np.uint32(sum(1 << lane for lane in lanes)))
        outside = [lane for lane in lanes if not mask >> lane & 1]
        if outside:
            raise KernelError(
                f"expected lane {outside[0]} to be in the mask of the {operation} that it calls, "
                f"got the mask {mask:#010x}; use the mask of the lanes that come here"
            )
        if all(lane in lanes for lane in requests if mask >> lane & 1):
            return _OPERATIONS[operation](lanes)
    return {}


_Lanes = dict[int, WarpRequest]


def _shuffle(source: Callable[[int, int], int]) -> Callable[[_Lanes], dict[int, Any]]:
    """Return a shuffle that reads lane ``source(own lane, argument)``."""

    def shuffle(lanes: _Lanes) -> dict[int, Any]:
        # For a lane that is beyond the warp or takes no part: the lane's own value.
        return {
            lane: lanes.get(source(lane, request.argument), request).value
            for lane, request in lanes.items()
        }

    return shuffle


def _vote(decide: Callable[[list[bool]], bool]) -> Callable[[_Lanes], dict[int, Any]]:
    def vote(lanes: _Lanes) -> dict[int, Any]:
        return dict.fromkeys(lanes, decide([bool(request.value) for request in lanes.values()]))

    return vote


def _signed(mask: int) -> np.int32:
    """Return a mask in the type that numba-cuda uses, except for ``activemask``."""
    return np.uint32(mask & 0xFFFFFFFF).astype(np.int32)


def _ballot(lanes: _Lanes) -> dict[int, Any]:
    mask = sum(1 << lane for lane, request in lanes.items() if request.value)
    return dict.fromkeys(lanes, _signed(mask))


def _match_any(lanes: _Lanes) -> dict[int, Any]:
    keys = {lane: np.asarray(request.value).tobytes() for lane, request in lanes.items()}
    masks: dict[bytes, int] = {}
    for lane, key in keys.items():
        masks[key] = masks.get(key, 0) | 1 << lane
    return {lane: _signed(masks[key]) for lane, key in keys.items()}


def _match_all(lanes: _Lanes) -> dict[int, Any]:
    matches = len({np.asarray(request.value).tobytes() for request in lanes.values()}) == 1
    mask = next(iter(lanes.values())).mask if matches else 0
    return dict.fromkeys(lanes, (_signed(mask), matches))


_OPERATIONS: dict[str, Callable[[_Lanes], dict[int, Any]]] = {
    "syncwarp": lambda lanes: dict.fromkeys(lanes),
    "shfl_sync": _shuffle(lambda _, source: source % WARP),
    "shfl_up_sync": _shuffle(lambda lane, delta: lane - delta),
    "shfl_down_sync": _shuffle(lambda lane, delta: lane + delta),
    "shfl_xor_sync": _shuffle(lambda lane, mask: lane ^ mask),
    "all_sync": _vote(all),
    "any_sync": _vote(any),
    "eq_sync": _vote(lambda tests: len(set(tests)) == 1),
    "ballot_sync": _ballot,
    "match_any_sync": _match_any,
    "match_all_sync": _match_all,
}
