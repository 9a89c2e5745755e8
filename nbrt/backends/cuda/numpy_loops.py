"""Functions of NumPy and `math` that numba-cuda does not compile.

numba-cuda 0.30.4 shares its typing of universal functions with Numba but has code for half of
them: ``np.sin(x)`` compiles, ``np.sqrt(x)`` fails with a `KeyError` in its table of loops. This
module completes the table and changes no entry of numba-cuda, so a kernel that compiles without
nbrt computes the same with it. It also adds reductions and ``math.gcd``, which Numba's CPU target
has.
"""

from __future__ import annotations

import cmath
import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.numpy_functions import REDUCTIONS, UFUNCS, gcd

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_numpy_overloads", "complete_numpy_loops", "formulas"]

_KINDS: dict[str, Any] = {"f": np.float32, "d": np.float64}
_CODES = {"signed": "bhilq", "unsigned": "BHILQ", "real": "fd"}
"""Kind -> NumPy's type codes."""

_MAX_EXPONENT = 1 << 16
"""A larger exponent of ``ldexp`` gives infinity or zero in every format."""

_MATH = {
    np.exp: math.exp,
    np.exp2: math.exp2,
    np.expm1: math.expm1,
    np.fabs: math.fabs,
    np.log1p: math.log1p,
    np.sqrt: math.sqrt,
}


@cache
def complete_numpy_loops() -> None:
    """Add the missing loops to numba-cuda's table of universal functions."""
    from numba.cuda.np import ufunc_db as generic
    from numba.cuda.ufuncs import ufunc_db

    table = ufunc_db()
    own = _own_loops()
    for ufunc in generic.get_ufuncs():
        loops = table.setdefault(ufunc, {})
        for signature, lower in {**generic.get_ufunc_info(ufunc), **own.get(ufunc, {})}.items():
            loops.setdefault(signature, lower)


@cache
def add_numpy_overloads() -> None:
    """Register the reductions and ``math.gcd`` with numba-cuda's extension API."""
    from numba.cuda.extending import overload

    for function, code in REDUCTIONS.items():
        if function is not np.count_nonzero:  # numba-cuda has code for it
            overload(function, target="cuda")(_of_array(code))
    overload(math.gcd, target="cuda")(_gcd)


def _of_array(code: Callable[[Any], Any]) -> Callable[[Any], Any]:
    from numba.cuda import types

    numbers = (types.Integer, types.Float, types.Boolean)

    def implement(a: Any) -> Callable[[Any], Any] | None:
        known = isinstance(a, types.Array) and isinstance(a.dtype, numbers)
        return code if known else None

    return implement


def _gcd(x: Any, y: Any) -> Callable[..., Any] | None:
    from numba.cuda import types

    whole = (types.Integer, types.Boolean)
    return gcd if isinstance(x, whole) and isinstance(y, whole) else None


def formulas() -> dict[Any, dict[str, Callable[..., Any]]]:
    """Return the loops that this module defines as scalar functions.

    Returns
    -------
    dict
        Universal function -> NumPy's code of a loop, such as ``"ff->f"`` -> scalar function.
    """
    real: dict[Any, dict[str, Callable[..., Any]]] = {
        np.spacing: {f"{code}->{code}": _spacing(kind) for code, kind in _KINDS.items()},
        np.logaddexp: {f"{code * 2}->{code}": _logaddexp(kind) for code, kind in _KINDS.items()},
        np.logaddexp2: {f"{code * 2}->{code}": _logaddexp2(kind) for code, kind in _KINDS.items()},
        np.ldexp: {f"{code}{exponent}->{code}": _ldexp for code in _KINDS for exponent in "il"},
        np.remainder: {f"{code * 2}->{code}": _remainder for code in _KINDS},
        np.floor_divide: {f"{code * 2}->{code}": _floor_divide for code in _KINDS},
    }
    unary = {np.rint: _complex_rint, np.expm1: _complex_expm1, np.log1p: _complex_log1p}
    binary = {np.power: _complex_power, np.float_power: _complex_power}
    return {
        **real,
        **{
            ufunc: {f"{code}->{code}": function for code in "FD"}
            for ufunc, function in unary.items()
        },
        **{
            ufunc: {f"{code * 2}->{code}": function for code in "FD"}
            for ufunc, function in binary.items()
        },
    }


