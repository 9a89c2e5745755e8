"""`CodeOptions`: the options of ``cuda.jit`` that change the native code of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CodeOptions"]

_FAST_MATH = frozenset({"reassoc", "contract", "arcp", "afn", "nsz"})
"""LLVM's flags for what CUDA's fast mathematics permits.

Reassociation, contraction to fused multiply-adds, reciprocals in divisions and approximate
functions. NaN and infinities keep their meaning, as on CUDA.
"""


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """The options of a kernel or device function.

    Attributes
    ----------
    is_debug : bool
        Whether divisions by zero raise: ``debug=True``.
    has_fast_math : bool
        Whether floating-point operations may be reordered and approximated: ``fastmath=True``.
    """

    is_debug: bool = False
    has_fast_math: bool = False

    @classmethod
    def of(cls, function: object) -> CodeOptions:
        """Return the options of a dispatcher, and the defaults for a plain function."""
        options = getattr(function, "targetoptions", {})
        return cls(bool(options.get("debug")), bool(options.get("fastmath")))

    def of_target(self) -> dict[str, Any]:
        """Return the same as options of Numba's CPU target."""
        options: dict[str, Any] = {"error_model": "python" if self.is_debug else "numpy"}
        if self.has_fast_math:
            options["fastmath"] = set(_FAST_MATH)
        return options
