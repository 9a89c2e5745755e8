"""NumPy's functions that make arrays like others, and its in-place functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_indexing import setitem
from nbrt.backends.fake.numpy_layouts import copied_like
from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.backends.fake.numpy_operands import empty, lifted, sample
from nbrt.backends.fake.numpy_rules import RULES, new_result, rule
from nbrt.backends.fake.numpy_ufuncs import broadcast_shape

__all__: list[str] = []


@rule(np.empty_like)
def _empty_like(prototype: Any, /, *args: Any, **options: Any) -> Any:
    return _like(prototype, *args, **options)


@rule(np.zeros_like, np.ones_like)
def _like(
    a: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    (source,) = lifted(a)
    source.check_active()
    if device is not None and str(device) not in ("cpu", str(source.device)):
        raise ValueError(
            f"expected device={str(source.device)!r} or none, got {device!r}; make the array with "
            f"nbrt.empty"
        )
    if shape is not None:
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    kind = source.dtype if dtype is None else np.dtype(dtype)
    return copied_like(source, source.memory, kind, order, shape)


@rule(np.full_like)
def _full_like(a: Any, fill_value: Any, dtype: Any = None, *args: Any, **options: Any) -> Any:
    known = a if isinstance(a, ArrayMetadata) else lifted(a, fill_value)[0]
    result = _like(known, dtype, *args, **options)
    setitem(result, ..., fill_value)
    return result


@rule(np.copy)
def _copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    (source,) = lifted(a)
    source.check_active()
    return copied_like(source, source.memory, source.dtype, order)


@rule("astype")
def _astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    (source,) = lifted(x)
    return source.astype(dtype, copy=copy)


def _range(function: Any) -> Any:
    """Return a rule for linspace and its kind."""

    def apply(start: Any, stop: Any, num: int = 50, *args: Any, **options: Any) -> Any:
        first, last = lifted(start, stop)
        ndim = max(first.ndim, last.ndim)
        known = {**dict(zip(("endpoint", "retstep"), args, strict=False)), **options}
        if function is not np.linspace:
            known = {**dict(zip(("endpoint", "base"), args, strict=False)), **options}
        axis = known.pop("axis", 0)
        retstep = known.pop("retstep", False)
        if num < 0:
            raise ValueError(f"Number of samples, {num}, must be non-negative.")
        base = known.get("base", 10.0)
        if isinstance(base, ArrayMetadata):
            known["base"] = sample(base)
        kind = function(sample(start), sample(stop), min(num, 2), **known).dtype
        rest = broadcast_shape([first.shape, last.shape])
        at = np.lib.array_utils.normalize_axis_index(axis, ndim + 1)
        result = new_result(function, first, (num, *rest), kind)
        result = result.as_owner(np.moveaxis(result.layout, 0, at))
        if not retstep:
            return result
        return result, new_result(function, first, rest, np.result_type(kind, np.float64))

    return apply


RULES.update({each: _range(each) for each in (np.linspace, np.logspace, np.geomspace)})


@rule(np.diagflat)
def _diagflat(v: Any, k: int = 0) -> Any:
    (source,) = lifted(v)
    side = source.size + abs(k)
    return new_result(np.diagflat, source, (side, side), source.dtype)


@rule(np.tril, np.triu)
def _triangle(m: Any, k: int = 0) -> Any:
    (source,) = lifted(m)
    np.tril(sample(source), k)
    shape = source.shape if source.ndim > 1 else source.shape * 2
    return new_result(np.tril, source, shape, source.dtype)


@rule(np.vander)
def _vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803
    (source,) = lifted(x)
    if source.ndim != 1:
        raise ValueError("x must be a one-dimensional array or sequence.")
    columns = source.size if N is None else N
    kind = np.promote_types(source.dtype, int)
    return new_result(np.vander, source, (source.size, columns), kind)


@rule(np.diag_indices_from)
def _diag_indices_from(arr: Any) -> Any:
    (source,) = lifted(arr)
    if source.ndim < 2:
        raise ValueError("input array must be at least 2-d")
    if len(set(source.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    places = new_result(np.diag_indices_from, source, source.shape[:1], np.int64)
    return (places,) * source.ndim


def _triangle_size(shape: tuple[int, ...], k: int) -> int:
    """Return the number of elements on and below diagonal `k`."""
    rows, columns = shape
    full_from = max(0, min(rows, columns - 1 - k))  # first row that is whole
    first = max(0, -k)  # first row with an element
    partial = max(0, full_from - first)
    return partial * (first + k + 1) + partial * (partial - 1) // 2 + (rows - full_from) * columns


def _indices(source: Any, size: int) -> tuple[Any, Any]:
    return (
        new_result(np.tril_indices_from, source, (size,), np.int64),
        new_result(np.tril_indices_from, source, (size,), np.int64),
    )


@rule(np.tril_indices_from)
def _tril_indices_from(arr: Any, k: int = 0) -> Any:
    (source,) = lifted(arr)
    if source.ndim != 2:
        raise ValueError("input array must be 2-d")
    return _indices(source, _triangle_size(source.shape, k))


@rule(np.triu_indices_from)
def _triu_indices_from(arr: Any, k: int = 0) -> Any:
    (source,) = lifted(arr)
    if source.ndim != 2:
        raise ValueError("input array must be 2-d")
    return _indices(source, source.size - _triangle_size(source.shape, k - 1))


# -- in-place functions ----------------------------------------------------------------------------


def _target(array: Any, name: str) -> Any:
    if not isinstance(array, ArrayMetadata):
        raise TypeError(
            f"expected a fake array as the target of numpy.{name}, got {type(array).__name__}: the "
            f"values do not exist"
        )
    if not array.flags.writeable:
        raise ValueError("assignment destination is read-only")
    return array


@rule(np.copyto)
def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    target = _target(dst, "copyto")
    np.copyto(empty(target), empty(src), casting=casting)
    shapes = [np.shape(src), np.shape(where)]
    for shape in shapes:
        if broadcast_shape([target.shape, shape]) != target.shape:
            raise ValueError(
                f"could not broadcast input array from shape {shape} into shape {target.shape}"
            )


@rule(np.put, host=("ind",))
def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    target = _target(a, "put")
    if target.size == 0 and np.size(ind) and np.size(v):
        raise IndexError("cannot replace elements of an empty array")
    if mode == "raise" and not isinstance(ind, ArrayMetadata) and np.size(ind):
        for value in (np.min(ind), np.max(ind)):
            if not -target.size <= value < target.size:
                raise IndexError(
                    f"index {value} is out of bounds for axis 0 with size {target.size}"
                )
    _check_dtype(target, v)


def _check_dtype(target: Any, values: Any) -> None:
    given = empty(values)
    np.empty(1, target.dtype)[:1] = given if np.ndim(given) == 0 else np.ones(1, given.dtype)


@rule(np.place)
def _place(arr: Any, mask: Any, vals: Any) -> None:
    target = _target(arr, "place")
    if np.size(mask) != target.size:
        raise ValueError("place: mask and data must be the same size")
    known = vals if hasattr(vals, "dtype") else np.asarray(vals, target.dtype)
    new = lifted(target, known)[1]
    if new.size == 0:
        raise ValueError("Cannot insert from an empty array!")
    np.place(np.zeros(1, target.dtype), np.zeros(1, np.bool_), np.zeros(1, new.dtype))


@rule(np.putmask)
def _putmask(a: Any, /, mask: Any, values: Any) -> None:
    target = _target(a, "putmask")
    if np.size(mask) != target.size:
        raise ValueError("putmask: mask and data must be the same size")
    np.putmask(np.empty(0, target.dtype), np.empty(0, np.bool_), empty(values))


@rule(np.fill_diagonal)
def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    target = _target(a, "fill_diagonal")
    if target.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if target.ndim > 2 and len(set(target.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    _check_dtype(target, val)


# -- metadata --------------------------------------------------------------------------------------


@rule(np.shape)
def _shape(a: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = a.shape
    return shape


@rule(np.ndim)
def _ndim(a: Any) -> int:
    return int(a.ndim)


@rule(np.size)
def _size(a: Any, axis: Any = None) -> int:
    if axis is None:
        return int(a.size)
    axes = np.lib.array_utils.normalize_axis_tuple(axis, a.ndim)
    return math.prod(a.shape[at] for at in axes)


@rule(np.array_repr, np.array_str, np.array2string)
def _text(a: Any, *args: Any, **options: Any) -> str:
    return repr(a)


def _by_dtype(function: Any) -> Any:
    def apply(*args: Any, **kwargs: Any) -> Any:
        return function(*map(empty, args), **{key: empty(each) for key, each in kwargs.items()})

    return apply


RULES.update(
    {
        each: _by_dtype(each)
        for each in (
            np.can_cast,
            np.common_type,
            np.iscomplexobj,
            np.isrealobj,
            np.min_scalar_type,
            np.result_type,
        )
    }
)


def _by_layout(function: Any) -> Any:
    def apply(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        first, second = lifted(a, b)
        return function(first.layout, second.layout, *args, **kwargs)

    return apply


RULES[np.may_share_memory] = _by_layout(np.may_share_memory)
RULES[np.shares_memory] = _by_layout(np.shares_memory)
