"""Barriers, votes and shuffles: what threads ask of each other, and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WARP", "Request", "complete_warp", "reduce_block"]

WARP = 32


class Request(NamedTuple):
    """What a thread waits for.

    Attributes
    ----------
    scope : str
        Who must come: ``block``, ``grid``, ``warp``, or ``yield`` for nobody.
    operation : str
        The name under ``numba.cuda``.
    mask : int
        The lanes of the warp that take part.
    value, argument : object
        What the thread brings: a value, and the lane that a shuffle reads or the like.
    """

    scope: str
    operation: str
    mask: int = 0
    value: Any = None
    argument: int = 0

    def __str__(self) -> str:
        return f"{self.operation} of mask {self.mask:#010x}" if self.mask else self.operation


def reduce_block(operation: str, values: list[Any]) -> Any:
    """Return what a barrier gives every thread, from the values that all of them bring."""
    tests = [bool(value) for value in values]
    answers: dict[str, Any] = {
        "syncthreads": None,
        "syncthreads_count": np.int32(sum(tests)),
        "syncthreads_and": np.int32(all(tests)),
        "syncthreads_or": np.int32(any(tests)),
    }
    return answers[operation]


def complete_warp(requests: dict[int, Request | None]) -> dict[int, Any]:
    """Return the answers to one operation that all lanes of its mask have come to.

    Parameters
    ----------
    requests : dict
        What each lane that has not ended waits for; None: it does not wait.

    Returns
    -------
    dict
        The answer for each lane that took part; empty if no operation is complete. Lanes that have
        ended, or are beyond the block, are not waited for.

    Raises
    ------
    KernelError
        If a lane leaves itself out of its mask.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    for lane, request in requests.items():
        if request is not None and request.scope == "warp":
            groups.setdefault((request.operation, request.mask), []).append(lane)
    for (operation, mask), lanes in groups.items():
        if operation == "activemask":
            found = np.uint32(sum(1 << lane for lane in lanes))
            return dict.fromkeys(lanes, found)
        outside = [lane for lane in lanes if not mask >> lane & 1]
        if outside:
            raise KernelError(
                f"expected lane {outside[0]} to be in the mask of the {operation} that it calls, "
                f"got the mask {mask:#010x}; use the mask of the lanes that come here"
            )
        if all(lane in lanes for lane in requests if mask >> lane & 1):
            taking = {lane: request for lane in lanes if (request := requests[lane]) is not None}
            return _ANSWERS[operation](taking)
    return {}


_Lanes = dict[int, Request]


def _sync(lanes: _Lanes) -> dict[int, Any]:
    return dict.fromkeys(lanes)


def _shuffle(source: Callable[[int, int], int]) -> Callable[[_Lanes], dict[int, Any]]:
    """Make the answer of a shuffle that reads lane ``source(own lane, argument)``."""

    def answer(lanes: _Lanes) -> dict[int, Any]:
        found = {}
        for lane, request in lanes.items():
            other = source(lane, request.argument)
            # A lane that is beyond the warp or takes no part: the lane's own value.
            found[lane] = lanes.get(other, request).value
        return found

    return answer


def _vote(decide: Callable[[list[bool]], bool]) -> Callable[[_Lanes], dict[int, Any]]:
    def answer(lanes: _Lanes) -> dict[int, Any]:
        return dict.fromkeys(lanes, decide([bool(each.value) for each in lanes.values()]))

    return answer


def _signed(mask: int) -> np.int32:
    """Give a mask in the type that numba-cuda gives it, but for ``activemask``."""
    return np.uint32(mask & 0xFFFFFFFF).astype(np.int32)


def _ballot(lanes: _Lanes) -> dict[int, Any]:
    mask = sum(1 << lane for lane, each in lanes.items() if each.value)
    return dict.fromkeys(lanes, _signed(mask))


def _match_any(lanes: _Lanes) -> dict[int, Any]:
    masks: dict[bytes, int] = {}
    for lane, each in lanes.items():
        key = np.asarray(each.value).tobytes()
        masks[key] = masks.get(key, 0) | 1 << lane
    return {lane: _signed(masks[np.asarray(each.value).tobytes()]) for lane, each in lanes.items()}


def _match_all(lanes: _Lanes) -> dict[int, Any]:
    is_one = len({np.asarray(each.value).tobytes() for each in lanes.values()}) == 1
    mask = next(iter(lanes.values())).mask if is_one else 0
    return dict.fromkeys(lanes, (_signed(mask), is_one))


_ANSWERS: dict[str, Callable[[_Lanes], dict[int, Any]]] = {
    "syncwarp": _sync,
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
