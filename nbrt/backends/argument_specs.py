"""Specifications of kernel arguments: signatures, types, examples and shapes with a dtype.

Each becomes an example, a host value of the type that a kernel is compiled for. Backends take
examples, since the types of their compilers differ.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.typing import HostArray

__all__ = ["argument_lists", "example_of"]

_TYPE = re.compile(r"(?P<element>[a-z_]+\d*)(?:\[(?P<axes>[:1,\s]+)\])?")

_NODES = (
    ast.Expression, ast.Name, ast.Load, ast.Subscript, ast.Slice, ast.Tuple, ast.Call, ast.keyword,
    ast.Constant,
)  # fmt: skip
"""The syntax of types: names, axes, and calls such as ``UniTuple(int64, 3)``."""


def argument_lists(specs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the examples of each list of arguments that specifications describe.

    Parameters
    ----------
    specs : sequence
        Signatures, each of which is a list of arguments: texts such as ``"void(float32[::1],
        int32)"``, signatures of Numba, tuples of Numba types. Else the arguments of one list, as
        for `example_of`.

    Raises
    ------
    ArgumentError
        If a signature or the name of a type is not valid, or signatures are mixed with arguments.
    """
    signatures = [_signature_of(spec) for spec in specs]
    if all(signature is None for signature in signatures):
        return [tuple(map(example_of, specs))]
    for position, signature in enumerate(signatures):
        if signature is None:
            raise ArgumentError(
                f"expected signatures only, or the arguments of one launch, got both: "
                f"{specs[position]!r} at position {position} is no signature"
            )
    return [tuple(map(example_of, signature or ())) for signature in signatures]


def example_of(argument: Any) -> Any:
    """Return a host value of an argument's type, without its elements.

    Parameters
    ----------
    argument : object
        An array of any library or device, a number, a tuple; an object with the attributes `shape`
        and `dtype`; a Numba type; the name of a type, such as ``"int64[::1]"``.

    Returns
    -------
    example : object
        A small array of the same dtype, number of axes, memory order and access. Other objects are
        returned as they are: the backend refuses those that no kernel takes.

    Raises
    ------
    ArgumentError
        If the name of a type is unknown, or no argument has the type.
    """
    if isinstance(argument, str):
        return _of_text(argument)
    if isinstance(argument, np.ndarray):
        return _like(argument)
    if isinstance(argument, tuple):
        members = map(example_of, argument)
        return type(argument)(*members) if hasattr(argument, "_fields") else tuple(members)
    if isinstance(argument, (np.generic, int, float, complex)):
        return argument
    if hasattr(argument, "__cuda_array_interface__"):
        return _of_interface(argument.__cuda_array_interface__)
    if _is_numba_type(argument):
        return _of_numba_type(argument)
    if hasattr(argument, "shape") and hasattr(argument, "dtype"):
        return _of_shape(argument)
    return argument


def _signature_of(spec: Any) -> tuple[Any, ...] | None:
    """Return the types of the arguments of a signature; None for other specifications."""
    found = _parsed(spec) if isinstance(spec, str) and "(" in spec else spec
    if isinstance(found, tuple) and found and all(map(_is_numba_type, found)):
        return found
    types, returned = getattr(found, "args", None), getattr(found, "return_type", None)
    if not isinstance(types, tuple) or returned is None:
        is_empty = isinstance(spec, str) and isinstance(found, tuple) and not found
        return () if is_empty else None
    if str(returned) not in ("none", "void"):
        raise ArgumentError(
            f"expected a signature of a kernel, which returns nothing, got {spec!r}; write "
            f"void({', '.join(map(str, types))})"
        )
    return types


def _is_numba_type(value: Any) -> bool:
    types = sys.modules.get("numba.core.types")  # a program with a type has imported it
    return types is not None and isinstance(value, types.Type)


def _parsed(text: str) -> Any:
    """Return the Numba type or signature that a text stands for."""
    from numba.core import types

    try:
        tree = ast.parse(text.strip(), mode="eval")
        if not all(isinstance(node, _NODES) for node in ast.walk(tree)):
            raise ValueError(text)
        return eval(compile(tree, "<signature>", "eval"), {"__builtins__": {}}, vars(types))
    except Exception as error:
        detail = "" if str(error) == text else f": {error}"
        raise ArgumentError(
            f"expected a signature such as 'void(float32[::1], int32)', an argument, or the name "
            f"of its type, such as 'float32', 'int64[::1]' or 'float32[:, ::1]', got "
            f"{text!r}{detail}"
        ) from error


