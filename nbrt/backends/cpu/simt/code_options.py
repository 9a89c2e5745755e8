"""`CodeOptions`: the options of ``cuda.jit`` that change the native code of a function."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from nbrt.backends.fast_math import fast_math_flags

__all__ = ["CodeOptions", "fast_math_of_caller"]


def fast_math_of_caller() -> tuple[str, ...]:
    """Return the flags of fast mathematics of the function that compiles, or none.

    Numba compiles a called function that has no flags with those of the caller, and later callers
    get the same code. So there must be one dispatcher of the function for each set of flags.
    """
    from numba.core.targetconfig import ConfigStack  # programs with compiled code do not import it

    caller = ConfigStack.top_or_none()
    return () if caller is None else tuple(sorted(caller.fastmath.flags))


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """The options of a kernel or device function.

    Attributes
    ----------
    is_debug : bool
        Whether divisions by zero raise: ``debug=True``.
    fast_math : tuple of str
        LLVM's flags for reordered and approximate floating-point operations: ``fastmath``.
    is_silent : bool
        Whether an exception ends its thread and is not reported, as in CUDA's kernels without
        ``debug=True``.
    may_allocate : bool
        Whether arrays, lists and strings may be made: numba-cuda's ``NUMBA_CUDA_ENABLE_NRT=1``.
    """

    is_debug: bool = False
    fast_math: tuple[str, ...] = ()
    is_silent: bool = False
    may_allocate: bool = False

    @classmethod
    def of(cls, function: object) -> CodeOptions:
        """Return the options of a dispatcher, and the defaults for a plain function."""
        options = getattr(function, "targetoptions", {})
        return cls(
            is_debug=bool(options.get("debug")),
            fast_math=tuple(sorted(fast_math_flags(options.get("fastmath")))),
            is_silent=bool(getattr(function, "has_silent_exceptions", False)),
            may_allocate=bool(getattr(_settings(), "CUDA_ENABLE_NRT", False)),
        )

    @classmethod
    def of_callee(cls, function: object) -> CodeOptions:
        """Return the options of a dispatcher that the function that compiles calls."""
        options = cls.of(function)
        return options if options.fast_math else replace(options, fast_math=fast_math_of_caller())

    def of_target(self) -> dict[str, Any]:
        """Return the same as options of Numba's CPU target."""
        options: dict[str, Any] = {"error_model": "python" if self.is_debug else "numpy"}
        if self.may_allocate:
            options["_nrt"] = True
        if self.fast_math:
            options["fastmath"] = set(self.fast_math)
        return options


def _settings() -> object:
    """Return the settings of numba-cuda, or None if the program has not imported them."""
    return sys.modules.get("numba.cuda.core.config")
