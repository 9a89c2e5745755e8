"""Distributed tensors made of a whole array that every rank knows, without communication."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed import DTensorSpec, Partial
from nbrt.distributed.communicators.threads import ThreadCommunicator
from nbrt.distributed.dtensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from nbrt.distributed import DeviceMesh, Placement

__all__ = ["count_collectives", "counted", "same", "spread"]

_met: ContextVar[list[str] | None] = ContextVar("met", default=None)


def spread(whole: Any, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Return this rank's part of an array; of partial sums and their like, a term."""
    array = np.asarray(whole)
    spec = DTensorSpec(mesh, placements, array.shape, array.dtype)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return DTensor(np.empty(0, array.dtype), spec)
    for place, ranks, placement in zip(coordinate, mesh.shape, spec.placements, strict=True):
        if isinstance(placement, Partial):
            array = _term(array, placement.op, place, ranks)
    assert spec.local_runs is not None
    for dim, runs in enumerate(spec.local_runs):
        held = [
            run.start + number * run.step + within
            for run in runs
            for number in range(run.count)
            for within in range(run.length)
        ]
        array = array.take(np.array(held, np.intp), axis=dim)
    return DTensor(np.array(array), spec)


def _term(array: Any, op: str, place: int, ranks: int) -> Any:
    """Return a rank's term: exact for the small whole numbers that the tests reduce."""
    if op == "sum":
        return array - 3 * (ranks - 1) if place == 0 else np.full_like(array, 3)
    if op == "avg":
        return array * ranks - 3 * (ranks - 1) if place == 0 else np.full_like(array, 3)
    if op == "prod":
        return array / 2 ** (ranks - 1) if place == 0 else np.full_like(array, 2)
    mine = np.arange(array.size).reshape(array.shape) % ranks == place
    return np.where(mine, array, array - 5 if op == "max" else array + 5)


def same(found: Any, expected: Any) -> None:
    """Assert equal shape, dtype and bits."""
    expected = np.asarray(expected)
    assert isinstance(found, DTensor)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if found.device_mesh.get_coordinate() is None:
        assert found.to_local().shape == (0,)
        return
    whole = np.asarray(found.full_tensor())
    assert (whole.shape, whole.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(whole, expected)


def count_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `counted` see what the ranks of `nbrt.distributed.run` do together."""
    meet = ThreadCommunicator._meet

    def noted(self: Any, header: Any, *args: Any) -> Any:
        met = _met.get()
        if met is not None:
            met.append(header.operation)
        return meet(self, header, *args)

    monkeypatch.setattr(ThreadCommunicator, "_meet", noted)


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield a list of the collective operations of this rank in the block."""
    met: list[str] = []
    token = _met.set(met)
    try:
        yield met
    finally:
        _met.reset(token)
