"""Placements: the distribution of a tensor along one dimension of a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nbrt._internal.checks import as_int
from nbrt.distributed.communicators.base import REDUCTIONS, ReduceOp
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "StridedShard",
    "TermOp",
    "checked_placements",
]

TermOp: TypeAlias = ReduceOp | Literal["avg"]
"""The reduction of partial terms: one of communicators, or the mean over ranks."""

_TERM_OPS = (*REDUCTIONS, "avg")


class Placement:
    """The distribution of a tensor along one dimension of a mesh; base of the classes below."""

    __slots__ = ()

    def is_shard(self, dim: int | None = None) -> bool:
        """Return whether the tensor is split, along `dim` if given, strided or not."""
        return isinstance(self, (Shard, StridedShard)) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Return whether every rank holds the whole tensor."""
        return isinstance(self, Replicate)

    def is_partial(self, op: str | None = None) -> bool:
        """Return whether the ranks hold terms of a reduction, by `op` if given."""
        return isinstance(self, Partial) and op in (None, self.op)


@dataclass(frozen=True, slots=True)
class Shard(Placement):
    """A split along a dimension of the tensor, into one contiguous chunk for each rank.

    Chunks have ``ceil(n / ranks)`` indices; the last ones are shorter, or empty, as in torch. If
    several dimensions of the mesh split a dimension, they split it in order.

    Parameters
    ----------
    dim : int
        Dimension of the tensor; a negative one counts from the end.
    """

    dim: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", _checked_dim(self.dim))

    def __str__(self) -> str:
        return f"S({self.dim})"


@dataclass(frozen=True, slots=True)
class StridedShard(Placement):
    """A split into `split_factor` chunks, each of which is split again for the ranks.

    A dimension of the mesh has this placement if a later one splits the dimension first: fully
    sharded data parallel over tensor parallel is ``[StridedShard(0, split_factor=tensor ranks),
    Shard(0)]``. The same as torch's ``_StridedShard``.

    Parameters
    ----------
    dim : int
        Dimension of the tensor; a negative one counts from the end.
    split_factor : int
        Chunks, at least 1.
    """

    dim: int
    split_factor: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", _checked_dim(self.dim))
        factor = as_int(self.split_factor)
        if factor is None or factor < 1:
            raise ArgumentError(
                f"expected split_factor as an int of at least 1, got {self.split_factor!r}"
            )
        object.__setattr__(self, "split_factor", factor)

    def __str__(self) -> str:
        return f"_S({self.dim}, {self.split_factor})"


@dataclass(frozen=True, slots=True)
class Replicate(Placement):
    """Every rank holds the whole tensor, with equal values."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Partial(Placement):
    """Every rank holds a term of the shape of the whole; the tensor is their reduction.

    Parameters
    ----------
    op : {"sum", "avg", "prod", "min", "max"}
        The reduction. "avg", the sum divided by the number of ranks, needs floating-point or
        complex numbers. A tensor that becomes its terms keeps its values on every rank; its
        reduction is correct up to rounding, and infinite if the sum over ranks overflows.
    """

    op: TermOp = "sum"

    def __post_init__(self) -> None:
        if not isinstance(self.op, str) or self.op not in _TERM_OPS:
            raise ArgumentError(f"expected a reduction of {_TERM_OPS}, got {self.op!r}")

    @property
    def is_linear(self) -> bool:
        """Whether the tensor is a linear function of the terms."""
        return self.op in ("sum", "avg")

    def __str__(self) -> str:
        return f"P({self.op})"


def checked_placements(
    placements: Placement | Sequence[Placement] | None, mesh_ndim: int, ndim: int
) -> tuple[Placement, ...]:
    """Return placements for each mesh dimension of a tensor of `ndim`, without negative dims.

    Parameters
    ----------
    placements : sequence of Placement, or None
        One for each mesh dimension; None: all replicated.
    mesh_ndim, ndim : int
        Dimensions of the mesh and of the tensor.

    Examples
    --------
    >>> checked_placements([Shard(-1), Replicate()], 2, 3)
    (Shard(dim=2), Replicate())
    """
    if placements is None:
        return (Replicate(),) * mesh_ndim
    given = (placements,) if isinstance(placements, Placement) else placements
    if not isinstance(given, (tuple, list)):
        raise ArgumentTypeError(f"expected a sequence of placements, got {given!r}")
    if len(given) != mesh_ndim:
        raise ArgumentError(
            f"expected a placement for each of the {mesh_ndim} dimensions of the mesh, got "
            f"{len(given)}: {list(given)}"
        )
    return tuple(_normalized(each, ndim) for each in given)


def _normalized(placement: Any, ndim: int) -> Placement:
    if not isinstance(placement, Placement):
        raise ArgumentTypeError(
            f"expected Shard, StridedShard, Replicate or Partial, got {placement!r}"
        )
    if not isinstance(placement, (Shard, StridedShard)) or 0 <= placement.dim < ndim:
        return placement
    dim = placement.dim + ndim
    if not 0 <= dim < ndim:
        raise ArgumentError(f"expected a dimension of a {ndim}-d tensor to cut, got {placement!r}")
    if isinstance(placement, Shard):
        return Shard(dim)
    return StridedShard(dim, placement.split_factor)


def _checked_dim(dim: Any) -> int:
    number = as_int(dim)
    if number is None:
        raise ArgumentTypeError(f"expected the dimension to cut as an int, got {dim!r}")
    return number
