"""`OffsetBasedRNGTracker`: the offsets and draws of torch's DTensor."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nbrt.distributed.mesh import checked_mesh
from nbrt.distributed.random.collisions import collisions
from nbrt.distributed.random.offsets import compute_post_offset, compute_pre_offset
from nbrt.distributed.random.state_tracker import RNGStateTracker
from nbrt.errors import RngCollisionWarning
from nbrt.random.defaults import default_generator

if TYPE_CHECKING:
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.random.generator import Generator

__all__ = ["OffsetBasedRNGTracker"]

_MAX_OFFSETS = 4096


class OffsetBasedRNGTracker(RNGStateTracker):
    """Starts every shard at torch's offset, and draws it like a separate tensor.

    For parity with ``torch.distributed.tensor``, best with generators of ``layout="torch"``. Values
    depend on the sharding, and different shards may draw equal values (see `collisions`); a
    `RngCollisionWarning` then names the ranks, once for each spec. Ranks off the mesh neither draw
    nor move the state.

    A region reserves its offsets at entry, so an inner region draws after the outer one. A draw
    that is no part of a distributed tensor, such as a permutation, does not use the tracker.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh of this rank.
    run_state_sync : bool
        Set the state of every rank of the world to that of rank 0; all ranks must do so together.
        Ranks whose state differs warn (``RuntimeWarning``). This is deprecated in torch: seed all
        ranks equally instead.
    """

    def __init__(self, mesh: DeviceMesh, run_state_sync: bool = True) -> None:
        super().__init__()
        checked_mesh(mesh)
        if run_state_sync:
            _take_state_of_rank_0(mesh)

    def _set_up(self) -> None:
        super()._set_up()
        self._offsets: dict[Any, tuple[int, int]] = {}
        self._plan_caches: WeakKeyDictionary[Generator, dict[Any, Any]] = WeakKeyDictionary()

    def _part(self, generator: Generator, spec: DTensorSpec) -> Generator:
        coordinate = spec.mesh.get_coordinate()
        if coordinate is None:
            return generator.shard(0, ())
        key = (spec, coordinate)
        if key not in self._offsets:
            self._warn(generator, spec)
            if len(self._offsets) >= _MAX_OFFSETS:
                self._offsets.clear()
            ahead = compute_pre_offset(spec.shape, spec.mesh.shape, coordinate, spec.placements)
            self._offsets[key] = ahead, compute_post_offset(spec.shape)
        ahead, after = self._offsets[key]
        part = generator._split_off(ahead, after)
        part._filler.plan_cache = self._plan_caches.setdefault(generator, {})
        return part

    def _warn(self, generator: Generator, spec: DTensorSpec) -> None:
        layout, dtype = generator.layout, spec.dtype.name

        def words(count: int) -> int:
            return layout.increment("uniform", dtype, count, (0.0, 1.0))

        found = collisions(spec, words)
        if any(found):
            warnings.warn(
                f"torch's offsets make ranks of {spec} draw equal values: {found}; the default "
                f"SingleDeviceRNGTracker has none",
                RngCollisionWarning,
                stacklevel=4,
            )


def _take_state_of_rank_0(mesh: DeviceMesh) -> None:
    generator = default_generator(mesh.device)
    own = generator.state
    state = mesh.communicator.broadcast_object(own)
    if state == own:
        return
    generator.state = state
    warnings.warn(
        f"expected equal states of the default generators on all ranks, got {own} on rank "
        f"{mesh.get_rank()} and {state} on rank 0, from which all continue; this is deprecated, "
        f"call nbrt.distributed.manual_seed(seed, mesh) first",
        RuntimeWarning,
        stacklevel=3,
    )
