"""Sorting, searching and counting of fake arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import copied_like
from nbrt.backends.fake.numpy_operands import batch, empty, lifted, read_values
from nbrt.backends.fake.numpy_rules import RULES, new_result, rule
from nbrt.backends.fake.numpy_ufuncs import broadcast_shape

__all__ = ["value_dependent"]

_BY_VALUES = {
    np.argwhere: "its values decide how many elements are not zero",
    np.bincount: "the greatest value decides its length",
    np.compress: "its values decide how many elements are true",
    np.extract: "its values decide how many elements are true",
    np.flatnonzero: "its values decide how many elements are not zero",
    np.intersect1d: "its values decide how many elements are equal",
    np.nonzero: "its values decide how many elements are not zero",
    np.polydiv: "its values decide how many coefficients are zero",
    np.polymul: "its values decide how many coefficients are zero",
    np.real_if_close: "its values decide the dtype",
    np.roots: "its values decide how many coefficients are zero",
    np.setdiff1d: "its values decide how many elements are equal",
    np.setxor1d: "its values decide how many elements are equal",
    np.trim_zeros: "its values decide how many elements are zero",
    np.union1d: "its values decide how many elements are equal",
    np.unique: "its values decide how many elements are equal",
    np.unique_all: "its values decide how many elements are equal",
    np.unique_counts: "its values decide how many elements are equal",
    np.unique_inverse: "its values decide how many elements are equal",
    np.unique_values: "its values decide how many elements are equal",
}
"""Functions the shape or dtype of whose result depends on values, and why."""

_READING = (
    np.allclose,
    np.array_equiv,
    np.save,
    np.savetxt,
    np.savez,
    np.savez_compressed,
)
"""Functions that read values and return none to the device."""


def value_dependent(function: Any, reason: str) -> Any:
    """Return a rule that computes with the values that the policy gives."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        why = f"the result of numpy.{function.__name__} depends on values: {reason}"
        like = _first(args, kwargs)
        result = function(*read_values(args, why), **read_values(kwargs, why))
        return _as_results(like, result)

    return apply


def _first(args: Any, kwargs: Any) -> Any:
    return next(each for each in lifted(*_flat(args), *_flat(list(kwargs.values()))))


def _flat(values: Any) -> list[Any]:
    found = []
    for each in values:
        if hasattr(each, "memory"):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += _flat(each)
    return found


