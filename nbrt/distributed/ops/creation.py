"""NumPy's `zeros_like`, `ones_like`, `full_like` and `empty_like`: no result is partial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.runtime.creation import empty, full

if TYPE_CHECKING:
    from nbrt.distributed.sharded_array import ShardedT
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.typing import DTypeLike

__all__ = ["empty_like", "full_like", "ones_like", "zeros_like"]


def full_like(tensor: ShardedT, fill_value: Any, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of one value with the shape and the splits of another; none is partial."""
    spec = _spec_like(tensor, dtype)
    local = full(spec.local_shape, fill_value, spec.dtype, device=spec.mesh.device)
    return type(tensor)(local, spec)


def zeros_like(tensor: ShardedT, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of zeros; see `full_like`."""
    return full_like(tensor, 0, dtype)


def ones_like(tensor: ShardedT, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of ones; see `full_like`."""
    return full_like(tensor, 1, dtype)


def empty_like(tensor: ShardedT, dtype: DTypeLike | None = None) -> ShardedT:
    """Return a tensor of arbitrary values; see `full_like`."""
    spec = _spec_like(tensor, dtype)
    return type(tensor)(empty(spec.local_shape, spec.dtype, device=spec.mesh.device), spec)


def _spec_like(tensor: ShardedT, dtype: DTypeLike | None) -> DTensorSpec:
    placements = replicate_dims(tensor.placements, partial=True)
    changes = {} if dtype is None else {"dtype": dtype}
    return tensor._spec.replaced(placements=placements, **changes)
