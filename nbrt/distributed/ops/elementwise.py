"""Element-wise operations on local parts; placements follow `elementwise_rules`.

The functions of the array library compute the parts, so an element has the bits of a computation on
one device, if the library's results do not depend on the position. Partial terms are an exception:
their floating-point sum, as in any ``all_reduce``, is rounded once for each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.ops.elementwise_rules import spread_elementwise
from nbrt.distributed.ops.operands import (
    Operands,
    checked_call,
    is_dtensor,
    local_call,
    operand_spec,
    redistribute_to,
    sorted_operands,
    tensor_like,
)
from nbrt.distributed.ops.propagation import replicate_dims
from nbrt.distributed.placements import Partial
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.distributed.sharded_array import ShardedArray, ShardedT
    from nbrt.typing import DTypeLike

__all__ = ["astype", "elementwise", "elementwise_all", "store"]


def elementwise(
    function: Callable[..., Any], first: ShardedT, *others: Any, **kwargs: Any
) -> ShardedT:
    """Call an element-wise function of one result; see `elementwise_all` for the parameters."""
    result: ShardedT = elementwise_all(function, [first, *others], **kwargs)[0]
    return result


def elementwise_all(
    function: Callable[..., Any],
    values: Sequence[ShardedT],
    *,
    out: Any = None,
    where: Any = True,
    **kwargs: Any,
) -> tuple[ShardedT, ...]:
    """Call an element-wise function of arrays on the local parts of distributed tensors.

    `function` is a NumPy ufunc, or works element by element on broadcast arrays; `values` are
    tensors of one mesh, and scalars. Tensors of `out` keep their placements; None in a tuple is a
    new tensor. `where` is a tensor or a bool; where it is false, `out` does not change.
    """
    name = getattr(function, "__name__", str(function))
    masked = where is not True
    operands = sorted_operands([*values, where] if masked else list(values), name)
    tensors = operands.tensors
    outs = _checked_outs(out, name)
    given = [one for one in outs if one is not None]
    like = sorted_operands([*tensors, *given], name).values[0] if given else tensors[0]
    shape = _result_shape(tensors, given, name)
    result, needed = spread_elementwise(
        name,
        like.device_mesh.shape,
        tuple(map(operand_spec, tensors)) or (operand_spec(like),),
        scalars=len(tensors) < len(operands.values),
        linear=not masked and _keeps_terms(function, operands, kwargs),
        result=given[0].placements if given else None,
    )
    parts = [
        redistribute_to(each, places)._local
        for each, places in zip(tensors, needed[: len(tensors)], strict=True)
    ]
    arguments = operands.with_tensors(parts)
    if masked:
        kwargs["where"] = arguments.pop()
    if outs:
        into = tuple(None if one is None else one._local for one in outs)
        kwargs["out"] = into if isinstance(function, np.ufunc) else into[0]
    results = local_call(like, function, *arguments, **kwargs)
    arrays = results if isinstance(results, tuple) else (results,)
    return tuple(
        tensor_like(like, array, result, shape) if one is None else one
        for array, one in zip(arrays, outs or (None,) * len(arrays), strict=True)
    )


def astype(tensor: ShardedT, dtype: DTypeLike, copy: bool = False) -> ShardedT:
    """Return a tensor in another dtype, its terms reduced; itself if it has the dtype."""
    target = checked_call(np.dtype, dtype)
    if target == tensor.dtype:
        return elementwise(np.copy, tensor) if copy else tensor
    source = redistribute_to(tensor, replicate_dims(tensor.placements, partial=True))
    local = local_call(source, source._local.astype, target)
    return tensor_like(source, local, source.placements, tensor.shape)


def store(out: Any, result: ShardedT, name: str) -> ShardedT:
    """Copy a result to `out`, which keeps its placements; return the result if `out` is None."""
    if out is None:
        return result
    target: ShardedT = _checked_outs(out, name)[0]
    if target.shape != result.shape:
        raise ArgumentError(
            f"expected out of shape {result.shape} for {name}, got shape {target.shape}"
        )
    source = redistribute_to(result, target.placements)
    local_call(target, np.copyto, target._local, source._local, casting="same_kind")
    return target


def _checked_outs(out: Any, name: str) -> tuple[Any, ...]:
    if out is None:
        return ()
    outs = out if isinstance(out, tuple) else (out,)
    given = [one for one in outs if one is not None]
    for one in given:
        if not is_dtensor(one):
            raise ArgumentTypeError(
                f"expected out as a distributed tensor for {name}, got {type(one).__name__}; "
                f"use to_local() or full_tensor() to get at arrays"
            )
    if len({one.placements for one in given}) > 1:
        raise PlacementError(
            f"expected out arrays of equal placements for {name}, got "
            f"{[list(map(str, one.placements)) for one in given]}"
        )
    return outs


def _result_shape(
    tensors: Sequence[ShardedArray], outs: Sequence[ShardedArray], name: str
) -> tuple[int, ...]:
    shapes = [each.shape for each in tensors]
    if len(set(shapes)) == 1 and not outs:
        return shapes[0]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(
            f"expected shapes that broadcast for {name}, got {' and '.join(map(str, shapes))}"
        ) from None
    for one in outs:
        if shapes and one.shape != shape:
            raise ArgumentError(f"expected out of shape {shape} for {name}, got shape {one.shape}")
    return shape


def _keeps_terms(function: Callable[..., Any], operands: Operands, kwargs: dict[str, Any]) -> bool:
    """Return whether dtypes and scalars allow results from terms of the operands."""
    partial = [each for each in operands.tensors if each._spec.is_partial]
    terms = {each.dtype for each in partial}
    if not terms:
        return True
    if any(each.dtype.kind == "c" and Partial("prod") in each.placements for each in partial):
        return False  # no complex number is neutral, so a replicated factor has no terms
    samples = operands.with_tensors([np.empty(0, each.dtype) for each in operands.tensors])
    with np.errstate(all="ignore"):
        sample = checked_call(function, *samples, **kwargs)
    results = sample if isinstance(sample, tuple) else (sample,)
    if {each.dtype for each in results} != terms:
        return False  # a sum that wraps would not
    # Divided by 0, the sum 5 - 3 is infinite, but its terms become inf and -inf.
    scalars = [each for each in operands.values if not is_dtensor(each)]
    by_zero = function is np.divide and 0 in scalars
    scales = function in (np.multiply, np.divide)
    return not scales or (not by_zero and bool(np.isfinite(scalars).all()))
