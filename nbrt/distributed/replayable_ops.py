"""`FromLocal` and `Redistribute`: what ranks do together, as values that another rank can replay.

A distributed tensor is made from its parts, and brought to other placements, by one command on the
one road: kind "collective", with the arguments ``(op, local)``. So a tap (`install_hook`), and a
program that records commands, see the operation as a whole, with mesh and placements baked in; the
copies that it is made of pass in between. A op holds nothing of the rank that recorded it: no
array, no coordinate, no peers. ``op.replay(local)`` on another rank does that rank's share, with
the mesh of equal value that the rank has, or makes, in its own world. As ever, all ranks of the
mesh must come to it.

The command runs in the caller's thread and not in a stream's queue: ranks that are threads may
share a queue, and one that waited there for its peers would keep them from coming.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from nbrt.distributed.consistency import agree_on_shape
from nbrt.distributed.mesh import mesh_of_this_rank, remember
from nbrt.distributed.placements import checked_placements
from nbrt.distributed.redistribution.cross_mesh import move
from nbrt.distributed.redistribution.execute import execute
from nbrt.distributed.redistribution.plan import plan_redistribute
from nbrt.distributed.sharding import cuts_of
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentError
from nbrt.runtime.array import asarray
from nbrt.runtime.creation import empty
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    import numpy as np

    from nbrt.backends.queue import Queue
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.typing import Array

__all__ = ["FromLocal", "Redistribute", "ReplayableOp", "submit"]

Parts: TypeAlias = "tuple[Array, DTensorSpec]"
"""What a `DTensor` is made of."""


class ReplayableOp(Protocol):
    """Something that the ranks of a mesh do together."""

    label: ClassVar[str]

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks."""
        ...

    def run(self, local: Array) -> Parts:
        """Do this rank's share."""
        ...

    def replay(self, local: Array) -> Parts:
        """Do the running rank's share, whoever recorded it."""
        ...


class _Replayed:
    """What ops share."""

    __slots__ = ()

    def replay(self: Any, local: Array) -> Parts:
        """Do the running rank's share, whoever recorded it.

        Parameters
        ----------
        local : array
            The running rank's part.

        Returns
        -------
        local, spec : array and DTensorSpec
            What ``DTensor(local, spec)`` takes.
        """
        return submit(self.here(), asarray(local, copy=None))


@dataclass(frozen=True, slots=True)
class FromLocal(_Replayed):
    """Make a tensor from the parts that the ranks have; see `DTensor.from_local`.

    Attributes
    ----------
    mesh : DeviceMesh
        The ranks.
    placements : tuple of Placement
        How the parts make up the tensor.
    shape : tuple of int or None
        Of the tensor; None: as if all parts had the shape of this one.
    run_check : bool
        Whether the ranks compare what they have.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...] | None = None
    run_check: bool = False
    label: ClassVar[str] = "from_local"

    def here(self) -> FromLocal:
        """Return the op over the running rank's mesh."""
        return dataclasses.replace(self, mesh=mesh_of_this_rank(self.mesh))

    def run(self, local: Array) -> Parts:
        """Return the part, not copied, and the spec."""
        shape = self.shape
        if shape is None:
            checked_placements(self.placements, self.mesh.ndim, local.ndim)
            shape = _shape_of_equal_parts(local.shape, self.mesh.shape, self.placements)
        if self.mesh.get_coordinate() is None:
            spec = DTensorSpec(self.mesh, self.placements, shape, local.dtype)
            return _nothing(spec), spec
        if self.run_check:
            shape = agree_on_shape(local, self.mesh, self.placements, self.shape)
        spec = DTensorSpec(self.mesh, self.placements, shape, local.dtype)
        _check_part(local, spec)
        return local, spec


@dataclass(frozen=True, slots=True)
class Redistribute(_Replayed):
    """Bring a tensor from its placements to others; see `DTensor.redistribute`.

    Attributes
    ----------
    mesh : DeviceMesh
        The ranks.
    source, target : tuple of Placement
        The placements before and after.
    shape : tuple of int
        Of the tensor.
    dtype : numpy.dtype
        Of its elements.
    target_mesh : DeviceMesh or None
        Another mesh to bring it to; None: it stays.
    """

    mesh: DeviceMesh
    source: tuple[Placement, ...]
    target: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    target_mesh: DeviceMesh | None = None
    label: ClassVar[str] = "redistribute"

    def here(self) -> Redistribute:
        """Return the op over the running rank's meshes."""
        target = None if self.target_mesh is None else mesh_of_this_rank(self.target_mesh)
        return dataclasses.replace(self, mesh=mesh_of_this_rank(self.mesh), target_mesh=target)

    def run(self, local: Array) -> Parts:
        """Return the part under the new placements, and the new spec."""
        spec = DTensorSpec(self.mesh, self.source, self.shape, self.dtype)
        if self.target_mesh is not None:
            target = DTensorSpec(self.target_mesh, self.target, self.shape, self.dtype)
            return move(local, spec, target), target
        plan = plan_redistribute(spec, self.target)
        if plan.coordinate is None:
            return _nothing(plan.target), plan.target
        _check_part(local, spec)
        return execute(plan, local), plan.target


def submit(op: ReplayableOp, local: Array) -> Parts:
    """Give a op to the current stream of its mesh's device, and return what came of it."""
    remember(op.mesh)
    stream = current_stream(op.mesh.device)
    parts: Parts = stream.enqueue("collective", _perform, (op, local), op.label)
    return parts


def _perform(queue: Queue, op: ReplayableOp, local: Array) -> Parts:  # noqa: ARG001
    return op.run(local)


def _shape_of_equal_parts(
    local_shape: tuple[int, ...], mesh_shape: tuple[int, ...], placements: tuple[Placement, ...]
) -> tuple[int, ...]:
    sizes = list(local_shape)
    for dim, cuts in enumerate(cuts_of(len(sizes), mesh_shape, placements)):
        for cut in cuts:
            sizes[dim] *= cut.ranks
    return tuple(sizes)


def _check_part(local: Array, spec: DTensorSpec) -> None:
    if tuple(local.shape) != spec.local_shape or local.dtype != spec.dtype:
        raise ArgumentError(
            f"expected on rank {spec.mesh.get_rank()} a part of {spec.dtype} and shape "
            f"{spec.local_shape} of {spec}, got {local.dtype} and {tuple(local.shape)}; for parts "
            f"of different shapes pass the tensor's shape= or run_check=True"
        )


def _nothing(spec: DTensorSpec) -> Array:
    return empty((0,), spec.dtype, device=spec.mesh.device)
