"""`FromLocal` and `Redistribute`: collective operations as values that other ranks can replay.

Each runs as one command of kind "collective" with the arguments ``(op, local)``. So a hook
(`install_hook`), or a program that records commands, sees the operation as a whole, and the copies
inside it in between. An operation refers to no array, coordinate or peer of the rank that recorded
it. ``op.replay(local)`` on another rank runs the share of that rank, with the equal mesh of that
rank in its world. All ranks of the mesh must call it.

The command runs in the thread of the caller and not in the queue of a stream: ranks that are
threads may share a queue, and a rank that waited there would block its peers.

In a capture of a graph, no data moves: the result of a redistribution is memory of the graph, and
each replay runs the operation, for the rank that captured it, and fills that memory.
"""

from __future__ import annotations

import contextvars
import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from nbrt._internal import rank_context, scopes
from nbrt.backends.graphs import CallerChecked
from nbrt.distributed.consistency import agree_on_shape
from nbrt.distributed.mesh import mesh_of_this_rank, remember
from nbrt.distributed.placements import checked_placements
from nbrt.distributed.redistribution.cross_mesh import check_move, move_to_mesh
from nbrt.distributed.redistribution.execute import execute
from nbrt.distributed.redistribution.plan import plan_redistribute
from nbrt.distributed.sharding import mesh_splits
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentError, CaptureError, DistributedError
from nbrt.runtime.array import asarray, copy
from nbrt.runtime.creation import empty
from nbrt.runtime.guard import StreamGuard
from nbrt.runtime.stream import current_stream, default_stream

if TYPE_CHECKING:
    import numpy as np

    from nbrt.backends.queue import Queue
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array

__all__ = ["CapturedOp", "FromLocal", "Redistribute", "ReplayableOp", "submit"]

Parts: TypeAlias = "tuple[Array, DTensorSpec]"
"""The local part and the spec of a `DTensor`."""


class ReplayableOp(ABC):
    """A collective operation of the ranks of a mesh."""

    __slots__ = ()
    label: ClassVar[str]
    mesh: DeviceMesh

    @abstractmethod
    def here(self) -> ReplayableOp:
        """Return the operation over the meshes of the running rank."""

    @abstractmethod
    def run(self, local: Array) -> Parts:
        """Return the part of this rank, and the spec: the arguments of `DTensor`."""

    def outline(self, local: Array) -> tuple[Array, DTensorSpec, bool]:
        """Return what `run` returns, but without values, and whether `run` computes them.

        It raises as `run` does, unless other ranks are the reason.
        """
        return (*self.run(local), False)

    def replay(self, local: Array) -> Parts:
        """Run the share of the running rank, whichever rank recorded the operation."""
        return submit(self.here(), asarray(local, copy=None))


