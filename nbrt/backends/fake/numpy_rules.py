"""The table of rules: a function of NumPy, and its form for arrays without values."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.fake.numpy_layouts import in_axis_order, iteration_axes
from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.backends.fake.numpy_operands import batch, lifted, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "HOST_PARAMETERS",
    "RULES",
    "bound",
    "elementwise",
    "given_options",
    "new_result",
    "rule",
    "signature_of",
]

RULES: dict[Any, Callable[..., Any]] = {}
"""Function of NumPy -> its rule, which has the parameters of the function."""

HOST_PARAMETERS: dict[Any, tuple[str, ...]] = {}
"""Function of NumPy -> parameters that take arrays of the host beside arrays of a device."""


def rule(
    *functions: Any, host: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers the rule of functions.

    A name stands for a function that older versions of NumPy lack.
    """

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            each = getattr(np, function, None) if isinstance(function, str) else function
            if each is not None:
                RULES[each] = implementation
            if host:
                HOST_PARAMETERS[each] = host
        return implementation

    return register


signature_of = functools.cache(inspect.signature)


def bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of a call by parameter, or raise NumPy's TypeError."""
    try:
        return signature_of(function).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None


def given_options(**options: Any) -> dict[str, Any]:
    """Return the options without those that NumPy marks as not given."""
    return {name: value for name, value in options.items() if value is not np._NoValue}


def new_result(
    function: Any,
    like: ArrayMetadata,
    shape: tuple[int, ...],
    dtype: Any,
    out: Any = None,
    casting: Any = "same_kind",
) -> Any:
    """Return a new array in C order for the result of a function; or `out`, after a check."""
    if out is None:
        return in_axis_order(like.memory, shape, dtype, None)
    return stored(out, shape, dtype, casting, function.__name__, like.memory)


def elementwise(function: Any, names: Sequence[str], order: str = "K") -> Callable[..., Any]:
    """Return a rule for a function whose parameters `names` broadcast against each other."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        call = bound(function, args, kwargs)
        call.arguments = {
            name: value for name, value in call.arguments.items() if value is not np._NoValue
        }
        out, name = call.arguments.pop("out", None), function.__name__
        arrays = _arrays([call.arguments[name] for name in names if name in call.arguments])
        like = lifted(*arrays, out)[0 if arrays else -1]
        ndim = max((each.ndim for each in arrays), default=0)

        def stand_in(value: Any) -> Any:
            return batch(value, ndim)

        for each in names:
            if each in call.arguments:
                call.arguments[each] = _with_arrays(call.arguments[each], stand_in)
        result = function(*call.args, **call.kwargs)
        shape = result.shape[1:]
        if out is not None:
            return stored(out, shape, result.dtype, "same_kind", name, like.memory)
        axes = iteration_axes(arrays, len(shape), order)
        return in_axis_order(like.memory, shape, result.dtype, axes)

    return apply


def _arrays(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for each in values:
        _with_arrays(each, found.append)
    return found


def _with_arrays(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value with `function` applied to its arrays, and sequences of numbers as arrays."""
    if isinstance(value, (ArrayMetadata, np.ndarray)):
        return function(value)
    if isinstance(value, (list, tuple)):
        if any(isinstance(each, (ArrayMetadata, np.ndarray)) for each in value):
            return [_with_arrays(each, function) for each in value]
        return function(np.asarray(value))
    return value