def _as_results(like: Any, result: Any) -> Any:
    if isinstance(result, tuple):
        parts = [_as_results(like, each) for each in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return like.memory.result(result.shape, result.dtype)


def _reading(function: Any) -> Any:
    def apply(*args: Any, **kwargs: Any) -> Any:
        why = f"numpy.{function.__name__} reads values"
        return function(*read_values(args, why), **read_values(kwargs, why))

    return apply


RULES.update({each: value_dependent(each, reason) for each, reason in _BY_VALUES.items()})
RULES.update({each: _reading(each) for each in _READING})
RULES.update(
    {
        getattr(np.lib.scimath, name): value_dependent(
            getattr(np.lib.scimath, name), "its values decide whether it is complex"
        )
        for name in np.lib.scimath.__all__
    }
)


@rule(np.array_equal)
def _array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    if np.shape(a1) != np.shape(a2):
        return False
    result: bool = _reading(np.array_equal)(a1, a2, equal_nan)
    return result


@rule(np.sort)
def _sort(a: Any, axis: int | None = -1, *args: Any, **kwargs: Any) -> Any:
    (source,) = lifted(a)
    np.sort(batch(source), _shifted(axis, source.ndim), *args, **kwargs)
    if axis is None:
        return new_result(np.sort, source, (source.size,), source.dtype)
    return copied_like(source, source.memory, source.dtype)


def _shifted(axis: int | None, ndim: int) -> int:
    """Return the place of an axis behind the leading axis of a stand-in."""
    if axis is None:
        return 0
    if ndim == 0:
        raise np.exceptions.AxisError(operator.index(axis), ndim)
    return int(np.lib.array_utils.normalize_axis_index(axis, ndim)) + 1


@rule(np.argsort)
def _argsort(a: Any, axis: int | None = -1, *args: Any, **kwargs: Any) -> Any:
    (source,) = lifted(a)
    if source.ndim:
        np.argsort(batch(source), _shifted(axis, source.ndim), *args, **kwargs)
    elif axis is not None and operator.index(axis) not in (0, -1):
        raise np.exceptions.AxisError(axis, 0)
    shape = source.shape if axis is not None and source.ndim else (source.size,)
    return new_result(np.argsort, source, shape, np.intp)


def _check_kth(source: Any, kth: Any, axis: int | None) -> None:
    length = source.size if axis is None else source.shape[_shifted(axis, source.ndim) - 1]
    if source.size == 0:
        return
    for each in np.atleast_1d(np.asarray(kth)).tolist():
        if not -length <= each < length:
            raise ValueError(f"kth(={each}) out of bounds ({length})")


@rule(np.partition, host=("kth",))
def _partition(
    a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: Any = None
) -> Any:
    (source,) = lifted(a)
    _check_kth(source, kth, axis)
    if axis is None:
        return new_result(np.partition, source, (source.size,), source.dtype)
    return copied_like(source, source.memory, source.dtype)


@rule(np.argpartition, host=("kth",))
def _argpartition(
    a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: Any = None
) -> Any:
    (source,) = lifted(a)
    _check_kth(source, kth, axis)
    shape = source.shape if axis is not None else (source.size,)
    return new_result(np.argpartition, source, shape, np.intp)


@rule(np.lexsort)
def _lexsort(keys: Any, axis: int = -1, **options: Any) -> Any:
    arrays = lifted(*keys)
    if len({each.shape for each in arrays}) > 1:
        raise ValueError("all keys need to be the same shape")
    if arrays[0].ndim:
        np.lib.array_utils.normalize_axis_index(axis, arrays[0].ndim)
    return new_result(np.lexsort, arrays[0], arrays[0].shape, np.intp)


@rule(np.sort_complex)
def _sort_complex(a: Any) -> Any:
    (source,) = lifted(a)
    kind = np.sort_complex(empty(source)).dtype
    return new_result(np.sort_complex, source, source.shape, kind)


@rule(np.searchsorted)
def _searchsorted(a: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any:
    (source, values, order) = lifted(a, v, sorter)
    if source.ndim != 1:
        raise ValueError(
            "object of too small depth for desired array"
            if source.ndim == 0
            else "object too deep for desired array"
        )
    np.searchsorted(empty(source), batch(values), side)
    if order is not None and order.shape != source.shape:
        raise ValueError("sorter.size must equal input array size")
    return new_result(np.searchsorted, source, values.shape, np.intp)


@rule(np.digitize)
def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    (source, edges) = lifted(x, bins)
    if edges.ndim != 1:
        raise ValueError("object too deep for desired array")
    np.digitize(batch(source), empty(edges), right)
    return new_result(np.digitize, source, source.shape, np.intp)


@rule(np.isin)
def _isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Any:
    (source, _) = lifted(element, test_elements)
    return new_result(np.isin, source, source.shape, np.bool_)


# -- histograms ------------------------------------------------------------------------------------


def _edge_count(bins: Any) -> int | None:
    """Return the number of edges; None if values decide it."""
    if isinstance(bins, str):
        return None
    if np.ndim(bins) == 0:
        count = int(bins)
        if count < 1:
            raise ValueError("`bins` must be positive, when an integer")
        return count + 1
    if np.ndim(bins) == 1:
        return int(np.shape(bins)[0])
    raise ValueError("`bins` must be 1d, when an array")


@rule(np.histogram, host=("bins",))
def _histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    count = _edge_count(bins)
    if count is None:
        reason = "its values decide the number of bins"
        return value_dependent(np.histogram, reason)(a, bins, range, density, weights)
    source, edges, scale = lifted(a, bins if np.ndim(bins) else None, weights)
    if scale is not None and scale.shape != source.shape:
        raise ValueError("weights should have the same shape as a.")
    options = (range, density, None if scale is None else np.ones(1, scale.dtype))
    given = 1 if edges is None else np.arange(2).astype(edges.dtype)
    counts, places = np.histogram(np.ones(1, source.dtype), given, *options)
    return (
        new_result(np.histogram, source, (count - 1,), counts.dtype),
        new_result(np.histogram, source, (count,), places.dtype),
    )


@rule(np.histogram_bin_edges, host=("bins",))
def _histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    count = _edge_count(bins)
    if count is None:
        reason = "its values decide the number of bins"
        return value_dependent(np.histogram_bin_edges, reason)(a, bins, range, weights)
    (source,) = lifted(a)
    given = np.arange(2).astype(bins.dtype) if hasattr(bins, "dtype") and bins.ndim else 1
    kind = np.histogram_bin_edges(np.ones(1, source.dtype), given, range).dtype
    return new_result(np.histogram_bin_edges, source, (count,), kind)


@rule(np.histogram2d, host=("bins",))
def _histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    if len(x) != len(y):
        raise ValueError("x and y must have the same length.")
    edges = bins if isinstance(bins, (list, tuple)) and len(bins) == 2 else (bins, bins)
    source, _, _ = lifted(x, y, weights)
    counts, places = _bins_of(source, edges, 2)
    return (counts, *places)


@rule(np.histogramdd, host=("bins",))
def _histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    given = sample if isinstance(sample, (list, tuple)) else [sample]
    source = lifted(*given)[0]
    if isinstance(sample, (list, tuple)):
        dims = len(sample)
    else:
        dims = source.shape[1] if source.ndim > 1 else 1
    edges = [bins] * dims if np.ndim(bins) == 0 else list(bins)
    if len(edges) != dims:
        raise ValueError("The dimension of bins must be equal to the dimension of the sample x.")
    return _bins_of(source, edges, dims)


def _bins_of(source: Any, bins: Any, dims: int) -> tuple[Any, list[Any]]:
    counts = [_edge_count(each) for each in bins]
    if None in counts:
        raise TypeError("`bins` must be integers or arrays for a histogram of several dimensions")
    lengths = [int(each) for each in counts if each is not None]
    given: Any = [
        np.arange(2).astype(np.asarray(empty(each)).dtype) if np.ndim(each) else 1 for each in bins
    ]
    _, places = np.histogramdd(np.ones((1, dims), source.dtype), given)
    edges = zip(lengths, places, strict=True)
    return (
        new_result(np.histogramdd, source, tuple(each - 1 for each in lengths), np.float64),
        [new_result(np.histogramdd, source, (size,), each.dtype) for size, each in edges],
    )


# -- selection by index arrays ---------------------------------------------------------------------


@rule(np.take, host=("indices",))
def _take(
    a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise"
) -> Any:
    if not hasattr(indices, "dtype"):
        indices = np.asarray(indices).astype(np.intp)
    (source, places, _) = lifted(a, indices, out)
    # An axis without elements would make NumPy search for an index for ever.
    np.take(np.ones((1,) * source.ndim), np.zeros((1,) * places.ndim, places.dtype), axis)
    if axis is None:
        shape, length = places.shape, source.size
    else:
        at = np.lib.array_utils.normalize_axis_index(axis, source.ndim)
        shape = (*source.shape[:at], *places.shape, *source.shape[at + 1 :])
        length = source.shape[at]
    if length == 0 and places.size and (mode == "raise" or 0 not in shape):
        raise IndexError("cannot do a non-empty take from an empty axes.")
    if mode == "raise" and not hasattr(indices, "memory") and np.size(indices):
        for value in (np.min(indices), np.max(indices)):
            if not -length <= value < length:
                raise IndexError(
                    f"index {value} is out of bounds for axis {axis or 0} with size {length}"
                )
    return new_result(np.take, source, shape, source.dtype, out)


@rule(np.take_along_axis, host=("indices",))
def _take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    (source, places) = lifted(arr, indices)
    shape = _shape_along_axis(source, places, axis)
    return new_result(np.take_along_axis, source, shape, source.dtype)


@rule(np.put_along_axis, host=("indices",))
def _put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    (source, places, new) = lifted(arr, indices, values)
    shape = _shape_along_axis(source, places, axis)
    if broadcast_shape([shape, new.shape]) != shape:
        raise ValueError(
            f"shape mismatch: value array of shape {new.shape}  could not be broadcast to indexing "
            f"result of shape {shape}"
        )


def _shape_along_axis(source: Any, places: Any, axis: int | None) -> tuple[int, ...]:
    if places.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if axis is None:
        if places.ndim != 1:
            raise ValueError("when axis=None, `indices` must have a single dimension.")
        shape: tuple[int, ...] = places.shape
        return shape
    at = np.lib.array_utils.normalize_axis_index(axis, source.ndim)
    if places.ndim != source.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    try:
        return np.broadcast_shapes(
            places.shape, tuple(1 if i == at else each for i, each in enumerate(source.shape))
        )
    except ValueError:
        raise IndexError(
            "shape mismatch: indexing arrays could not be broadcast together"
        ) from None


@rule(np.choose)
def _choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    options = list(choices)
    (places, _, *arrays) = lifted(a, out, *options)
    shape = broadcast_shape([each.shape for each in (places, *arrays)])
    if not np.can_cast(places.dtype, np.intp, "safe"):
        raise TypeError(
            f"Cannot cast array data from {places.dtype!r} to {np.dtype(np.intp)!r} according to "
            f"the rule 'safe'"
        )
    kind = np.result_type(*(each.dtype for each in arrays))
    return new_result(np.choose, places, shape, kind, out)
