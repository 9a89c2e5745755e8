"""`DTensorSpec`: mesh, placements, shape and dtype of a distributed tensor."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from nbrt._internal.checks import as_dtype, checked_int, checked_shape
from nbrt.distributed.mesh import checked_mesh
from nbrt.distributed.placements import Partial, Placement, checked_placements
from nbrt.distributed.sharding import checked_coordinate, unchecked_local_runs
from nbrt.errors import ArgumentTypeError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.index_sets import Runs
    from nbrt.typing import DTypeLike, Shape

__all__ = ["DTensorSpec", "checked_spec", "spec_of"]

_FIXED = ("mesh", "placements", "shape", "dtype")
_MAX_SPECS = 256


class DTensorSpec:
    """Mesh, placements, shape and dtype of a distributed tensor: an immutable value.

    Parameters
    ----------
    mesh : DeviceMesh
        The ranks.
    placements : sequence of Placement, or None
        One for each dimension of the mesh; None: all replicated.
    shape : int or tuple of int
        Shape of the whole tensor.
    dtype : dtype
        Type of its elements.

    Attributes
    ----------
    is_partial : bool
        Whether a placement is `Partial`.

    Raises
    ------
    PlacementError
        If the dtype is of integers and a placement is an average.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_partial: bool
    _key: tuple[Any, ...]
    _hash: int
    _local: tuple[tuple[tuple[Runs, ...], ...] | None, tuple[int, ...]] | None

    def __init__(
        self,
        mesh: DeviceMesh,
        placements: Placement | Sequence[Placement] | None,
        shape: Shape,
        dtype: DTypeLike,
    ) -> None:
        sizes, kind = checked_shape(shape), as_dtype(dtype)
        places = checked_placements(placements, checked_mesh(mesh).ndim, len(sizes))
        if kind.kind in "iub" and any(each.is_partial("avg") for each in places):
            raise PlacementError(
                f"expected floating-point or complex numbers to average, got {kind}; use "
                f"Partial('sum')"
            )
        key = (mesh, places, sizes, kind)
        is_partial = any(isinstance(each, Partial) for each in places)
        # Not by __setattr__, which is slower.
        self.__dict__.update(zip(_FIXED, key, strict=True))
        self.__dict__.update(_key=key, _hash=hash(key), _local=None, is_partial=is_partial)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED:
            raise AttributeError(
                f"{name} of a DTensorSpec cannot change; make another by replaced()"
            )
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # The local part depends on the rank, and the hash on the process.
        return DTensorSpec, self._key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DTensorSpec):
            return NotImplemented
        return self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        places = ", ".join(str(each) for each in self.placements)
        return f"DTensorSpec({self.dtype}{list(self.shape)}, [{places}], {self.mesh!r})"

    @property
    def ndim(self) -> int:
        """Dimensions of the tensor."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.size * self.dtype.itemsize

    @property
    def local_runs(self) -> tuple[tuple[Runs, ...], ...] | None:
        """The indices that this rank holds along each dimension; None if it is off the mesh."""
        return (self._local or self._set_local())[0]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part; ``(0,)`` if it is off the mesh."""
        return (self._local or self._set_local())[1]

    def _set_local(self) -> tuple[tuple[tuple[Runs, ...], ...] | None, tuple[int, ...]]:
        # Not cached_property: until Python 3.12 it has one lock, and ranks would wait for it.
        coordinate = self.mesh.get_coordinate()
        runs = None
        if coordinate is not None:
            runs = _runs(self.shape, self.mesh.shape, coordinate, self.placements)
        shape = (0,) if runs is None else tuple(sum(run.size for run in axis) for axis in runs)
        self._local = runs, shape
        return self._local

    def runs_of(self, coordinate: Sequence[int]) -> tuple[tuple[Runs, ...], ...]:
        """Return the indices that the rank at a coordinate holds along each dimension."""
        if not isinstance(coordinate, (tuple, list)):
            raise ArgumentTypeError(f"expected a rank's coordinate in the mesh, got {coordinate!r}")
        place = tuple(checked_int("a rank's coordinate", each) for each in coordinate)
        shape = self.mesh.shape
        return _runs(self.shape, shape, checked_coordinate(place, shape), self.placements)

    def replaced(self, **changes: Any) -> DTensorSpec:
        """Return the spec with another mesh, placements, shape or dtype."""
        return DTensorSpec(**{**{name: getattr(self, name) for name in _FIXED}, **changes})


def checked_spec(spec: object) -> DTensorSpec:
    """Return `spec` if it is a `DTensorSpec`, else raise."""
    if not isinstance(spec, DTensorSpec):
        raise ArgumentTypeError(f"expected a DTensorSpec, such as x.spec, got {spec!r}")
    return spec


def spec_of(
    mesh: DeviceMesh, placements: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> DTensorSpec:
    """Return a `DTensorSpec`, from the cache of the mesh."""
    known = mesh._specs
    key = (placements, shape, dtype)
    spec: DTensorSpec | None = known.get(key)
    if spec is None:
        if len(known) >= _MAX_SPECS:
            known.clear()
        spec = known[key] = DTensorSpec(mesh, placements, shape, dtype)
    return spec


@functools.lru_cache(maxsize=4096)
def _runs(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: tuple[Placement, ...],
) -> tuple[tuple[Runs, ...], ...]:
    """Return `local_runs`, cached across specs."""
    return unchecked_local_runs(shape, mesh_shape, coordinate, placements)