@dataclass(frozen=True, slots=True)
class FromLocal(ReplayableOp):
    """Create a tensor from the parts of the ranks; see `DTensor.from_local`."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...] | None = None
    run_check: bool = False
    label: ClassVar[str] = "from_local"

    def here(self) -> FromLocal:
        """Return the operation over the mesh of the running rank."""
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
class Redistribute(ReplayableOp):
    """Change the placements of a tensor; see `DTensor.redistribute`."""

    mesh: DeviceMesh
    source: tuple[Placement, ...]
    target: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    target_mesh: DeviceMesh | None = None
    label: ClassVar[str] = "redistribute"

    def here(self) -> Redistribute:
        """Return the operation over the meshes of the running rank."""
        target = None if self.target_mesh is None else mesh_of_this_rank(self.target_mesh)
        return dataclasses.replace(self, mesh=mesh_of_this_rank(self.mesh), target_mesh=target)

    def run(self, local: Array) -> Parts:
        """Return the part under the new placements, and the new spec."""
        spec = DTensorSpec(self.mesh, self.source, self.shape, self.dtype)
        if self.target_mesh is not None:
            target = DTensorSpec(self.target_mesh, self.target, self.shape, self.dtype)
            return move_to_mesh(local, spec, target), target
        plan = plan_redistribute(spec, self.target)
        if plan.coordinate is None:
            return _nothing(plan.target), plan.target
        _check_part(local, spec)
        return execute(plan, local), plan.target

    def outline(self, local: Array) -> tuple[Array, DTensorSpec, bool]:
        """Return a part without values; the part itself if it does not change."""
        spec = DTensorSpec(self.mesh, self.source, self.shape, self.dtype)
        if self.target_mesh is not None:
            target = DTensorSpec(self.target_mesh, self.target, self.shape, self.dtype)
            check_move(spec, target)
            part = empty(target.local_shape, self.dtype, device=target.mesh.device)
            return part, target, True
        plan = plan_redistribute(spec, self.target)
        target = plan.target
        if plan.coordinate is None:
            return _nothing(target), target, False
        _check_part(local, spec)
        if not plan.steps and tuple(local.shape) == target.local_shape:
            return local, target, False
        part = empty(target.local_shape, self.dtype, device=target.mesh.device)
        return part, target, bool(spec.size)


class CapturedOp(CallerChecked):
    """An operation as work of a graph: each call runs it and fills its result.

    It runs for the rank that captured it, in a copy of that rank's context.
    """

    __slots__ = ("_context", "_world", "op")

    def __init__(self, op: ReplayableOp) -> None:
        self.op = op
        self._world: Any = rank_context.world.get()
        self._context = contextvars.copy_context()
        # Neither the captured stream nor the pool of the graph are current during a replay.
        self._context.run(scopes.reset)

    def check_caller(self) -> None:
        """Raise DistributedError if the running thread is another rank."""
        caller: Any = rank_context.world.get()
        if caller is not None and caller is not self._world:
            own = "a rank of another world" if self._world is None else f"rank {self._world.rank}"
            raise DistributedError(
                f"expected {own}, which captured the graph, to replay it, got rank {caller.rank}; "
                f"capture a graph on every rank, in the function that every rank runs"
            )

    def __call__(self, result: Array, local: Array) -> None:
        """Run the operation, and copy this rank's part into `result`."""
        self._context.copy().run(self._fill, result, local)

    def _fill(self, result: Array, local: Array) -> None:
        stream = default_stream(self.op.mesh.device)
        with StreamGuard(stream):
            part, _ = self.op.run(local)
            copy(result, part, stream=stream)
            stream.synchronize()

    def __repr__(self) -> str:
        return f"<captured {self.op}>"


def submit(op: ReplayableOp, local: Array) -> Parts:
    """Run an operation as a command of the current stream, and return its result."""
    remember(op.mesh)
    stream = current_stream(op.mesh.device)
    parts: Parts = stream.enqueue("collective", _perform, (op, local), op.label)
    return parts


def _perform(queue: Queue, op: ReplayableOp, local: Array) -> Parts:
    stream = current_stream(op.mesh.device)
    return op.run(local) if stream.capture is None else _capture(stream, queue, op, local)


def _capture(stream: Stream, queue: Queue, op: ReplayableOp, local: Array) -> Parts:
    """Return parts without values, which a replay fills."""
    part, spec, has_work = op.outline(local)
    if has_work:
        if not stream.interface.capabilities.host_addressable:
            raise CaptureError(
                f"expected a {op.label} that moves no data in a capture on {stream.device}, got "
                f"{op}: the operation waits for other ranks on the host; capture a graph before it "
                f"and another one behind it"
            )
        queue.put(CapturedOp(op), part, local)
    return part, spec


def _shape_of_equal_parts(
    local_shape: tuple[int, ...], mesh_shape: tuple[int, ...], placements: tuple[Placement, ...]
) -> tuple[int, ...]:
    sizes = list(local_shape)
    for dim, splits in enumerate(mesh_splits(len(sizes), mesh_shape, placements)):
        for split in splits:
            sizes[dim] *= split.ranks
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
