"""NumPy's functions that join, repeat, insert and pad: shapes of new arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import copied_like, in_axis_order, iteration_axes, joined_axes
from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.backends.fake.numpy_operands import batch, lifted, read_values, replaced, sample, stored
from nbrt.backends.fake.numpy_rules import new_result, rule
from nbrt.backends.fake.numpy_ufuncs import check_broadcast
from nbrt.backends.fake.numpy_views import ravel

__all__: list[str] = []


def _listed(arrays: Any) -> list[Any]:
    return lifted(*arrays)


def _behind_batch(axis: int, ndim: int) -> int:
    """Return the place of an axis behind the leading axis of a stand-in."""
    return int(np.lib.array_utils.normalize_axis_index(axis, ndim)) + 1


@rule(np.concatenate)
def _concatenate(
    arrays: Any,
    axis: int | None = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: Any = "same_kind",
) -> Any:
    sources = _listed(arrays)
    if axis is None:
        sources = [ravel(each) for each in sources]
        axis = 0
    if sources[0].ndim == 0:
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    place = _behind_batch(axis, sources[0].ndim)
    result = np.concatenate([batch(each) for each in sources], place, dtype=dtype, casting=casting)
    shape = result.shape[1:]
    if out is not None:
        return stored(out, shape, result.dtype, casting, "concatenate", sources[0].memory)
    axes = joined_axes(sources, len(shape))
    return in_axis_order(sources[0].memory, shape, result.dtype, axes)


@rule(np.stack)
def _stack(arrays: Any, axis: int = 0, out: Any = None, **options: Any) -> Any:
    sources = _listed(arrays)
    if len({each.shape for each in sources}) != 1:
        raise ValueError("all input arrays must have the same shape")
    at = np.lib.array_utils.normalize_axis_index(axis, sources[0].ndim + 1)
    return _concatenate([np.expand_dims(each, at) for each in sources], at, out, **options)


@rule(np.hstack)
def _hstack(tup: Any, **options: Any) -> Any:
    sources = [np.atleast_1d(each) for each in _listed(tup)]
    return _concatenate(sources, 0 if sources[0].ndim == 1 else 1, **options)


@rule(np.vstack)
def _vstack(tup: Any, **options: Any) -> Any:
    return _concatenate([np.atleast_2d(each) for each in _listed(tup)], 0, **options)


@rule(np.dstack)
def _dstack(tup: Any) -> Any:
    return _concatenate([np.atleast_3d(each) for each in _listed(tup)], 2)


@rule(np.column_stack)
def _column_stack(tup: Any) -> Any:
    sources = _listed(tup)
    return _concatenate([each if each.ndim > 1 else np.atleast_2d(each).T for each in sources], 1)


@rule(np.append)
def _append(arr: Any, values: Any, axis: int | None = None) -> Any:
    source, new = lifted(arr, values)
    if axis is None:
        return _concatenate([ravel(source), ravel(new)], 0)
    return _concatenate([source, new], axis)


@rule(np.block)
def _block(arrays: Any) -> Any:
    like, depth, ndim = None, 0, 0
    pending = [(arrays, 0)]
    while pending:
        each, level = pending.pop()
        depth = max(depth, level)
        if isinstance(each, list):
            pending += [(inner, level + 1) for inner in each]
        else:
            ndim = max(ndim, np.ndim(each))
            like = each if isinstance(each, ArrayMetadata) else like
    ndim = max(ndim, depth)
    (source,) = lifted(like)
    result = np.block(_with_batches(arrays, ndim))
    return new_result(np.block, source, result.shape[1:], result.dtype)


def _with_batches(arrays: Any, ndim: int) -> Any:
    if isinstance(arrays, list):
        return [_with_batches(each, ndim) for each in arrays]
    return batch(arrays if isinstance(arrays, ArrayMetadata) else np.asarray(arrays), ndim)


@rule(np.tile, host=("reps",))
def _tile(A: Any, reps: Any) -> Any:  # noqa: N803 (NumPy's name)
    (source,) = lifted(A)
    counts = np.atleast_1d(np.asarray(reps)).tolist()
    ndim = max(source.ndim, len(counts))
    shape = (1,) * (ndim - source.ndim) + source.shape
    counts = [1] * (ndim - len(counts)) + counts
    shape = tuple(size * count for size, count in zip(shape, counts, strict=True))
    return new_result(np.tile, source, shape, source.dtype)


@rule(np.repeat, host=("repeats",))
def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    (source,) = lifted(a)
    if isinstance(repeats, ArrayMetadata):
        why = "the result of numpy.repeat depends on values: the repeats decide its length"
        repeats = read_values(repeats, why)
    shape = [source.size] if axis is None else list(source.shape or (1,))
    at = 0 if axis is None else np.lib.array_utils.normalize_axis_index(axis, len(shape))
    if np.size(repeats) == 1:
        shape[at] *= np.repeat(np.empty((1, 0)), repeats, axis=0).shape[0]
    else:
        if np.shape(repeats) != (shape[at],):
            raise ValueError(
                f"operands could not be broadcast together with shape ({shape[at]},) "
                f"{np.shape(repeats)}"
            )
        shape[at] = np.repeat(np.empty((shape[at], 0)), repeats, axis=0).shape[0]
    return new_result(np.repeat, source, tuple(shape), source.dtype)


@rule(np.delete, host=("obj",))
def _delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    source, at = _flat_or_axis(arr, axis)
    length = source.shape[at]
    places: Any = obj if isinstance(obj, slice) else np.asarray(_known_places(obj, "delete"))
    if isinstance(places, slice):
        count = len(range(*places.indices(length)))
    elif places.dtype.kind == "b":
        if places.shape != (length,):
            raise ValueError(
                f"boolean array argument obj to delete must be one dimensional and match the axis "
                f"length of {length}"
            )
        count = int(np.count_nonzero(places))
    else:
        places = places.astype(np.intp) if places.size == 0 else places
        if places.dtype.kind not in "iu":
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        _check_places(places, length, length - 1, at)
        count = np.unique(places % max(length, 1)).size
    target = (*source.shape[:at], length - count, *source.shape[at + 1 :])
    return copied_like(source, source.memory, source.dtype, "A", target)


def _check_places(places: Any, length: int, last: int, axis: int) -> None:
    wrong = places[(places < -length) | (places > last)]
    if wrong.size:
        raise IndexError(
            f"index {wrong.flat[0]} is out of bounds for axis {axis} with size {length}"
        )


@rule(np.insert, host=("obj",))
def _insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    source, at = _flat_or_axis(arr, axis)
    new = lifted(source, values)[1]
    length = source.shape[at]
    places: Any = obj if isinstance(obj, slice) else np.asarray(_known_places(obj, "insert"))
    if isinstance(places, slice):
        places = np.arange(*places.indices(length))
    elif places.dtype.kind == "b":
        places = np.flatnonzero(places)
    shape = (1,) * (source.ndim - new.ndim) + new.shape
    if places.ndim == 0:  # NumPy takes the first axis of the values as the inserted one
        shape = (*shape[1 : at + 1], shape[0], *shape[at + 1 :])
    count = shape[at] if places.size == 1 else places.size
    _check_places(places, length, length, at)
    check_broadcast(shape, (*source.shape[:at], count, *source.shape[at + 1 :]))
    target = (*source.shape[:at], length + count, *source.shape[at + 1 :])
    return copied_like(source, source.memory, source.dtype, "A", target)


def _known_places(obj: Any, name: str) -> Any:
    if not isinstance(obj, ArrayMetadata):
        return obj
    return read_values(obj, f"the places of numpy.{name} decide the shape of its result")


def _flat_or_axis(arr: Any, axis: int | None) -> tuple[Any, int]:
    (source,) = lifted(arr)
    if axis is None:
        return ravel(source), 0
    return source, int(np.lib.array_utils.normalize_axis_index(axis, source.ndim))


@rule(np.resize)
def _resize(a: Any, new_shape: Any) -> Any:
    (source,) = lifted(a)
    shape = (new_shape,) if isinstance(new_shape, (int, np.integer)) else tuple(new_shape)
    if min(shape, default=0) < 0:
        raise ValueError("all elements of `new_shape` must be non-negative")
    return new_result(np.resize, source, shape, source.dtype)


@rule(np.roll, host=("shift",))
def _roll(a: Any, shift: Any, axis: Any = None) -> Any:
    (source,) = lifted(a)
    if axis is not None:
        np.lib.array_utils.normalize_axis_tuple(axis, source.ndim, allow_duplicate=True)
        np.broadcast_shapes(np.shape(shift), np.shape(axis))
    elif np.ndim(shift) > 1:
        raise ValueError("'shift' and 'axis' should be scalars or 1D sequences")
    if axis is None:
        return new_result(np.roll, source, source.shape, source.dtype)
    return copied_like(source, source.memory, source.dtype)


@rule(np.pad, host=("pad_width",))
def _pad(array: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Any:
    (source,) = lifted(array)
    if isinstance(pad_width, dict):
        known = {at % max(source.ndim, 1): each for at, each in pad_width.items()}
        pad_width = [np.broadcast_to(known.get(at, 0), 2) for at in range(source.ndim)]
    widths = np.broadcast_to(np.asarray(pad_width), (source.ndim, 2))
    if widths.dtype.kind not in "iu":
        raise TypeError("`pad_width` must be of integral type.")
    if (widths < 0).any():
        raise ValueError("index can't contain negative values")
    if not callable(mode):
        kept = {name: value for name, value in options.items() if np.ndim(value) == 0}
        np.pad(sample(source), 0, mode, **replaced(kept, sample))
        empties = [
            size == 0 and each.any() for size, each in zip(source.shape, widths, strict=True)
        ]
        if mode not in ("constant", "empty") and any(empties):
            raise ValueError(
                f"can't extend empty axis {empties.index(True)} using modes other than 'constant' "
                f"or 'empty'"
            )
    # As numbers of Python: NumPy's may overflow.
    added = [sum(each.tolist()) for each in widths]
    shape = tuple(size + more for size, more in zip(source.shape, added, strict=True))
    if math.prod(shape) * source.itemsize > np.iinfo(np.intp).max:
        raise ValueError(
            f"expected a result of less than 2**63 bytes, got shape {shape} of dtype {source.dtype}"
        )
    return copied_like(source, source.memory, source.dtype, "A", shape)


@rule(np.diff)
def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    (source, before, after) = lifted(a, *(_given(each) for each in (prepend, append)))
    if n == 0:
        return source
    if n < 0:
        raise ValueError("order must be non-negative but got " + repr(n))
    if source.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    at = _behind_batch(axis, source.ndim)
    options = {}
    for name, each in (("prepend", before), ("append", after)):
        if each is not None:
            options[name] = batch(each, source.ndim) if each.ndim else np.zeros((), each.dtype)
    result = np.diff(batch(source), n, at, **options)
    shape = result.shape[1:]
    axes = iteration_axes([source], len(shape))
    return in_axis_order(source.memory, shape, result.dtype, axes)


def _given(value: Any) -> Any:
    return None if value is np._NoValue else value


@rule(np.ediff1d)
def _ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    (source, end, begin) = lifted(ary, to_end, to_begin)
    stand_ins = [None if each is None else sample(each) for each in (end, begin)]
    kind = np.ediff1d(sample(source, 2), *stand_ins).dtype
    size = max(source.size - 1, 0) + sum(each.size for each in (end, begin) if each is not None)
    return new_result(np.ediff1d, source, (size,), kind)


@rule(np.gradient)
def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: Any = 1) -> Any:
    (source,) = lifted(f, *[each for each in varargs if isinstance(each, ArrayMetadata)])[:1]
    axes = (
        tuple(range(source.ndim))
        if axis is None
        else np.lib.array_utils.normalize_axis_tuple(axis, source.ndim)
    )
    spacing = [_spacing(each) for each in varargs]
    options: Any = {"axis": tuple(at + 1 for at in axes), "edge_order": edge_order}
    result: Any = np.gradient(batch(source), *spacing, **options)
    parts = result if isinstance(result, tuple) else (result,)
    made = tuple(_copied_result(source, each) for each in parts)
    return made if isinstance(result, tuple) else made[0]


def _spacing(value: Any) -> Any:
    if isinstance(value, ArrayMetadata) and value.ndim:
        return np.arange(value.shape[0]).astype(value.dtype)
    return sample(value) if isinstance(value, ArrayMetadata) else value


def _copied_result(source: Any, result: Any) -> Any:
    """Return a new array of a result's shape and dtype in the order of a source."""
    shape = result.shape[1:]
    return in_axis_order(source.memory, shape, result.dtype, iteration_axes([source], len(shape)))


@rule(np.meshgrid)
def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    sources = lifted(*xi)
    ndim = len(sources)
    views = [
        each.reshape((1,) * at + (-1,) + (1,) * (ndim - 1 - at)) for at, each in enumerate(sources)
    ]
    if indexing == "xy" and ndim > 1:
        views[0] = views[0].reshape((1, -1) + (1,) * (ndim - 2))
        views[1] = views[1].reshape((-1, 1) + (1,) * (ndim - 2))
    grids = views if sparse else list(np.broadcast_arrays(*views))
    return tuple(each.copy() if copy else each for each in grids)


@rule(np.ix_)
def _ix(*args: Any) -> Any:
    ndim = len(args)
    results = []
    for at, each in enumerate(lifted(*args)):
        if each.ndim != 1:
            raise ValueError("Cross index must be 1 dimensional")
        places = each if each.dtype.kind != "b" else np.nonzero(each)[0]
        results.append(places.reshape((1,) * at + (places.size,) + (1,) * (ndim - at - 1)))
    return tuple(results)
