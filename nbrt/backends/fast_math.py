"""The option ``fastmath`` of a kernel: what a compiler may do to floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping, Set

from nbrt.errors import ArgumentError

__all__ = ["FastMath", "fast_math_flags"]

FastMath = bool | Set[str] | Mapping[str, bool]
"""A value of the option, as Numba takes it: all flags, some, or flags and whether to set them."""

_OF_CUDA = frozenset({"reassoc", "contract", "arcp", "afn", "nsz"})
"""LLVM's flags for what CUDA's fast mathematics permits.

Reassociation, contraction to fused multiply-adds, reciprocals in divisions and approximate
functions. NaN and infinities keep their meaning, as on CUDA.
"""

_FLAGS = _OF_CUDA | {"nnan", "ninf", "fast"}


def fast_math_flags(option: object) -> frozenset[str]:
    """Return LLVM's flags for a value of the option; none: operations as written.

    Parameters
    ----------
    option : bool, set of str, mapping of str to bool or None
        True: what CUDA's fast mathematics permits. A set or a mapping: these flags of LLVM.

    Raises
    ------
    ArgumentError
        If it is of another type, or has other flags.
    """
    if option is None or isinstance(option, bool):
        return _OF_CUDA if option else frozenset()
    if isinstance(option, Mapping):
        flags = frozenset(name for name, wanted in option.items() if wanted)
    elif isinstance(option, Set):
        flags = frozenset(option)
    else:
        # Any other value is true or false for numba-cuda.
        return _OF_CUDA if option else frozenset()
    names = set(option)
    if not names <= _FLAGS:
        known = ", ".join(sorted(_FLAGS))
        raise ArgumentError(f"expected fastmath to be a bool or a set of {known}, got {option!r}")
    return flags