def _of_text(name: str) -> Any:
    match = _TYPE.fullmatch(name.strip())
    try:
        dtype = np.dtype(match["element"]) if match else None
    except TypeError:
        dtype = None
    if match is None or dtype is None or dtype.kind in "OSUV":
        kind = _parsed(name)
        if not _is_numba_type(kind):
            raise ArgumentError(
                f"expected an argument or the name of its type, such as 'float32', 'int64[::1]' "
                f"or 'float32[:, ::1]', got {name!r}"
            )
        return _of_numba_type(kind)
    if match["axes"] is None:
        return dtype.type(0)
    axes = [axis.strip() for axis in match["axes"].split(",")]
    if any(axis not in (":", "::1") for axis in axes) or "::1" in axes[1:-1]:
        raise ArgumentError(f"expected axes such as [:], [::1], [:, ::1] or [::1, :], got {name!r}")
    layout = "C" if axes[-1] == "::1" else "F" if axes[0] == "::1" else "A"
    return _array(dtype, len(axes), layout)


def _of_numba_type(kind: Any) -> Any:
    from numba.core import errors, types
    from numba.core.typing.typeof import Purpose, typeof
    from numba.np.numpy_support import as_dtype

    example: Any = None
    if isinstance(kind, types.Array):
        return _array(as_dtype(kind.dtype), kind.ndim, kind.layout, is_writable=kind.mutable)
    if isinstance(kind, types.BaseTuple):
        members = tuple(map(_of_numba_type, kind.types))
        example = kind.instance_class(*members) if hasattr(kind, "fields") else members
    elif isinstance(kind, types.EnumMember):
        example = next(iter(kind.instance_class))
    elif not isinstance(kind, types.NoneType):
        try:
            example = np.zeros((), as_dtype(kind))[()]
        except (errors.NumbaError, TypeError):
            example = object
    if example is object or typeof(example, Purpose.argument) != kind:
        raise ArgumentError(
            f"expected the type of a kernel argument, got {kind}; accepted are arrays, numbers, "
            f"records, dates, enumerations and tuples of them"
        )
    return example


def _of_interface(layout: dict[str, Any]) -> HostArray:
    shape, strides, dtype = layout["shape"], layout.get("strides"), np.dtype(layout["typestr"])
    if dtype.kind == "V":
        dtype = np.dtype(layout["descr"])
    example = _like(np.lib.stride_tricks.as_strided(np.empty(0, dtype), shape, strides))
    example.flags.writeable = not layout["data"][1]
    return example


def _of_shape(described: Any) -> Any:
    """Return an example for an object with a shape and a dtype: in C order unless it says more."""
    try:
        dtype, ndim = np.dtype(described.dtype), len(described.shape)
    except TypeError:  # of another library: the backend takes it, or refuses it
        return _like(np.from_dlpack(described)) if hasattr(described, "__dlpack__") else described
    flags: Any = getattr(described, "flags", None)
    layout = "C"
    if hasattr(flags, "c_contiguous") and not flags.c_contiguous:
        layout = "F" if flags.f_contiguous else "A"
    return _array(dtype, ndim, layout, is_writable=getattr(flags, "writeable", True))


def _like(array: HostArray) -> HostArray:
    flags = array.flags
    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return _array(array.dtype, array.ndim, layout, is_writable=flags.writeable)


def _array(dtype: np.dtype[Any], ndim: int, layout: str, *, is_writable: bool = True) -> HostArray:
    """Return a small array with a memory order: C, F, or A for neither."""
    # Only the outer axes have several elements, so that many axes need no memory.
    sizes = (2, *(1,) * (ndim - 2), 2) if ndim > 1 else (2,) * ndim
    if layout == "A":
        array = np.zeros(tuple(2 * size for size in sizes), dtype)[(slice(None, None, 2),) * ndim]
    else:
        array = np.zeros(sizes, dtype, order="F" if layout == "F" else "C")
    array.flags.writeable = is_writable
    return array
