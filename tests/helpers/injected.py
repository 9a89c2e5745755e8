"""Exceptions at each point of a call at which a signal handler could raise."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_interrupted_at"]


def is_interrupted_at(number: int, function: Callable[[], object]) -> bool:
    """Call a function; raise KeyboardInterrupt at one of its points; tell whether it has so many.

    CPython runs signal handlers when a Python function begins and after a C function returns. The
    profiler sees just these.
    """
    passed = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal passed
        if event not in ("call", "c_return"):
            return
        passed += 1
        if passed == number + 1:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return passed > number
