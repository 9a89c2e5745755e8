"""`zeros_like` and its kind: a new tensor spread as another one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.distributed.ops.operands import made
from nbrt.distributed.ops.propagation import without
from nbrt.distributed.spec import DTensorSpec
from nbrt.runtime import array as arrays

if TYPE_CHECKING:
    from nbrt.distributed.dtensor import DTensor
    from nbrt.typing import DTypeLike

__all__ = ["empty_like", "full_like", "ones_like", "zeros_like"]


def full_like(tensor: DTensor, fill_value: Any, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of one value with the shape and the cuts of another; none is partial."""
    spec = _spec(tensor, dtype)
    local = arrays.full(spec.local_shape, fill_value, spec.dtype, device=tensor.device_mesh.device)
    return made(tensor, local, spec.placements, spec.shape)


def zeros_like(tensor: DTensor, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of zeros; see `full_like`."""
    return full_like(tensor, 0, dtype)


def ones_like(tensor: DTensor, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of ones; see `full_like`."""
    return full_like(tensor, 1, dtype)


def empty_like(tensor: DTensor, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of arbitrary values; see `full_like`."""
    spec = _spec(tensor, dtype)
    local = arrays.empty(spec.local_shape, spec.dtype, device=tensor.device_mesh.device)
    return made(tensor, local, spec.placements, spec.shape)


def _spec(tensor: DTensor, dtype: DTypeLike | None) -> DTensorSpec:
    placements = without(tensor.placements, partial=True)
    kind = tensor.dtype if dtype is None else dtype
    return DTensorSpec(tensor.device_mesh, placements, tensor.shape, kind)
