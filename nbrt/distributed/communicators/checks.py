"""Checks of arguments of communicators, and reductions, shared by the adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.checks import as_int
from nbrt.distributed.communicators.base import REDUCTIONS
from nbrt.distributed.communicators.signatures import describe_error
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from nbrt.distributed.communicators.base import ReduceOp
    from nbrt.typing import Array

__all__ = [
    "MessageMemo",
    "check_array",
    "check_arrays",
    "check_elements",
    "check_members",
    "check_op",
    "check_root",
    "check_shapes",
    "check_timeout",
    "reduced",
    "refuse_pickling",
    "unsendable",
]

_UFUNCS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class MessageMemo(dict[int, Any]):
    """The memo of a `copy.deepcopy` for another rank, which objects can detect."""


def check_array(array: Any) -> None:
    """Raise unless `array` is an array."""
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise ArgumentTypeError(
            f"expected an array, got {type(array).__name__}; pass nbrt.asarray(...), or use "
            f"all_gather_object and broadcast_object for Python objects"
        )


def check_arrays(arrays: Any, size: int) -> None:
    """Raise unless `arrays` has an array for each rank, all of one dtype."""
    if not isinstance(arrays, (list, tuple)) or len(arrays) != size:
        count = len(arrays) if isinstance(arrays, (list, tuple)) else type(arrays).__name__
        raise ArgumentError(f"expected a list of an array for each of {size} ranks, got {count}")
    for array in arrays:
        check_array(array)
    kinds = sorted({str(array.dtype) for array in arrays})
    if len(kinds) > 1:
        raise ArgumentError(f"expected arrays of one dtype, got {kinds}")


def check_root(root: Any, size: int) -> None:
    """Raise unless `root` is a rank of a group of `size`."""
    if not _is_rank(root, size):
        raise ArgumentError(f"expected root as a rank in [0, {size}), got {root!r}")


def check_op(op: Any) -> None:
    """Raise unless `op` is a reduction."""
    if not isinstance(op, str) or op not in REDUCTIONS:
        raise ArgumentError(f"expected a reduction of {REDUCTIONS}, got {op!r}")


def check_shapes(shapes: Sequence[tuple[int, ...]] | None, size: int) -> None:
    """Raise unless `shapes` is None or has one for each rank."""
    if shapes is None:
        return
    lists = (list, tuple)
    if not isinstance(shapes, lists) or not all(isinstance(each, lists) for each in shapes):
        raise ArgumentTypeError(f"expected a list of a shape for each rank, got {shapes!r}")
    if len(shapes) != size:
        raise ArgumentError(f"expected a shape for each of {size} ranks, got {len(shapes)}")


def check_elements(dtype: Any) -> None:
    """Raise unless elements have a fixed size."""
    if dtype.hasobject or dtype.itemsize == 0:
        raise ArgumentTypeError(
            f"expected an array of fixed-size elements, got dtype {dtype}; use all_gather_object "
            f"and broadcast_object for Python objects"
        )


def check_members(ranks: Sequence[int], rank: int, size: int) -> tuple[int, ...]:
    """Return the ranks of a new group, checked: different, in this group, `rank` among them."""
    try:
        members = tuple(ranks)
    except TypeError:
        raise ArgumentTypeError(f"expected the ranks of a group, got {ranks!r}") from None
    for member in members:
        if not _is_rank(member, size):
            raise ArgumentError(f"expected ranks in [0, {size}), got {member!r}")
    if len(set(members)) != len(members):
        raise ArgumentError(f"expected every rank once, got {members}")
    if rank not in members:
        raise ArgumentError(
            f"expected a group with this rank, {rank}, got {members}; only its members make a group"
        )
    return tuple(int(member) for member in members)


def _is_rank(value: object, size: int) -> bool:
    number = as_int(value)
    return number is not None and 0 <= number < size


def check_timeout(seconds: Any) -> float:
    """Return a number of seconds greater than 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ArgumentError(f"expected a timeout in seconds greater than 0, got {seconds!r}")
    return float(seconds)


def unsendable(value: object, error: Exception) -> ArgumentTypeError:
    """Return the error for an object that cannot be copied to other ranks."""
    return ArgumentTypeError(
        f"expected an object that can be pickled and copied, got {type(value).__name__}: "
        f"{describe_error(error)}"
    )


def refuse_pickling(communicator: object) -> NoReturn:
    """Raise: a communicator belongs to one rank."""
    raise ArgumentTypeError(
        f"expected something that can be pickled and copied, got {communicator!r}, which belongs "
        f"to this rank; use world() or mesh.get_group() where it is needed"
    )


def reduced(arrays: Sequence[Array], op: ReduceOp) -> Array:
    """Return the reduction of arrays in their order, in their dtype."""
    if arrays[0].dtype.kind in "SU":  # NumPy would concatenate and truncate them
        raise ArgumentTypeError(f"expected numbers to reduce, got dtype {arrays[0].dtype}")
    combine = _UFUNCS[op]
    total = arrays[0].copy()
    for array in arrays[1:]:
        combine(total, array, out=total)
    return total
