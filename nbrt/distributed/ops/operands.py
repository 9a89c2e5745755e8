"""Operands: distributed tensors of one mesh, and scalars; calls on their local parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from nbrt.distributed.ops.propagation import OperandSpec
from nbrt.distributed.sharded_array import ShardedArray
from nbrt.distributed.spec import DTensorSpec
from nbrt.errors import ArgumentError, ArgumentTypeError, NbrtError, PlacementError
from nbrt.runtime.creation import empty
from nbrt.runtime.guard import OptionalStreamGuard
from nbrt.runtime.stream import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.ops.propagation import Placements
    from nbrt.distributed.sharded_array import ShardedT
    from nbrt.typing import Array, DTypeLike

__all__ = [
    "Operands",
    "checked_call",
    "has_dims",
    "is_dtensor",
    "local_call",
    "map_local",
    "operand_spec",
    "redistribute_to",
    "sorted_operands",
    "tensor_like",
]

T = TypeVar("T")


class Operands(NamedTuple):
    """The arguments of an operation, and the positions of the distributed tensors.

    Attributes
    ----------
    values : list
        All arguments; arrays without dimensions as scalars.
    places : list of int
        Positions of the distributed tensors.
    """

    values: list[Any]
    places: list[int]

    @property
    def tensors(self) -> list[Any]:
        """The distributed tensors."""
        return [self.values[place] for place in self.places]

    def with_tensors(self, arrays: Sequence[Array]) -> list[Any]:
        """Return all arguments, with arrays in the place of the distributed tensors."""
        values = list(self.values)
        for place, array in zip(self.places, arrays, strict=True):
            values[place] = array
        return values


def is_dtensor(value: Any) -> bool:
    """Return whether a value is a distributed tensor."""
    return isinstance(value, ShardedArray)


def sorted_operands(values: Sequence[Any], name: str) -> Operands:
    """Return the arguments of an operation, checked.

    Raises
    ------
    ArgumentTypeError
        If one is a plain array, which could be the same on all ranks or the part of this rank; or
        if one is an object without a dtype.
    PlacementError
        If distributed tensors are of different meshes.
    """
    kept: list[Any] = []
    places: list[int] = []
    mesh: DeviceMesh | None = None
    for value in values:
        if is_dtensor(value):
            if mesh is not None and value.device_mesh != mesh:
                raise PlacementError(
                    f"expected tensors of one mesh for {name}, got {mesh} and "
                    f"{value.device_mesh}; make one of them again by "
                    f"distribute_tensor(x.full_tensor(), mesh, placements)"
                )
            mesh = value.device_mesh
            places.append(len(kept))
        elif isinstance(value, (list, tuple)) or has_dims(value):
            raise ArgumentTypeError(
                f"expected distributed tensors and scalars for {name}, got a mix with "
                f"{_described(value)}; call distribute_tensor(array, mesh, placements) on it first"
            )
        elif isinstance(value, np.ndarray):
            value = value[()]  # an array without dimensions is as strongly typed as a NumPy scalar
        elif not isinstance(value, (int, float, complex, np.generic, str, bytes)):
            _check_is_scalar(value, name)
        kept.append(value)
    return Operands(kept, places)


def _check_is_scalar(value: Any, name: str) -> None:
    # NumPy would call methods of the object, only on ranks that have elements.
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    if dtype.hasobject:
        raise ArgumentTypeError(
            f"expected distributed tensors and scalars for {name}, got {value!r} of type "
            f"{type(value).__name__}"
        )


def has_dims(value: Any) -> bool:
    """Return whether a value is an array, of any library, that is not a scalar."""
    return bool(getattr(value, "ndim", None))


def _described(value: Any) -> str:
    kind = type(value).__name__
    return f"a {kind}" if isinstance(value, (list, tuple)) else f"a {kind} of shape {value.shape}"


def operand_spec(tensor: ShardedT) -> OperandSpec:
    """Return the operand of the propagation rules for a tensor."""
    return OperandSpec(tensor.shape, tensor.dtype.itemsize, tensor.placements)


def redistribute_to(tensor: ShardedT, placements: Placements) -> ShardedT:
    """Return the tensor with placements; itself if it has them."""
    if tensor.placements == placements:
        return tensor
    return tensor.redistribute(placements=placements)


def local_call(tensor: ShardedT, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function on local parts, after the work queued on their stream."""
    stream = current_stream(tensor.device_mesh.device)
    if stream.interface.capabilities.host_addressable:
        if stream.capture is not None:
            stream.capture.refuse(
                f"a function of the array library on the parts of {tensor!s:.60}",
                "launch a kernel on to_local(), or compute before the capture",
            )
        stream.synchronize()
        return checked_call(function, *args, **kwargs)
    with OptionalStreamGuard(stream):
        return checked_call(function, *args, **kwargs)


def checked_call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of the array library, and convert its errors to errors of arguments."""
    try:
        return function(*args, **kwargs)
    except NbrtError:
        raise
    except TypeError as error:
        raise ArgumentTypeError(_refused(error)) from error
    except (ValueError, OverflowError) as error:
        raise ArgumentError(_refused(error)) from error


def _refused(error: Exception) -> str:
    return f"expected values and dtypes that the array library computes with, got others: {error}"


def tensor_like(
    tensor: ShardedT, local: Any, placements: Placements, shape: tuple[int, ...]
) -> ShardedT:
    """Return a tensor on the mesh of `tensor` with a local part, in the dtype of the part."""
    array = np.asarray(local) if isinstance(local, np.generic) else local
    spec = tensor._spec
    if spec.placements != placements or spec.shape != shape or spec.dtype != array.dtype:
        spec = DTensorSpec(spec.mesh, placements, shape, array.dtype)
    return type(tensor)(array, spec)


def map_local(
    tensor: ShardedT,
    function: Callable[..., Any],
    placements: Placements,
    shape: tuple[int, ...],
    *,
    dtype: DTypeLike | None = None,
) -> ShardedT:
    """Return a tensor whose local part is a function of that of `tensor`.

    A rank off the mesh does not call the function; its part is empty and has `dtype`, by default
    that of `tensor`.
    """
    if tensor.device_mesh.get_coordinate() is None:
        kind = tensor.dtype if dtype is None else dtype
        none = empty((0,), kind, device=tensor.device_mesh.device)
        return tensor_like(tensor, none, placements, shape)
    return tensor_like(tensor, local_call(tensor, function, tensor._local), placements, shape)
