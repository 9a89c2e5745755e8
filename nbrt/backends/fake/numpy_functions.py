"""``__array_function__`` of fake arrays: the rule of a function, after a check of the devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbrt.backends.fake import (
    numpy_creation,
    numpy_elementwise,
    numpy_joining,
    numpy_linear_algebra,
    numpy_products,
    numpy_reductions,
    numpy_sorting,
    numpy_transforms,
    numpy_views,
)
from nbrt.backends.fake.numpy_metadata import ArrayMetadata
from nbrt.backends.fake.numpy_operands import common_memory, fake_arrays, lifted
from nbrt.backends.fake.numpy_rules import HOST_PARAMETERS, RULES, bound
from nbrt.errors import NotSupportedError

__all__ = ["RULE_MODULES", "array_function"]

RULE_MODULES = (
    numpy_creation,
    numpy_elementwise,
    numpy_joining,
    numpy_linear_algebra,
    numpy_products,
    numpy_reductions,
    numpy_sorting,
    numpy_transforms,
    numpy_views,
)
"""The modules whose import fills the table of rules."""


def array_function(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Implement ``__array_function__`` of fake arrays."""
    for kind in types:
        if not issubclass(kind, (ArrayMetadata, np.ndarray)):
            if hasattr(kind, "__cuda_array_interface__"):
                break
            return NotImplemented
    known = RULES.get(func)
    if known is None:
        module = func.__module__ or "numpy"
        raise NotSupportedError(
            f"expected a function of NumPy with a rule for fake arrays, got "
            f"{module}.{func.__name__}; compute it on the host before nbrt.fake, or write it with "
            f"functions that have a rule"
        )
    operands = _operands(func, args, kwargs)
    common_memory(operands)
    if func in HOST_PARAMETERS and args and type(args[0]) is np.ndarray and func not in _IN_PLACE:
        # The array is real, and the places or counts beside it are fake.
        args = (lifted(args[0], next(iter(fake_arrays([args, kwargs]))))[0], *args[1:])
    return known(*args, **kwargs)


_IN_PLACE = (np.put, np.put_along_axis)


def _operands(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arrays of a call that must be on one device."""
    found: list[Any] = []
    _collect(args, found)
    if kwargs:
        _collect(kwargs, found)
    allowed = HOST_PARAMETERS.get(func)
    if allowed and not all(isinstance(each, ArrayMetadata) for each in found):
        given = bound(func, args, kwargs).arguments
        found = [each for each in found if isinstance(each, ArrayMetadata)]
        _collect({name: each for name, each in given.items() if name not in allowed}, found)
    return found


def _collect(value: Any, found: list[Any]) -> None:
    kind = type(value)
    if kind is tuple or kind is list:
        for each in value:
            _collect(each, found)
    elif kind is dict:
        for each in value.values():
            _collect(each, found)
    elif kind not in _NUMBERS and (
        isinstance(value, (ArrayMetadata, np.ndarray)) or hasattr(value, "__cuda_array_interface__")
    ):
        found.append(value)


_NUMBERS = (int, float, complex, bool, str, type(None))
