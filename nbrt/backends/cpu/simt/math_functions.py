"""Functions of the C library whose result depends on their operands only.

A kernel never reads ``errno``, the only other effect of these functions.
"""

from __future__ import annotations

__all__ = ["INTRINSICS", "PURE_FUNCTIONS"]

_NAMES = (
    *("sqrt", "cbrt", "hypot", "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "erf", "erfc", "tgamma", "pow", "fmod", "remainder"),
    *("floor", "ceil", "trunc", "round", "rint", "nearbyint", "fabs", "copysign", "fma", "ldexp"),
)

PURE_FUNCTIONS = frozenset(name + suffix for name in _NAMES for suffix in ("", "f"))
"""Symbols of the functions; ``lgamma`` is none of them, as it sets ``signgam``."""

INTRINSICS = {"sqrt": "llvm.sqrt.f64", "sqrtf": "llvm.sqrt.f32"}
"""Functions that an instruction computes with the same bits, and LLVM's intrinsics for them."""
