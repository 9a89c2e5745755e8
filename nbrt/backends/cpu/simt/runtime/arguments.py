"""The types of a kernel's arguments, and the errors for other types."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import errors, types
from numba.core.dispatcher import OmittedArg
from numba.core.typing.typeof import Purpose, typeof
from numba.np.numpy_support import from_dtype, map_layout

from nbrt.backends.cpu.simt.prepared import PreparedType
from nbrt.backends.fake_arguments import refuse_fake_array
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FunctionType

__all__ = ["argument_types", "check_count", "numba_type", "parameter_name"]

_ACCEPTED = (
    "NumPy arrays of numbers, int, float, complex, bool, NumPy scalars, and tuples or "
    "named tuples of these"
)
_SCALARS = (
    types.Number,
    types.Boolean,
    types.Record,
    types.NPDatetime,
    types.NPTimedelta,
    types.EnumMember,
    types.NoneType,
    types.CharSeq,
    PreparedType,
    types.UnicodeCharSeq,
    types.CPointer,
)


def argument_types(function: FunctionType, arguments: Sequence[object]) -> tuple[Any, ...]:
    """Return the Numba types of the arguments of a launch.

    Parameters
    ----------
    function : function
        The kernel.
    arguments : sequence
        The kernel's own arguments, without the hidden one; `OmittedArg` for a default.

    Returns
    -------
    tuple of numba types
        One for each argument.

    Raises
    ------
    ArgumentTypeError
        If there are too few or too many arguments, or one is of a type that no kernel takes.
    """
    check_count(function, arguments)
    return tuple(_type_of(function, index, value) for index, value in enumerate(arguments))


def _type_of(function: FunctionType, index: int, value: object) -> Any:
    if isinstance(value, OmittedArg):
        return types.Omitted(value.value)
    try:
        typ = numba_type(value)
    except (errors.NumbaError, ValueError, TypeError, NotImplementedError):
        typ = None
    if typ is None and _is_too_large(value):
        raise ArgumentTypeError(
            f"kernel {function.__name__!r}: argument {parameter_name(function, index)!r} holds an "
            "integer outside [-2**63, 2**64), and a kernel computes with 64 bits; pass it as a "
            "float, or in parts"
        )
    if typ is None or not _is_accepted(typ):
        name = f"{parameter_name(function, index)!r} of kernel {function.__name__!r}"
        refuse_fake_array(value, name, "cpu")
        raise ArgumentTypeError(
            f"kernel {function.__name__!r}: argument {parameter_name(function, index)!r} has the "
            f"type {_type_name(value)}, which a kernel cannot take; accepted are {_ACCEPTED}"
        )
    return typ


def numba_type(value: object) -> Any:
    """Return the Numba type of an argument, as Numba's ``typeof`` does.

    Arrays take a shortcut, because ``typeof`` imports ``numpy.ma``, which takes as long as the rest
    of a launch from the disk cache.
    """
    if type(value) is not np.ndarray:
        return typeof(value, Purpose.argument)
    dtype, layout = _element_type(value.dtype), map_layout(value)
    return types.Array(dtype, value.ndim, layout, readonly=not value.flags.writeable)


def _element_type(dtype: np.dtype[Any]) -> Any:
    if dtype.name == "bfloat16":  # of ml_dtypes; NumPy has no such type
        from nbrt.backends.cpu.simt.builtins.bfloat16 import bfloat16

        return bfloat16
    return from_dtype(dtype)


def _is_too_large(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_too_large, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def _is_accepted(typ: Any) -> bool:
    if isinstance(typ, types.Array):
        return _is_accepted(typ.dtype)
    if isinstance(typ, types.BaseTuple):
        return all(_is_accepted(member) for member in typ.types)
    return isinstance(typ, _SCALARS)


def parameter_name(function: FunctionType, index: int) -> str:
    """Return the name of the parameter that takes an argument, such as ``x`` or ``xs[1]``."""
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    if index < len(parameters) and parameters[index].kind is not inspect.Parameter.VAR_POSITIONAL:
        return parameters[index].name
    last = len(parameters) - 1
    return f"{parameters[last].name}[{index - last}]"


def _type_name(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"numpy.ndarray of dtype {value.dtype}"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def check_count(function: FunctionType, arguments: Sequence[object]) -> None:
    """Raise if a launch has too few or too many arguments.

    Raises
    ------
    ArgumentTypeError
        With the kernel's signature.
    """
    signature = inspect.signature(function, follow_wrapped=False)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ArgumentTypeError(
            f"kernel {function.__name__}{signature}: {error}; got {len(arguments)} arguments"
        ) from None
