"""`plan_redistribute`: the steps and the traffic of a redistribution, computed in advance."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

from nbrt._internal.checks import checked_ints
from nbrt.distributed.placements import Partial
from nbrt.distributed.redistribution.split_order import part_of
from nbrt.distributed.redistribution.steps import Step, steps_between
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError
from nbrt.index_sets import box_shape, intersect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.distributed.placements import Placement

__all__ = ["RedistributionPlan", "peers", "plan_redistribute"]


class RedistributionPlan:
    """The steps of one rank that redistribute a tensor from one spec to another.

    The steps are the same on every rank; the bytes are those of the rank at `coordinate`.

    Attributes
    ----------
    source, target : DTensorSpec
        The specs before and after.
    coordinate : tuple of int or None
        The coordinate of the rank; None off the mesh, where there are no steps.
    steps : tuple of Step
        The steps in order.
    """

    def __init__(
        self, source: DTensorSpec, target: DTensorSpec, coordinate: tuple[int, ...] | None
    ) -> None:
        self.source = source
        self.target = target
        self.coordinate = coordinate
        self.steps = steps_between(
            source.shape, source.mesh.shape, source.placements, target.placements
        )

    @property
    def collectives(self) -> tuple[str, ...]:
        """Names of the collective operations, in order."""
        return tuple(step.operation for step in self.steps if step.is_collective)

    @functools.cached_property
    def bytes_sent(self) -> tuple[int, ...]:
        """Bytes that the rank sends in each step."""
        return tuple(sent for sent, _ in self._traffic)

    @functools.cached_property
    def bytes_received(self) -> tuple[int, ...]:
        """Bytes that the rank receives in each step."""
        return tuple(received for _, received in self._traffic)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the rank sends and receives, in all steps.

        An "all_reduce" counts as the ring algorithm: all but one share, twice.
        """
        return sum(self.bytes_sent) + sum(self.bytes_received)

    @functools.cached_property
    def _traffic(self) -> list[tuple[int, int]]:
        if self.coordinate is None:
            return [(0, 0)] * len(self.steps)
        size = self.source.dtype.itemsize
        counts = (_traffic(self.source, step, self.coordinate) for step in self.steps)
        return [(sent * size, received * size) for sent, received in counts]

    def __repr__(self) -> str:
        def listed(spec: DTensorSpec) -> str:
            return f"[{', '.join(str(each) for each in spec.placements)}]"

        title = (
            f"{self.source.dtype}{list(self.source.shape)} on mesh {self.source.mesh.shape}: "
            f"{listed(self.source)} -> {listed(self.target)}, rank at {self.coordinate}"
        )
        lines = [
            f"  {step.operation}{f'({step.op})' if step.op else ''} along {step.mesh_dims}: "
            f"{sent} bytes out, {received} in"
            for step, sent, received in zip(
                self.steps, self.bytes_sent, self.bytes_received, strict=True
            )
        ]
        return "\n".join([title, *(lines or ["  nothing to do"])])


def plan_redistribute(
    source: DTensorSpec,
    placements: Placement | Sequence[Placement],
    *,
    coordinate: Sequence[int] | None = None,
) -> RedistributionPlan:
    """Return the plan of a redistribution, without communication.

    Parameters
    ----------
    source : DTensorSpec
        The spec of the tensor.
    placements : sequence of Placement
        The new placement along each dimension of the mesh.
    coordinate : sequence of int, optional
        The coordinate of the rank whose bytes count; that of the running rank by default.

    Returns
    -------
    plan : RedistributionPlan
        The steps, collective operations and bytes.

    Raises
    ------
    PlacementError
        If a new placement is partial without a neutral element for the dtype.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> mesh = dist.DeviceMesh("cpu", [[0]])
    >>> spec = dist.DTensorSpec(mesh, [dist.Shard(0), dist.Replicate()], (4, 6), "float32")
    >>> plan_redistribute(spec, [dist.Replicate(), dist.Replicate()]).collectives
    ()
    """
    if not isinstance(source, DTensorSpec):
        raise ArgumentTypeError(
            f"expected a DTensorSpec, got {type(source).__name__}; of a DTensor pass x.spec"
        )
    target = source.replaced(placements=placements)
    place = source.mesh.get_coordinate()
    if coordinate is not None:
        place = _checked_coordinate(coordinate, source.mesh.shape)
    plan = RedistributionPlan(source, target, place)
    if any(step.operation == "terms" for step in plan.steps):
        _check_terms(target)
    return plan


def _checked_coordinate(coordinate: Any, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    place = checked_ints("a coordinate", coordinate)
    inside = (0 <= at < n for at, n in zip(place, mesh_shape, strict=False))
    if len(place) != len(mesh_shape) or not all(inside):
        raise ArgumentError(
            f"expected a coordinate in a mesh of shape {mesh_shape}, got {coordinate}"
        )
    return place


def _check_terms(target: DTensorSpec) -> None:
    dtype = target.dtype
    ops = {each.op for each in target.placements if isinstance(each, Partial)}
    is_real = dtype.kind in "biuf" or (dtype.kind == "V" and dtype.names is None)
    # Not 1 for complex numbers: (inf + 0j) * (1 + 0j) is inf + nanj.
    if is_real or (dtype.kind == "c" and ops <= {"sum", "avg"}):
        return
    raise PlacementError(
        f"expected a dtype with a neutral element for {sorted(ops)}, got {dtype}; leave the "
        f"tensor replicated or sharded"
    )


def peers(
    mesh_shape: Sequence[int], coordinate: Sequence[int], dims: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Return the coordinates of the ranks along some dimensions, in row-major order."""
    along = [
        range(n) if dim in dims else (at,)
        for dim, (n, at) in enumerate(zip(mesh_shape, coordinate, strict=True))
    ]
    return itertools.product(*along)


def _traffic(spec: DTensorSpec, step: Step, coordinate: tuple[int, ...]) -> tuple[int, int]:
    """Return elements that the rank at a coordinate sends and receives."""
    shape, mesh_shape = spec.shape, spec.mesh.shape
    mine = part_of(shape, step.source, coordinate)
    new = part_of(shape, step.target, coordinate)
    held, wanted = math.prod(box_shape(mine)), math.prod(box_shape(new))
    ranks = math.prod(mesh_shape[dim] for dim in step.mesh_dims)
    if step.operation == "all_gather":
        return (ranks - 1) * held, wanted - held
    if step.operation == "all_reduce":
        share = 2 * (ranks - 1) * held // ranks
        return share, share
    if step.operation == "reduce_scatter":
        pieces = (
            part_of(shape, step.target, peer)
            for peer in peers(mesh_shape, coordinate, step.mesh_dims)
        )
        sent = sum(math.prod(box_shape(piece)) for piece in pieces)
        return sent - wanted, (ranks - 1) * wanted
    if step.operation == "all_to_all":
        sent = sum(
            intersect(mine, part_of(shape, step.target, peer)).size
            for peer in peers(mesh_shape, coordinate, step.mesh_dims)
        )
        own = intersect(mine, new).size
        return sent - own, wanted - own
    return 0, 0
