"""Explicit signatures of kernels: which one a launch uses, and the conversion of its arguments."""

from __future__ import annotations

import ctypes
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numba._dispatcher import compute_fingerprint
from numba.core import types
from numba.core.typeconv.rules import default_type_manager
from numba.np.numpy_support import as_dtype

from nbrt.backends.cpu.simt.prepared import kernel_types
from nbrt.backends.cpu.simt.runtime.arguments import argument_types
from nbrt.backends.cpu.simt.runtime.pointers import PointerArgument
from nbrt.backends.cpu.simt.target import simt_target
from nbrt.backends.declared_signatures import declared_signatures
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

    Convert = Callable[[Any], Any]

__all__ = ["DeclaredTypes", "declared_types"]

_MAX_KNOWN = 256
_PARTS = {types.complex64: ctypes.c_float, types.complex128: ctypes.c_double}
_REALS = {types.float32: ctypes.c_float, types.float64: ctypes.c_double}
_WHOLE = (types.Integer, types.Boolean)


def declared_types(source: object, function: FunctionType) -> DeclaredTypes | None:
    """Return the types that a kernel's signatures declare; None if it has no signatures.

    Parameters
    ----------
    source : object
        The kernel as the program has it, such as a dispatcher.
    function : function
        Its Python function.
    """
    signatures = [args for args, _ in declared_signatures(source)]
    if not signatures:
        return None
    is_single = getattr(source, "specialized", len(signatures) == 1)
    return DeclaredTypes(function, signatures, is_single=is_single)


