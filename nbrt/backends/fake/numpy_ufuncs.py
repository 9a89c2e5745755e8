"""Universal functions of fake arrays: NumPy's shapes, dtypes, orders and errors."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.fake.numpy_indexing import indexed_shape
from nbrt.backends.fake.numpy_layouts import in_axis_order, iteration_axes, reduced
from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.backends.fake.numpy_operands import (
    common_memory,
    empty,
    fake_arrays,
    lifted,
    sample,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.fake.numpy_metadata import FakeMemory

__all__ = ["array_ufunc", "broadcast_shape", "check_broadcast"]


def array_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: Any) -> Any:
    """Implement ``__array_ufunc__`` of fake arrays."""
    out = kwargs.get("out") or ()
    where = kwargs.get("where", True)
    operands = [np.asarray(x) if type(x) in (list, tuple) else x for x in inputs]
    arrays = [*operands, *out, where]
    for each in arrays:
        if not isinstance(each, (ArrayMetadata, np.ndarray)) and _has_other_rules(each):
            return NotImplemented
    memory = common_memory(arrays)
    if method == "__call__":
        if ufunc.signature is not None:
            return _call_generalized(ufunc, memory, operands, out, kwargs)
        return _call(ufunc, memory, operands, out, where, kwargs)
    if method == "outer":
        return _outer(ufunc, operands, kwargs)
    if method == "at":  # a tuple is an index of several axes
        operands[1] = inputs[1]
    rule = {"reduce": _reduce, "accumulate": _accumulate, "reduceat": _reduceat, "at": _at}[method]
    result: Any = rule(ufunc, memory, operands, out, kwargs)
    return result


def _has_other_rules(operand: Any) -> bool:
    return getattr(operand, "__array_ufunc__", None) is not None and not (
        isinstance(operand, np.generic) or hasattr(operand, "__cuda_array_interface__")
    )


# -- calls -----------------------------------------------------------------------------------------


def _call(
    ufunc: np.ufunc,
    memory: FakeMemory,
    operands: list[Any],
    out: tuple[Any, ...],
    where: Any,
    kwargs: dict[str, Any],
) -> Any:
    options = dict(kwargs)
    if out:
        options["out"] = tuple(map(empty, out))
    if where is not True:
        options["where"] = empty(where)
    stand_ins = ufunc(*map(empty, operands), **options)
    sources = [x for x in operands if isinstance(x, (ArrayMetadata, np.ndarray))]
    if where is not True and isinstance(where, (ArrayMetadata, np.ndarray)):
        sources.append(where)
    given = [x for x in out if x is not None]
    shape = broadcast_shape([each.shape for each in (*sources, *given)])
    for each in given:
        if each.shape != shape:
            raise ValueError(
                f"non-broadcastable output operand with shape {each.shape} doesn't match the "
                f"broadcast shape {shape}"
            )
    axes = iteration_axes([*sources, *given], len(shape), kwargs.get("order", "K"))
    if ufunc is np.power:
        _check_exponent(operands, shape)
    kinds = (stand_ins,) if ufunc.nout == 1 else stand_ins
    results = tuple(
        in_axis_order(memory, shape, kind.dtype, axes)
        if target is None
        else written(target, shape, kind.dtype, "unsafe", memory)
        for kind, target in zip(kinds, out or (None,) * ufunc.nout, strict=True)
    )
    return results[0] if ufunc.nout == 1 else results


def _check_exponent(operands: list[Any], shape: tuple[int, ...]) -> None:
    """Raise NumPy's error of integers to negative powers, if the exponent is known."""
    exponent = operands[1]
    if isinstance(exponent, ArrayMetadata) or 0 in shape:
        return
    if np.power(*map(empty, operands)).dtype.kind in "iu" and np.any(exponent < 0):
        raise ValueError("Integers to negative integer powers are not allowed.")


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which shapes broadcast, or raise NumPy's error of a ufunc."""
    if not shapes:
        return ()
    first = shapes[0]
    others = [each for each in shapes if each and each != first]
    if not others:
        return first
    if not first and len(others) == 1:
        return others[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " ".join(str(each).replace(", ", ",") for each in shapes)
        raise ValueError(f"operands could not be broadcast together with shapes {text} ") from None


def check_broadcast(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raise ValueError if a shape does not broadcast to another."""
    if broadcast_shape([shape, target]) != target:
        raise ValueError(
            f"non-broadcastable operand with shape {shape} doesn't match the broadcast shape "
            f"{target}"
        )


def _outer(ufunc: np.ufunc, operands: list[Any], kwargs: dict[str, Any]) -> Any:
    first, second = operands
    if np.ndim(second) and np.ndim(first):
        first = first[(..., *((None,) * second.ndim))]
    return ufunc(first, second, **kwargs)


# -- generalized ufuncs ----------------------------------------------------------------------------


def _call_generalized(
    ufunc: np.ufunc,
    memory: FakeMemory,
    operands: list[Any],
    out: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Compute the result of a function such as matmul, whose signature names core axes."""
    signature = str(ufunc.signature)
    cores = _cores_of(signature)
    given = [x if isinstance(x, (ArrayMetadata, np.ndarray)) else np.asarray(x) for x in operands]
    axes = _core_axes(cores, kwargs)
    shapes = [_moved(each, chosen) for each, chosen in zip(given, axes[: ufunc.nin], strict=True)]
    absent = _absent_axes(cores[: ufunc.nin], shapes)
    cores = [[name for name in core if name not in absent] for core in cores]
    sizes: dict[str, int] = {}
    loops = []
    for position, (core, shape) in enumerate(zip(cores, shapes, strict=False)):
        if len(shape) < len(core):
            raise ValueError(
                f"{ufunc.__name__}: Input operand {position} does not have enough dimensions (has "
                f"{len(shape)}, gufunc core with signature {signature} requires {len(core)})"
            )
        loops.append(shape[: len(shape) - len(core)])
        for at, (name, size) in enumerate(zip(core, shape[len(shape) - len(core) :], strict=True)):
            if sizes.setdefault(name, size) != size:
                raise ValueError(
                    f"{ufunc.__name__}: Input operand {position} has a mismatch in its core "
                    f"dimension {at}, with gufunc signature {signature} (size {size} is different "
                    f"from {sizes[name]})"
                )
    loop = broadcast_shape(loops)
    options = tuple(
        (key, kwargs[key]) for key in ("casting", "dtype", "signature", "sig") if key in kwargs
    )
    stand_ins = tuple(
        (each.dtype, _core_shape(core, is_single=bool(absent)))
        for each, core in zip(given, cores, strict=False)
    )
    kinds = _generalized_dtypes(ufunc, stand_ins, options)
    results = []
    for position, kind in enumerate(kinds):
        core = cores[ufunc.nin + position]
        shape = (*loop, *(_core_size(name, sizes) for name in core))
        if kwargs.get("keepdims"):
            shape = (*loop, *(1 for _ in cores[0]))
        target = out[position] if out else None
        placed = axes[ufunc.nin + position] or ()
        results.append(_generalized_result(target, shape, kind, placed, memory, kwargs))
    return results[0] if ufunc.nout == 1 else tuple(results)


@functools.cache
def _cores_of(signature: str) -> list[list[str]]:
    """Return the names of the core axes of each operand and result."""
    parts = re.findall(r"\(([^)]*)\)", signature)
    return [[name for name in part.split(",") if name] for part in parts]


def _core_axes(cores: list[list[str]], kwargs: dict[str, Any]) -> list[Any]:
    """Return the axes of each operand that hold its core, None: the last ones."""
    if kwargs.get("axes") is not None:
        axes = [(each,) if isinstance(each, int) else tuple(each) for each in kwargs["axes"]]
        return axes + [None] * (len(cores) - len(axes))
    if kwargs.get("axis") is not None:
        axis = (kwargs["axis"],)
        return [axis if core or kwargs.get("keepdims") else None for core in cores]
    return [None] * len(cores)


def _moved(array: Any, axes: tuple[int, ...] | None) -> tuple[int, ...]:
    shape: tuple[int, ...] = array.shape
    if axes is None:
        return shape
    chosen = [np.lib.array_utils.normalize_axis_index(axis, len(shape)) for axis in axes]
    rest = [size for axis, size in enumerate(shape) if axis not in chosen]
    return (*rest, *(shape[axis] for axis in chosen))


def _absent_axes(cores: list[list[str]], shapes: list[tuple[int, ...]]) -> set[str]:
    """Return the optional axes, such as ``n?`` of matmul, that an operand lacks."""
    absent = set()
    for core, shape in zip(cores, shapes, strict=True):
        optional = [name for name in core if name.endswith("?")]
        if len(shape) == len(core) - len(optional):
            absent.update(optional)
    return absent


def _core_size(name: str, sizes: dict[str, int]) -> int:
    return int(name) if name.isdigit() else sizes[name]


def _core_shape(core: list[str], *, is_single: bool) -> tuple[int, ...]:
    """Return the shape of a stand-in: cores of length 1, and no loop or an empty one."""
    sizes = tuple(int(name) if name.isdigit() else 1 for name in core)
    return sizes if is_single else (0, *sizes)


@functools.lru_cache(maxsize=256)
def _generalized_dtypes(
    ufunc: np.ufunc,
    stand_ins: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...],
    options: tuple[tuple[str, Any], ...],
) -> list[np.dtype[Any]]:
    results = ufunc(*(np.zeros(shape, kind) for kind, shape in stand_ins), **dict(options))
    return [each.dtype for each in (results if isinstance(results, tuple) else (results,))]


def _generalized_result(
    out: Any,
    shape: tuple[int, ...],
    kind: Any,
    axes: tuple[int, ...],
    memory: FakeMemory,
    kwargs: Any,
) -> Any:
    """Return a new array, or `out`, with the core in the places `axes`."""
    if out is None:
        result = in_axis_order(memory, shape, kind, None)
        if not axes:
            return result
        return result.as_owner(np.moveaxis(result.layout, range(-len(axes), 0), axes))
    given = np.moveaxis(out, axes, range(-len(axes), 0)).shape
    if given[len(given) - len(shape) :] != shape:
        raise ValueError(
            f"expected an output of shape {shape}, as the operands give, got {out.shape}"
        )
    casting = kwargs.get("casting", "same_kind")
    return written(out, out.shape, kind, casting, memory)


# -- reductions ------------------------------------------------------------------------------------


def _reduce(
    ufunc: np.ufunc,
    memory: FakeMemory,
    operands: list[Any],
    out: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    (array,) = operands
    options = dict(kwargs)
    where = options.get("where", True)
    if isinstance(where, (ArrayMetadata, np.ndarray)):
        options["where"] = sample(where)
    if out:
        options["out"] = tuple(map(sample, out))
    with np.errstate(all="ignore"):
        result = ufunc.reduce(sample(array), **options)
    if isinstance(where, (ArrayMetadata, np.ndarray)):
        check_broadcast(where.shape, array.shape)
    axis, keepdims = options.get("axis", 0), options.get("keepdims", False)
    shape, order = reduced(array, axis if array.ndim else None, keepdims)
    if out:
        (target,) = out
        if target.shape != shape:
            raise ValueError(
                f"output parameter for reduction operation {ufunc.__name__} has the wrong shape: "
                f"expected {shape}, got {target.shape}"
            )
        return written(target, shape, result.dtype, "unsafe", memory)
    return in_axis_order(memory, shape, result.dtype, order)


def _accumulate(
    ufunc: np.ufunc,
    memory: FakeMemory,
    operands: list[Any],
    out: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    (array,) = operands
    options = {**kwargs, "out": tuple(map(sample, out))} if out else kwargs
    with np.errstate(all="ignore"):
        result = ufunc.accumulate(sample(array), **options)
    return _along_axis(array, array.shape, result.dtype, memory, out)


def _reduceat(
    ufunc: np.ufunc,
    memory: FakeMemory,
    operands: list[Any],
    out: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    array, indices = operands
    indices = indices if isinstance(indices, ArrayMetadata) else np.asarray(indices)
    count = sample(indices).astype(indices.dtype)
    options = {**kwargs, "out": tuple(map(sample, out))} if out else kwargs
    stand_in = sample(array)
    with np.errstate(all="ignore"):
        result = ufunc.reduceat(stand_in, np.zeros_like(count), **options)
    axis = np.lib.array_utils.normalize_axis_index(kwargs.get("axis", 0), array.ndim)
    length = array.shape[axis]
    if isinstance(indices, np.ndarray) and indices.size:
        wrong = indices[(indices < 0) | (indices >= length)]
        if wrong.size:
            raise IndexError(
                f"index {wrong[0]} out-of-bounds in {ufunc.__name__}.reduceat [0, {length})"
            )
    shape = (*array.shape[:axis], indices.size, *array.shape[axis + 1 :])
    return _along_axis(array, shape, result.dtype, memory, out)


def _along_axis(
    array: Any, shape: tuple[int, ...], kind: Any, memory: FakeMemory, out: tuple[Any, ...]
) -> Any:
    if not out:
        return in_axis_order(memory, shape, kind, iteration_axes([array], len(shape)))
    (target,) = out
    if target.shape != shape:
        raise ValueError(
            f"operands could not be broadcast together with remapped shapes: {target.shape} and "
            f"{shape}"
        )
    return written(target, shape, kind, "unsafe", memory)


def _at(
    ufunc: np.ufunc,
    memory: FakeMemory,
    operands: list[Any],
    out: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    target, index, *values = operands
    (array,) = lifted(target, next(iter(fake_arrays(operands))))[:1]
    items = index if isinstance(index, tuple) else (index,)
    has_slices = len(items) < array.ndim or any(
        each is ... or type(each) is slice for each in items
    )
    if has_slices and not array.flags.writeable:  # NumPy writes single elements all the same
        raise ValueError("operand array with iterator write flag set is read-only")
    shape = indexed_shape(array, index)
    nothing: Any = slice(None)
    ufunc.at(np.empty(0, array.dtype), nothing, *map(empty, values), **kwargs)
    for each in values:
        if broadcast_shape([shape, np.shape(each)]) != shape:
            raise ValueError("array is not broadcastable to correct shape")
    if target is not array:
        written(target, array.shape, array.dtype, "no", memory)
