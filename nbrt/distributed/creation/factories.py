"""`empty`, `zeros`, `ones`, `full` and `*_like`: each rank creates its part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.mesh import current_mesh
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentTypeError, PlacementError
from nbrt.runtime import creation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.typing import DTypeLike, Shape

__all__ = [
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "spec_of",
    "zeros",
    "zeros_like",
]


def empty(
    *size: Shape,
    dtype: DTypeLike = "float32",
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of arbitrary values; see `zeros` for the parameters."""
    spec = spec_of(size, dtype, device_mesh, placements)
    return _empty(spec)


def zeros(
    *size: Shape,
    dtype: DTypeLike = "float32",
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of zeros.

    Parameters
    ----------
    *size : int, or one tuple of int
        Its shape.
    dtype : dtype
        Type of its elements.
    device_mesh : DeviceMesh, optional
        The ranks; the mesh of the innermost ``with mesh:`` by default.
    placements : sequence of Placement, optional
        The placement along each dimension of the mesh; replicated by default. Only zeros may be
        `Partial`: they are the terms of zero in every reduction.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> def parts():
    ...     with dist.init_device_mesh("cpu", (2,)):
    ...         return dist.zeros(5, 2, placements=[dist.Shard(0)]).to_local().shape
    >>> dist.run(parts, ranks=2)
    [(3, 2), (2, 2)]
    """
    return _zeros(spec_of(size, dtype, device_mesh, placements))


def ones(
    *size: Shape,
    dtype: DTypeLike = "float32",
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of ones; see `zeros` for the parameters."""
    spec = spec_of(size, dtype, device_mesh, placements)
    return _filled(spec, 1)


def full(
    size: Shape,
    fill_value: Any,
    *,
    dtype: DTypeLike = "float32",
    device_mesh: DeviceMesh | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of one value; see `zeros` for the other parameters.

    Parameters
    ----------
    size : int or tuple of int
        Its shape.
    fill_value : number
        The value.
    """
    spec = spec_of((size,), dtype, device_mesh, placements)
    return _filled(spec, fill_value)


def empty_like(
    tensor: DTensor,
    *,
    dtype: DTypeLike | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of arbitrary values that is otherwise like another; see `zeros_like`."""
    spec = _spec_like(tensor, dtype, placements)
    return _empty(spec)


def zeros_like(
    tensor: DTensor,
    *,
    dtype: DTypeLike | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of zeros over the mesh and of the shape of another.

    Parameters
    ----------
    tensor : DTensor
        The template.
    dtype : dtype, optional
        By default that of `tensor`.
    placements : sequence of Placement, optional
        By default those of `tensor`.
    """
    return _zeros(_spec_like(tensor, dtype, placements))


def ones_like(
    tensor: DTensor,
    *,
    dtype: DTypeLike | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of ones that is otherwise like another; see `zeros_like`."""
    return full_like(tensor, 1, dtype=dtype, placements=placements)


def full_like(
    tensor: DTensor,
    fill_value: Any,
    *,
    dtype: DTypeLike | None = None,
    placements: Placement | Sequence[Placement] | None = None,
) -> DTensor:
    """Return a tensor of one value that is otherwise like another; see `zeros_like`."""
    spec = _spec_like(tensor, dtype, placements)
    return _filled(spec, fill_value)


def spec_of(
    size: Sequence[Shape],
    dtype: DTypeLike,
    device_mesh: DeviceMesh | None,
    placements: Placement | Sequence[Placement] | None,
) -> DTensorSpec:
    """Return the spec of the arguments of a factory.

    `size` has ints, or one tuple of them.
    """
    shape: Any = size[0] if len(size) == 1 else tuple(size)
    mesh = current_mesh() if device_mesh is None else device_mesh
    return DTensorSpec(mesh, placements, shape, dtype)


def _spec_like(
    tensor: DTensor, dtype: DTypeLike | None, placements: Placement | Sequence[Placement] | None
) -> DTensorSpec:
    if not isinstance(tensor, DTensor):
        raise ArgumentTypeError(
            f"expected a distributed tensor to be like, got {type(tensor).__name__}; pass a shape, "
            f"to zeros(shape, device_mesh=mesh) or its kind"
        )
    changes: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if placements is not None:
        changes["placements"] = placements
    return tensor.spec.replaced(**changes)


def _zeros(spec: DTensorSpec) -> DTensor:
    return DTensor(creation.zeros(spec.local_shape, spec.dtype, device=spec.mesh.device), spec)


def _empty(spec: DTensorSpec) -> DTensor:
    _check_not_partial(spec)
    return DTensor(creation.empty(spec.local_shape, spec.dtype, device=spec.mesh.device), spec)


def _filled(spec: DTensorSpec, value: Any) -> DTensor:
    _check_not_partial(spec)
    local = creation.full(spec.local_shape, value, spec.dtype, device=spec.mesh.device)
    return DTensor(local, spec)


def _check_not_partial(spec: DTensorSpec) -> None:
    if spec.is_partial:
        raise PlacementError(
            f"expected Shard, StridedShard or Replicate, got {list(spec.placements)}: only zeros "
            f"have terms that every rank knows; make it replicated and redistribute"
        )