class DeclaredTypes:
    """The argument types of a kernel's explicit signatures.

    Parameters
    ----------
    function : function
        The kernel.
    signatures : list of tuple of numba types
        The argument types of each signature.
    is_single : bool
        Whether the only signature was not given in a list. As with numba-cuda, arguments are then
        converted to its types; otherwise the signature is selected whose types fit best.
    """

    def __init__(
        self, function: FunctionType, signatures: list[tuple[Any, ...]], *, is_single: bool
    ) -> None:
        self._function = function
        self._signatures = signatures
        self._is_single = is_single
        self._known: dict[bytes, tuple[tuple[Any, ...], tuple[Convert | None, ...]]] = {}

    def converted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a launch, with the types of the signature that fits best.

        Raises
        ------
        ArgumentTypeError
            If no signature fits, or several equally well.
        """
        try:
            fingerprint = compute_fingerprint(args)
        except NotImplementedError:
            fingerprint = b""
        known = self._known.get(fingerprint)
        if known is None:
            known = self._conversions(args)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            if fingerprint:
                self._known[fingerprint] = known
        declared, conversions = known
        values = []
        for position, convert in enumerate(conversions):
            value = args[position]
            try:
                values.append(value if convert is None else convert(value))
            except (TypeError, ValueError, AttributeError) as error:
                if isinstance(error, ArgumentTypeError):
                    raise
                raise ArgumentTypeError(
                    f"{self._place(position)} is declared as {declared[position]}, got {value!r} "
                    f"of type {type(value).__name__}: {error}"
                ) from error
        return tuple(values)

    def _conversions(
        self, args: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Convert | None, ...]]:
        found = kernel_types(argument_types(self._function, args))
        declared = self._signatures[0] if self._is_single else self._select(found)
        if len(declared) != len(found):
            raise ArgumentTypeError(
                f"kernel {self._function.__name__!r}: its signature declares {len(declared)} "
                f"arguments, got {len(found)}"
            )
        pairs = zip(found, declared, strict=True)
        return declared, tuple(
            self._conversion(position, given, typ) for position, (given, typ) in enumerate(pairs)
        )

    def _place(self, position: int) -> str:
        return f"kernel {self._function.__name__!r}: argument {position}"

    # -- the choice of a signature ---------------------------------------------------------------

    def _select(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        candidates = [each for each in self._signatures if len(each) == len(found)]
        if found in candidates:
            return found
        context = simt_target.typing_context
        for each in candidates:
            context.install_possible_conversions(found, each)
        fitting = [each for each in candidates if _can_convert(found, each)]
        if not fitting:
            known = f"kernel {self._function.__name__!r} has\n{_listed(self._signatures)}"
            names = ", ".join(map(str, found))
            raise ArgumentTypeError(f"No matching definition for argument type(s) {names}; {known}")
        try:
            position = default_type_manager.select_overload(
                found, fitting, allow_unsafe=True, exact_match_required=False
            )
        except TypeError:
            raise ArgumentTypeError(
                f"Ambiguous overloading for {self._function} {_shown(found)}:\n{_listed(fitting)}"
            ) from None
        selected: tuple[Any, ...] = fitting[position]
        return selected

    # -- the conversion of one argument ----------------------------------------------------------

    def _conversion(self, position: int, found: Any, declared: Any) -> Convert | None:
        """Return the conversion of an argument; None if it needs none."""
        if isinstance(declared, types.Array):
            return self._array_conversion(position, found, declared)
        if found == declared:
            return None
        if isinstance(declared, types.BaseTuple):
            if isinstance(found, types.BaseTuple) and len(found) == len(declared):
                pairs = zip(found, declared, strict=True)
                return _of_tuple([self._conversion(position, a, b) for a, b in pairs])
        elif isinstance(declared, types.CPointer):
            return _to_pointer(declared)
        elif isinstance(declared, types.NPDatetime | types.NPTimedelta):
            if type(found) is type(declared):
                dtype = as_dtype(declared)
                return lambda value: value.astype(dtype)
        else:
            convert = _scalar_conversion(declared)
            if convert is not None:
                return convert
        raise ArgumentTypeError(f"{self._place(position)} is declared as {declared}, got {found}")

    def _array_conversion(self, position: int, found: Any, declared: Any) -> Convert | None:
        if (
            isinstance(found, types.Array)
            and found.ndim == declared.ndim
            and declared.layout in ("A", found.layout)
        ):
            if found.dtype == declared.dtype:
                return None
            if _have_same_bits(found.dtype, declared.dtype):
                dtype = as_dtype(declared.dtype)
                return lambda value: value.view(dtype)
        raise ArgumentTypeError(f"{self._place(position)} is declared as {declared}, got {found}")


def _have_same_bits(first: Any, second: Any) -> bool:
    """Return whether elements are integers or booleans of one size: CUDA passes the address."""
    if not (isinstance(first, _WHOLE) and isinstance(second, _WHOLE)):
        return False
    return bool(as_dtype(first).itemsize == as_dtype(second).itemsize)


def _can_convert(found: tuple[Any, ...], declared: tuple[Any, ...]) -> bool:
    return all(
        given == typ or default_type_manager.check_compatible(given, typ) is not None
        for given, typ in zip(found, declared, strict=True)
    )


def _shown(signature: tuple[Any, ...]) -> str:
    return f"({', '.join(map(repr, signature))})"


def _listed(signatures: list[tuple[Any, ...]]) -> str:
    return "\n".join(f"{_shown(each)} -> none" for each in signatures)


def _of_tuple(conversions: list[Convert | None]) -> Convert:
    def convert(value: Any) -> Any:
        pairs = zip(conversions, value, strict=True)
        items = [item if each is None else each(item) for each, item in pairs]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)

    return convert


def _to_pointer(declared: Any) -> Convert:
    def convert(value: Any) -> PointerArgument:
        address = operator.index(value)
        if not 0 <= address < 2**64:
            message = "expected an address"
            raise ValueError(message)
        return PointerArgument(address, declared)

    return convert


def _scalar_conversion(declared: Any) -> Convert | None:
    """Return the conversion of a number by its C type, as numba-cuda does: integers wrap around."""
    if isinstance(declared, types.Boolean):
        return bool
    if declared == types.float16:
        return np.float16
    if isinstance(declared, types.Integer):
        return _through_c(declared, getattr(ctypes, f"c_{declared}"))
    if declared in _REALS:
        return _through_c(declared, _REALS[declared])
    if declared in _PARTS:
        part, scalar = _PARTS[declared], as_dtype(declared).type
        return lambda value: scalar(complex(part(value.real).value, part(value.imag).value))
    return None


def _through_c(declared: Any, c_type: Any) -> Convert:
    scalar = as_dtype(declared).type
    return lambda value: scalar(c_type(value).value)
