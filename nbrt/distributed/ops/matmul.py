"""Matrix products: split by rows, columns, batches, or along the dimension of the sum.

Column-parallel times row-parallel, as in transformers, needs no communication: ``x @ w1`` with
split columns of ``w1`` has split columns, and their product with split rows of ``w2`` is `Partial`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.ops.elementwise import store
from nbrt.distributed.ops.operands import (
    checked_call,
    map_local,
    operand_spec,
    redistribute_to,
    sorted_operands,
)
from nbrt.distributed.ops.propagation import (
    OperandSpec,
    Placements,
    Strategy,
    cheapest,
    on_other_dim,
    shard_dim,
)
from nbrt.distributed.ops.shapes import expand_dims, squeeze
from nbrt.distributed.placements import Partial, Placement, Replicate
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.distributed.sharded_array import ShardedT

__all__ = ["matmul", "spread_matmul"]


def matmul(left: Any, right: Any, out: Any = None, **kwargs: Any) -> Any:
    """Return the matrix product of two distributed tensors, as ``numpy.matmul``.

    Placements follow `spread_matmul`. A sum that is split over ranks is `Partial`. Its bits in
    floating point depend on the number of ranks, as those of any product depend on its blocking.
    """
    operands = sorted_operands([left, right], "matmul")
    if len(operands.places) != 2:
        raise ArgumentTypeError("expected two distributed tensors for matmul, got a scalar")
    if kwargs:
        raise ArgumentError(f"expected matmul without {', '.join(sorted(kwargs))}")
    if not left.ndim or not right.ndim:
        raise ArgumentError("expected tensors of at least one dimension for matmul, got 0-d")
    if left.ndim == 1:
        result = matmul(expand_dims(left, 0), right)
        return store(out, squeeze(result, -2 if right.ndim > 1 else -1), "matmul")
    if right.ndim == 1:
        return store(out, squeeze(matmul(left, expand_dims(right, 1)), -1), "matmul")
    return store(out, _product(left, right), "matmul")


def _product(left: ShardedT, right: ShardedT) -> ShardedT:
    if left.shape[-1] != right.shape[-2]:
        raise ArgumentError(
            f"expected shapes (..., m, k) and (..., k, n) for matmul, got {left.shape} and "
            f"{right.shape}"
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ArgumentError(
            f"expected shapes that broadcast, apart from the last two dimensions, for matmul, got "
            f"{left.shape} and {right.shape}"
        ) from None
    samples = np.empty((0, 0), left.dtype), np.empty((0, 0), right.dtype)
    kind = checked_call(np.matmul, *samples).dtype
    result, (for_left, for_right) = spread_matmul(
        left.device_mesh.shape,
        operand_spec(left),
        operand_spec(right),
        linear=left.dtype == right.dtype == kind,
    )
    shape = (*batch, left.shape[-2], right.shape[-1])
    first, second = redistribute_to(left, for_left), redistribute_to(right, for_right)
    return map_local(first, lambda part: np.matmul(part, second._local), result, shape, dtype=kind)


@functools.lru_cache(maxsize=1024)
def spread_matmul(
    mesh_shape: tuple[int, ...], left: OperandSpec, right: OperandSpec, *, linear: bool = True
) -> tuple[Placements, tuple[Placements, ...]]:
    """Return the placements of the product and of each factor.

    If `linear`, terms of a factor may become terms of the product.

    Examples
    --------
    >>> from nbrt.distributed import Shard
    >>> x, w = OperandSpec((8, 16), 4, (Shard(1),)), OperandSpec((16, 4), 4, (Shard(0),))
    >>> spread_matmul((2,), x, w)[0]
    (Partial(op='sum'),)
    """
    ndim = max(len(left.shape), len(right.shape))
    ways = [list(_offers(left, right, dim, ndim, linear)) for dim in range(len(mesh_shape))]
    return cheapest(mesh_shape, (left, right), ways)


def _offers(
    left: OperandSpec, right: OperandSpec, mesh_dim: int, ndim: int, linear: bool
) -> Iterator[Strategy]:
    whole = Replicate()
    for number, operand in enumerate((left, right)):
        placement = operand.placements[mesh_dim]
        if linear and placement.is_partial() and _is_linear(operand):
            needed: list[Placement] = [whole, whole]
            needed[number] = placement
            yield Strategy(placement, tuple(needed))
        dim = shard_dim(placement)
        if dim is None:
            continue
        from_end = dim - len(operand.shape)
        if from_end == (-1, -2)[number]:  # the dimension of the sum
            row = (
                on_other_dim(placement, len(left.shape) - 1),
                on_other_dim(placement, len(right.shape) - 2),
            )
            other = (right, left)[number].placements[mesh_dim]
            # Terms only defer a reduction: no data moves to create them.
            if other in (whole, row[1 - number]):
                yield Strategy(Partial("sum"), row)
        else:
            yield _cut_way(left, right, placement, from_end, ndim)
    yield Strategy(whole, (whole, whole))


def _cut_way(
    left: OperandSpec, right: OperandSpec, cut: Placement, from_end: int, ndim: int
) -> Strategy:
    """Return the strategy of a product that is split in a dimension other than that of the sum."""
    dims: list[int | None] = []
    for number, operand in enumerate((left, right)):
        dim = from_end + len(operand.shape)
        dims.append(None if dim < 0 or from_end == (-1, -2)[number] else dim)
    pairs = list(zip((left, right), dims, strict=True))
    size = max(1 if dim is None else operand.shape[dim] for operand, dim in pairs)
    needed = tuple(
        on_other_dim(cut, dim) if dim is not None and operand.shape[dim] == size else Replicate()
        for operand, dim in pairs
    )
    return Strategy(on_other_dim(cut, from_end + ndim), needed)


def _is_linear(operand: OperandSpec) -> bool:
    return all(each.is_linear for each in operand.placements if isinstance(each, Partial))
