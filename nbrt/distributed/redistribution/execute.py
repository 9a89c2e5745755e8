"""`execute`: runs a `RedistributionPlan` on the part of one rank."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.redistribution.plan import peers
from nbrt.distributed.redistribution.split_order import SplitOrder, part_of, split_mesh_dims
from nbrt.index_sets import box_shape, intersect, open_mesh
from nbrt.runtime.array import copy
from nbrt.runtime.creation import empty, full
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.distributed.placements import TermOp
    from nbrt.distributed.redistribution.plan import RedistributionPlan
    from nbrt.distributed.redistribution.steps import Step
    from nbrt.index_sets import Runs, Selection
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["execute", "put", "take"]


def execute(plan: RedistributionPlan, local: Array) -> Array:
    """Return this rank's part under the target of a plan.

    The result is a new array; `local` itself if the plan has no steps.
    """
    if plan.coordinate is None:
        return local
    if local.shape != plan.target.local_shape and not plan.source.size:
        return empty(plan.target.local_shape, plan.target.dtype, device=plan.target.mesh.device)
    work = _StepRunner(plan, plan.coordinate)
    for step in plan.steps:
        local = getattr(work, step.operation)(step, local)
    return local


class _StepRunner:
    """The operations of steps, as methods of the same names."""

    def __init__(self, plan: RedistributionPlan, coordinate: tuple[int, ...]) -> None:
        self._shape = plan.source.shape
        self._dtype = plan.source.dtype
        self._mesh = plan.source.mesh
        self._coordinate = coordinate
        self._stream = current_stream(self._mesh.device)

    def cut(self, step: Step, local: Array) -> Array:
        part = self._part(step.target)
        piece = take(local, intersect(self._part(step.source), part).first, self._stream)
        result = empty(box_shape(part), self._dtype, stream=self._stream)
        copy(result, piece, stream=self._stream)
        return result

    def all_reduce(self, step: Step, local: Array) -> Array:
        group = self._mesh.get_group(step.mesh_dims)
        return self._combined(step, group.all_reduce(local, _operation(step)), group.size)

    def reduce_scatter(self, step: Step, local: Array) -> Array:
        mine = self._part(step.source)
        pieces = [
            take(local, intersect(mine, self._part(step.target, peer)).first, self._stream)
            for peer in self._peers(step)
        ]
        group = self._mesh.get_group(step.mesh_dims)
        return self._combined(step, group.reduce_scatter(pieces, _operation(step)), group.size)

    def all_gather(self, step: Step, local: Array) -> Array:
        parts = [self._part(step.source, peer) for peer in self._peers(step)]
        shapes = [box_shape(part) for part in parts]
        pieces = self._mesh.get_group(step.mesh_dims).all_gather(local, shapes)
        return self._joined(step, parts, pieces)

    def all_to_all(self, step: Step, local: Array) -> Array:
        mine, wanted = self._part(step.source), self._part(step.target)
        places = list(self._peers(step))
        sent = [
            take(local, intersect(mine, self._part(step.target, peer)).first, self._stream)
            for peer in places
        ]
        parts = [self._part(step.source, peer) for peer in places]
        shapes = [intersect(part, wanted).shape for part in parts]
        pieces = self._mesh.get_group(step.mesh_dims).all_to_all(sent, shapes)
        return self._joined(step, parts, pieces)

    def terms(self, step: Step, local: Array) -> Array:
        """Return the values if this rank contributes them, and neutral elements otherwise."""
        part = self._part(step.target)
        whole = set(step.mesh_dims) - split_mesh_dims(step.source)
        # The average of equal terms is the term, up to rounding, so all ranks contribute.
        ops = [(dim, op) for dim, op in step.terms if op != "avg"]
        away = [dim for dim, _ in ops if dim in whole and self._coordinate[dim]]
        # If another rank contributes the values, the innermost reduction must result in the neutral
        # element of the outer reduction to which this rank does not contribute.
        _, op = max(
            (
                (dim, op)
                for dim, op in ops
                if not away or (dim >= away[0] and self._coordinate[dim])
            ),
            default=(0, "sum"),
        )
        shape = box_shape(part)
        result = full(shape, _neutral(op, self._dtype), self._dtype, stream=self._stream)
        if not away:
            put(result, intersect(self._part(step.source), part).second, local, self._stream)
        return result

    def _combined(self, step: Step, total: Array, ranks: int) -> Array:
        if step.op == "avg":
            # Not as complex numbers: division by 2 + 0j turns -0.0 into 0.0.
            for each in (total.real, total.imag) if total.dtype.kind == "c" else (total,):
                _now(self._stream, functools.partial(np.divide, each, ranks, out=each))
        return total

    def _joined(
        self, step: Step, parts: Sequence[Sequence[Sequence[Runs]]], pieces: Sequence[Array]
    ) -> Array:
        wanted = self._part(step.target)
        result = empty(box_shape(wanted), self._dtype, stream=self._stream)
        for part, piece in zip(parts, pieces, strict=True):
            put(result, intersect(part, wanted).second, piece, self._stream)
        return result

    def _part(
        self, order: SplitOrder, coordinate: tuple[int, ...] | None = None
    ) -> tuple[tuple[Runs, ...], ...]:
        return part_of(self._shape, order, self._coordinate if coordinate is None else coordinate)

    def _peers(self, step: Step) -> Any:
        return peers(self._mesh.shape, self._coordinate, step.mesh_dims)


def take(array: Array, selection: Selection, stream: Stream) -> Array:
    """Return the elements of a selection, without a copy if its indices are regular."""
    if all(isinstance(each, slice) for each in selection):
        return array[(*selection, ...)]
    return _now(stream, lambda: array[open_mesh(array.shape, selection)])


def put(array: Array, selection: Selection, values: Array, stream: Stream) -> None:
    """Set the elements of a selection."""
    if all(isinstance(each, slice) for each in selection):
        copy(array[(*selection, ...)], values, stream=stream)
        return

    def write() -> None:
        array[open_mesh(array.shape, selection)] = values

    _now(stream, write)


def _now(stream: Stream, function: Callable[[], Any]) -> Any:
    """Call a function of the array library in the order of the stream."""
    if stream.interface.capabilities.host_addressable:
        stream.synchronize()
    with OptionalStreamGuard(stream):
        return function()


def _operation(step: Step) -> ReduceOp:
    """Return the reduction of the communicator for a step."""
    assert step.op is not None
    return "sum" if step.op == "avg" else step.op


def _neutral(op: TermOp, dtype: np.dtype[Any]) -> Any:
    """Return the neutral element of a reduction, bit for bit: -0.0 + -0.0 is -0.0."""
    if op == "prod":
        return 1
    if op == "sum":
        zeros = {"c": complex(-0.0, -0.0), "f": -0.0, "V": -0.0}
        return zeros.get(dtype.kind, 0)
    lowest = op == "max"
    if dtype.kind == "b":
        return not lowest
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return int(limits.min if lowest else limits.max)
    return -np.inf if lowest else np.inf
