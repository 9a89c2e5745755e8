"""What NumPy's `zeros_like` and its kind make: as the factories, but none is partial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.distributed.ops.propagation import without

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.dtensor import DTensor
    from nbrt.typing import DTypeLike

__all__ = ["empty_like", "full_like", "ones_like", "zeros_like"]


def full_like(tensor: DTensor, fill_value: Any, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of one value with the shape and the cuts of another; none is partial."""
    return _like("full_like", tensor, dtype, fill_value)


def zeros_like(tensor: DTensor, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of zeros; see `full_like`."""
    return _like("zeros_like", tensor, dtype)


def ones_like(tensor: DTensor, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of ones; see `full_like`."""
    return _like("ones_like", tensor, dtype)


def empty_like(tensor: DTensor, dtype: DTypeLike | None = None) -> DTensor:
    """Return a tensor of arbitrary values; see `full_like`."""
    return _like("empty_like", tensor, dtype)


def _like(name: str, tensor: DTensor, dtype: DTypeLike | None, *value: Any) -> DTensor:
    from nbrt.distributed.creation import (
        factories,  # which makes DTensors, and they have these methods
    )

    make: Callable[..., DTensor] = getattr(factories, name)
    return make(tensor, *value, dtype=dtype, placements=without(tensor.placements, partial=True))