def _own_loops() -> dict[Any, dict[str, Any]]:
    """Return the loops of this module; numba's generic code of some calls a host library."""
    from numba.cuda import libdevice

    loops: dict[Any, dict[str, Any]] = {
        **{ufunc: _reals(_call(function)) for ufunc, function in _MATH.items()},
        np.nextafter: {f"{code * 2}->{code}": _call(math.nextafter) for code in _KINDS},
        np.fmod: {f"{code * 2}->{code}": _call(math.fmod) for code in _KINDS},
        np.cbrt: {"f->f": _call(libdevice.cbrtf), "d->d": _call(libdevice.cbrt)},
        np.rint: {"f->f": _call(libdevice.rintf), "d->d": _call(libdevice.rint)},
    }
    for ufunc, codes in UFUNCS.items():
        for kind, code in codes.items():
            signatures = (f"{c * ufunc.nin}->{c * ufunc.nout}" for c in _CODES[kind])
            loops.setdefault(ufunc, {}).update(dict.fromkeys(signatures, _compile(code)))
    for ufunc, functions in formulas().items():
        loops.setdefault(ufunc, {}).update(
            {signature: _compile(function) for signature, function in functions.items()}
        )
    loops[np.divmod].update({f"{code * 2}->{code * 2}": _compile(_divmod) for code in _KINDS})
    return loops


def _reals(lower: Any) -> dict[str, Any]:
    return {f"{code}->{code}": lower for code in _KINDS}


def _call(function: Callable[..., Any]) -> Any:
    """Return the lowering of a loop to one function of numba-cuda."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_function(function, sig)(builder, args)

    return lower


def _compile(function: Callable[..., Any]) -> Any:
    """Return the lowering of a loop to a scalar function that numba-cuda compiles."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.compile_internal(builder, function, sig, args)

    return lower


def _spacing(kind: Any) -> Callable[..., Any]:
    infinity = kind(np.inf)

    def spacing(x: Any) -> Any:
        return math.nextafter(x, math.copysign(infinity, x)) - x

    return spacing


def _logaddexp(kind: Any) -> Callable[..., Any]:
    of_two = kind(np.log(2.0))

    def logaddexp(x: Any, y: Any) -> Any:
        if x == y:  # also two infinities, whose difference is a NaN
            return x + of_two
        difference = x - y
        if difference > 0:
            return x + math.log1p(math.exp(-difference))
        return y + math.log1p(math.exp(difference))

    return logaddexp


def _logaddexp2(kind: Any) -> Callable[..., Any]:
    one, per_natural = kind(1.0), kind(1.0 / np.log(2.0))

    def logaddexp2(x: Any, y: Any) -> Any:
        if x == y:
            return x + one
        difference = x - y
        if difference > 0:
            return x + per_natural * math.log1p(math.exp2(-difference))
        return y + per_natural * math.log1p(math.exp2(difference))

    return logaddexp2


def _ldexp(x: Any, exponent: Any) -> Any:
    # As an int32, the only exponent that numba-cuda has code for.
    limited: Any = np.int32(max(min(exponent, _MAX_EXPONENT), -_MAX_EXPONENT))
    return math.ldexp(x, limited)


# The operators % and // of numba-cuda compute x - y * trunc(x / y), which is a NaN for an infinite
# y and inexact for large quotients; libdevice's fmod is exact, as NumPy's functions are.
def _remainder(x: Any, y: Any) -> Any:
    rest = math.fmod(x, y)
    if rest == 0:
        return math.copysign(rest, y)
    return rest + y if (rest < 0) != (y < 0) else rest


def _floor_divide(x: Any, y: Any) -> Any:
    if y == 0:
        return x / y
    rest = math.fmod(x, y)
    quotient = (x - rest) / y
    if rest != 0 and (rest < 0) != (y < 0):
        quotient -= 1
    if quotient == 0:
        return math.copysign(quotient, x / y)
    floor = math.floor(quotient)
    return floor + 1 if quotient - floor > 0.5 else floor


def _divmod(x: Any, y: Any) -> Any:
    return np.floor_divide(x, y), np.remainder(x, y)


def _complex_rint(z: Any) -> Any:
    return complex(np.rint(z.real), np.rint(z.imag))


def _complex_expm1(z: Any) -> Any:
    half = math.sin(z.imag / 2)
    real = math.expm1(z.real) * math.cos(z.imag) - 2 * half * half
    return complex(real, math.exp(z.real) * math.sin(z.imag))


def _complex_log1p(z: Any) -> Any:
    return complex(math.log(math.hypot(z.real + 1, z.imag)), math.atan2(z.imag, z.real + 1))


def _complex_power(base: Any, exponent: Any) -> Any:
    if exponent == 0:
        return complex(1.0, 0.0)
    if base == 0:
        if exponent.imag == 0 and exponent.real > 0:
            return complex(0.0, 0.0)
        return complex(math.nan, math.nan)
    return cmath.exp(exponent * cmath.log(base))
