"""`concatenate` and `stack` along an unsplit dimension: every rank joins its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbrt.distributed.ops.operands import (
    local_call,
    operand_spec,
    redistribute_to,
    sorted_operands,
    tensor_like,
)
from nbrt.distributed.ops.propagation import OperandSpec, Placements, Strategy, cheapest, shard_dim
from nbrt.distributed.ops.reductions import checked_axes
from nbrt.distributed.ops.shapes import expand_dims
from nbrt.distributed.placements import Partial, Placement, Replicate
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbrt.distributed.sharded_array import ShardedT

__all__ = ["concatenate", "stack"]


def concatenate(tensors: Sequence[ShardedT], axis: int | None = 0) -> ShardedT:
    """Join tensors along an axis, which is gathered first if it is split.

    Parameters
    ----------
    tensors : sequence of DTensor
        Tensors of one mesh, and of the same shape except for `axis`. Their other splits stay if all
        have them, else those that move the fewest bytes; partial sums stay if all are partial.
    axis : int
        The axis.
    """
    operands = sorted_operands(list(tensors), "concatenate")
    if not operands.values or len(operands.places) != len(operands.values):
        raise ArgumentTypeError("expected distributed tensors to join, got none, or a scalar")
    if axis is None:
        raise ArgumentError("expected an axis to join tensors along, got None; reshape them first")
    first: ShardedT = operands.tensors[0]
    (along,) = checked_axes(axis, first.ndim)
    rests = {each.shape[:along] + each.shape[along + 1 :] for each in operands.tensors}
    if len(rests) > 1 or len({each.ndim for each in operands.tensors}) > 1:
        raise ArgumentError(
            f"expected tensors of one shape apart from axis {axis} to join, got "
            f"{[each.shape for each in operands.tensors]}"
        )
    result = _spread(
        [operand_spec(each) for each in operands.tensors], first.device_mesh.shape, along
    )
    total = sum(each.shape[along] for each in operands.tensors)
    shape = (*first.shape[:along], total, *first.shape[along + 1 :])
    parts = [redistribute_to(each, result)._local for each in operands.tensors]
    join_along = along if first.device_mesh.get_coordinate() is not None else 0
    local = local_call(first, np.concatenate, parts, axis=join_along)
    return tensor_like(first, local, result, shape)


def stack(tensors: Sequence[ShardedT], axis: int = 0) -> ShardedT:
    """Join tensors of one shape along a new axis."""
    given = list(tensors)
    operands = sorted_operands(given, "stack")
    if len(operands.places) != len(given):
        raise ArgumentTypeError("expected distributed tensors to stack, got a scalar")
    if len({each.shape for each in given}) > 1:
        raise ArgumentError(
            f"expected tensors of one shape to stack, got {[each.shape for each in given]}"
        )
    return concatenate([expand_dims(each, axis) for each in given], axis)


def _spread(operands: Sequence[OperandSpec], mesh_shape: Sequence[int], along: int) -> Placements:
    def offers(mesh_dim: int) -> Iterator[Strategy]:
        held = [each.placements[mesh_dim] for each in operands]
        terms = {each for one in operands for each in one.placements if each.is_partial()}
        for placement in dict.fromkeys(held):
            is_linear = isinstance(placement, Partial) and placement.is_linear
            stays = len(set(held)) == len(terms) == 1 and is_linear
            if stays or (not placement.is_partial() and shard_dim(placement) != along):
                yield _alike(placement, len(held))
        yield _alike(Replicate(), len(held))

    ways = [list(offers(mesh_dim)) for mesh_dim in range(len(mesh_shape))]
    return cheapest(mesh_shape, operands, ways)[0]


def _alike(placement: Placement, count: int) -> Strategy:
    return Strategy(placement, (placement,) * count)
