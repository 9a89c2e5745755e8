"""`ShardedArray`: the local part and the spec of a tensor, the base of `DTensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import numpy as np

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.typing import Array

__all__ = ["ShardedArray", "ShardedT"]


class ShardedArray:
    """A tensor that the ranks of a mesh hold in parts, without its operations.

    `local` is the part of this rank, which the tensor shares.
    """

    def __init__(self, local: Array, spec: DTensorSpec) -> None:
        if not isinstance(spec, DTensorSpec) or not hasattr(local, "dtype"):
            raise ArgumentTypeError(
                f"expected an array and a DTensorSpec, got {type(local).__name__} and "
                f"{type(spec).__name__}; use from_local or distribute_tensor"
            )
        if tuple(local.shape) != spec.local_shape or local.dtype != spec.dtype:
            raise ArgumentError(
                f"expected a part of {spec.dtype} and shape {spec.local_shape} of {spec}, got "
                f"{local.dtype} and {tuple(local.shape)}"
            )
        self._local = local
        self._spec = spec

    @property
    def spec(self) -> DTensorSpec:
        """Mesh, placements, shape and dtype."""
        return self._spec

    @property
    def device_mesh(self) -> DeviceMesh:
        """The ranks."""
        return self._spec.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placement along each dimension of the mesh."""
        return self._spec.placements

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return self._spec.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._spec.ndim

    @property
    def size(self) -> int:
        """Elements of the whole."""
        return self._spec.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._spec.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._spec.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return self._spec.nbytes

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("expected a tensor with dimensions to have a length, got a 0-d")
        return self.shape[0]

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Placement | Sequence[Placement] | None = None,
    ) -> Self:
        """Return the same tensor under other placements."""
        raise NotImplementedError


ShardedT = TypeVar("ShardedT", bound=ShardedArray)
