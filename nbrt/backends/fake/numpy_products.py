"""Products of fake arrays: dot, tensordot, einsum, Kronecker and cross products."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nbrt.backends.fake.numpy_operands import lifted, sample
from nbrt.backends.fake.numpy_rules import RULES, new_result, rule
from nbrt.backends.fake.numpy_ufuncs import broadcast_shape

__all__ = ["product_dtype"]


def product_dtype(*arrays: Any) -> np.dtype[Any]:
    """Return the dtype of sums of products of arrays."""
    sums = [np.ones(1, each.dtype) for each in arrays]
    kind: np.dtype[Any] = functools.reduce(lambda a, b: np.dot(a, b).reshape(1), sums).dtype
    return kind


def _not_aligned(a: Any, b: Any, axis: int, other: int) -> ValueError:
    shapes = (str(each.shape).replace(", ", ",") for each in (a, b))
    return ValueError(
        f"shapes {' and '.join(shapes)} not aligned: {a.shape[axis]} (dim {axis % a.ndim}) != "
        f"{b.shape[other]} (dim {other % b.ndim})"
    )


@rule(np.dot)
def _dot(a: Any, b: Any, out: Any = None) -> Any:
    first, second, _ = lifted(a, b, out)
    kind = product_dtype(first, second)
    if not first.ndim or not second.ndim:
        return np.multiply(first, second, out=out)
    other = -2 if second.ndim > 1 else -1
    if first.shape[-1] != second.shape[other]:
        raise _not_aligned(first, second, -1, other)
    rest = second.shape[:-2] + second.shape[-1:] if second.ndim > 1 else ()
    return new_result(np.dot, first, first.shape[:-1] + rest, kind, out, "no")


@rule(np.inner)
def _inner(a: Any, b: Any, /) -> Any:
    first, second = lifted(a, b)
    if not first.ndim or not second.ndim:
        return np.multiply(first, second)
    if first.shape[-1] != second.shape[-1]:
        raise _not_aligned(first, second, -1, -1)
    shape = first.shape[:-1] + second.shape[:-1]
    return new_result(np.inner, first, shape, product_dtype(first, second))


@rule(np.vdot)
def _vdot(a: Any, b: Any, /) -> Any:
    first, second = lifted(a, b)
    if first.size != second.size:
        raise ValueError(f"cannot reshape array of size {second.size} into shape {(first.size,)}")
    return new_result(np.vdot, first, (), product_dtype(first, second))


@rule(np.outer)
def _outer(a: Any, b: Any, out: Any = None) -> Any:
    first, second, _ = lifted(a, b, out)
    kind = np.multiply(np.ones(1, first.dtype), np.ones(1, second.dtype)).dtype
    return new_result(np.outer, first, (first.size, second.size), kind, out)


@rule(np.linalg.outer)
def _linalg_outer(x1: Any, x2: Any, /) -> Any:
    first, second = lifted(x1, x2)
    if first.ndim != 1 or second.ndim != 1:
        raise ValueError(
            f"Input arrays must be one-dimensional, but they are x1.ndim={first.ndim} and "
            f"x2.ndim={second.ndim}."
        )
    return _outer(first, second)


@rule(np.kron)
def _kron(a: Any, b: Any) -> Any:
    first, second = lifted(a, b)
    ndim = max(first.ndim, second.ndim)
    sizes = [(1,) * (ndim - each.ndim) + each.shape for each in (first, second)]
    shape = tuple(one * other for one, other in zip(*sizes, strict=True))
    return new_result(np.kron, first, shape, np.result_type(first.dtype, second.dtype))


@rule(np.tensordot, np.linalg.tensordot)
def _tensordot(a: Any, b: Any, /, axes: Any = 2) -> Any:
    first, second = lifted(a, b)
    if np.ndim(axes) == 0:
        count = int(axes)
        pairs = (list(range(-count, 0)), list(range(count)))
    else:
        left, right = axes
        pairs = (
            [left] if np.ndim(left) == 0 else list(left),
            [right] if np.ndim(right) == 0 else list(right),
        )
    if len(pairs[0]) != len(pairs[1]):
        raise ValueError("shape-mismatch for sum")
    for one, other in zip(*pairs, strict=True):
        if first.shape[one] != second.shape[other]:
            raise ValueError("shape-mismatch for sum")
    chosen = [
        [axis % each.ndim for axis in axes_of]
        for each, axes_of in zip((first, second), pairs, strict=True)
    ]
    shape = tuple(
        size
        for each, axes_of in zip((first, second), chosen, strict=True)
        for at, size in enumerate(each.shape)
        if at not in axes_of
    )
    return new_result(np.tensordot, first, shape, product_dtype(first, second))


@rule(np.linalg.matmul)
def _matmul(x1: Any, x2: Any, /) -> Any:
    return np.matmul(x1, x2)


@rule(np.linalg.vecdot)
def _vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    first, second = (np.moveaxis(each, axis, -1) for each in lifted(x1, x2))
    return np.vecdot(first, second)


@rule(np.cross)
def _cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    if axis is not None:
        axisa, axisb, axisc = (axis,) * 3
    first, second = lifted(a, b)
    places = [
        np.lib.array_utils.normalize_axis_index(at, each.ndim)
        for at, each in ((axisa, first), (axisb, second))
    ]
    lengths = [each.shape[at] for each, at in zip((first, second), places, strict=True)]
    if not {*lengths} <= {2, 3}:
        raise ValueError(
            f"Both input arrays must be (arrays of) 3-dimensional vectors, but they are "
            f"{lengths[0]} and {lengths[1]} dimensional instead."
        )
    rest = broadcast_shape(
        [
            each.shape[:at] + each.shape[at + 1 :]
            for each, at in zip((first, second), places, strict=True)
        ]
    )
    kind = np.multiply(np.ones(1, first.dtype), np.ones(1, second.dtype)).dtype
    kind = np.subtract(np.ones(1, kind), np.ones(1, kind)).dtype
    if lengths == [2, 2]:
        return new_result(np.cross, first, rest, kind)
    result = new_result(np.cross, first, (*rest, 3), kind)
    return result.as_owner(np.moveaxis(result.layout, -1, axisc))


@rule(np.linalg.cross)
def _linalg_cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    first, second = lifted(x1, x2)
    if first.shape[axis] != 3 or second.shape[axis] != 3:
        raise ValueError(
            f"Both input arrays must be (arrays of) 3-dimensional vectors, but they are "
            f"{first.shape[axis]} and {second.shape[axis]} dimensional instead."
        )
    return _cross(first, second, axis=axis)


def _convolution(function: Any) -> Any:
    def apply(a: Any, v: Any, mode: str | None = None) -> Any:
        chosen = mode or ("full" if function is np.convolve else "valid")
        first, second = lifted(a, v)
        sizes = [each.shape[0] if each.ndim == 1 else 1 for each in (first, second)]
        if max(first.ndim, second.ndim) > 1:
            raise ValueError("object too deep for desired array")
        if min(sizes) == 0:
            raise ValueError("array cannot be empty")
        kind = function(sample(first), sample(second), mode=chosen).dtype
        long, short = max(sizes), min(sizes)
        size = {"full": long + short - 1, "same": long, "valid": long - short + 1}[chosen]
        return new_result(function, first, (size,), kind)

    return apply


RULES[np.convolve] = _convolution(np.convolve)
RULES[np.correlate] = _convolution(np.correlate)


# -- einsum ----------------------------------------------------------------------------------------


@rule(np.einsum)
def _einsum(*operands: Any, out: Any = None, optimize: Any = False, **options: Any) -> Any:
    subscripts, arrays = _parsed(operands)
    sources = lifted(*arrays)
    inputs, output = _explicit(subscripts, [each.ndim for each in sources])
    sizes: dict[str, int] = {}
    for labels, each in zip(inputs, sources, strict=True):
        for label, size in zip(labels, each.shape, strict=True):
            if sizes.get(label, 1) not in (1, size) and size != 1:
                raise ValueError(
                    f"operands could not be broadcast together: axis {label!r} of length {size} "
                    f"and {sizes[label]}"
                )
            sizes[label] = max(size, sizes.get(label, 1)) if size else 0
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        raise ValueError(
            f"expected an einstein sum whose output has each label once, and labels of its inputs, "
            f"got {subscripts!r}"
        )
    shape = tuple(sizes[label] for label in output)
    stand_ins = [np.ones((), each.dtype) for each in sources]
    known = {name: value for name, value in options.items() if value is not None}
    kind = np.einsum(",".join("" for _ in sources), *stand_ins, **known).dtype
    if len(sources) == 1 and out is None and not _is_sum(inputs[0], output) and not known:
        return _diagonal_view(sources[0], inputs[0], output)
    return new_result(np.einsum, sources[0], shape, kind, out)


def _is_sum(labels: str, output: str) -> bool:
    return not set(labels) <= set(output)


def _diagonal_view(source: Any, labels: str, output: str) -> Any:
    # Not by np.einsum, which reads the element of an array without axes.
    strides = [
        sum(step for each, step in zip(labels, source.strides, strict=True) if each == label)
        for label in output
    ]
    shape = [source.shape[labels.index(label)] for label in output]
    layout = source.layout
    return source.view_of(as_strided(layout, shape, strides, writeable=layout.flags.writeable))


def _parsed(operands: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Return the subscripts and the arrays of either form of the arguments."""
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), list(operands[1:])
    arrays = list(operands[0::2] if len(operands) % 2 == 0 else operands[0:-1:2])
    lists = list(operands[1::2])
    text = ",".join(map(_letters, lists))
    if len(operands) % 2:
        text += "->" + _letters(operands[-1])
    return text, arrays


def _letters(labels: Any) -> str:
    return "".join(
        "..." if each is Ellipsis else chr(ord("A") + each + 6 * (each > 25)) for each in labels
    )


def _explicit(subscripts: str, ndims: list[int]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result, with a label for each axis of "..."."""
    left, arrow, output = subscripts.partition("->")
    parts = left.split(",")
    if len(parts) != len(ndims):
        amount = "more" if len(ndims) > len(parts) else "fewer"
        raise ValueError(
            f"{amount} operands provided to einstein sum function than specified in the subscripts "
            f"string"
        )
    longest = 0
    inputs = []
    for part, ndim in zip(parts, ndims, strict=True):
        named = part.replace("...", "")
        if not all(each.isalpha() for each in named):
            raise ValueError(f"invalid subscript in einstein sum subscripts string {subscripts!r}")
        extra = ndim - len(named)
        if extra < 0 or (extra and "..." not in part):
            raise ValueError(
                "operand has more dimensions than subscripts given in einstein sum, but no '...' "
                "ellipsis provided to broadcast the extra dimensions."
                if extra > 0
                else "einstein sum subscripts string contains too many subscripts for operand"
            )
        longest = max(longest, extra)
        # Digits label the axes of the ellipsis, counted from the last.
        dots = "".join(chr(0x2460 + at) for at in range(extra))[::-1]
        inputs.append(part.replace("...", dots))
    every = "".join(chr(0x2460 + at) for at in range(longest))[::-1]
    if arrow:
        return inputs, output.replace("...", every)
    counts = Counter(each for part in parts for each in part if each.isalpha())
    return inputs, every + "".join(sorted(each for each, count in counts.items() if count == 1))


@rule(np.einsum_path)
def _einsum_path(*operands: Any, optimize: Any = "greedy", einsum_call: bool = False) -> Any:
    subscripts, arrays = _parsed(operands)
    # Without memory: all elements are one.
    hollow = [np.broadcast_to(np.ones((), each.dtype), each.shape) for each in lifted(*arrays)]
    return np.einsum_path(subscripts, *hollow, optimize=optimize)


# -- statistics ------------------------------------------------------------------------------------


@rule(np.cov)
def _cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    source, other = lifted(m, y)
    return _matrix_of_variables(np.cov, source, other, rowvar, dtype)


@rule(np.corrcoef)
def _corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    source, other = lifted(x, y)
    return _matrix_of_variables(np.corrcoef, source, other, rowvar, dtype)


def _matrix_of_variables(function: Any, source: Any, other: Any, rowvar: bool, dtype: Any) -> Any:
    count = 0
    for each in (source, other):
        if each is None:
            continue
        if each.ndim > 2:
            name = "m" if each is source else "y"
            raise ValueError(f"{name} has more than 2 dimensions")
        count += 1 if each.ndim < 2 else each.shape[0 if rowvar or each.shape[0] == 1 else 1]
    known = [each.dtype for each in (source, other) if each is not None]
    kind = np.dtype(dtype) if dtype is not None else np.result_type(*known, np.float64)
    return new_result(function, source, () if count == 1 else (count, count), kind)
