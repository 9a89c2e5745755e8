"""The compiled device functions of numba-cuda, of which it keeps one set only.

Their code depends on captured values and on the compute capability. This module keeps a set for
each capability, and drops the sets of earlier values.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbrt.backends.declared_signatures import declared_signatures

if TYPE_CHECKING:
    from nbrt.backends.captures import Captures
    from nbrt.backends.cuda.kernel_images import Target

__all__ = ["activate"]

_CUDA_VERSION = "_CUDATypingContext__dispatcher"
"""The attribute of a CPU dispatcher that holds numba-cuda's dispatcher of the same function."""


@dataclass(slots=True)
class _Code:
    """The code of a device function for one target, and the values that it contains."""

    values: Captures
    arrays: bytes
    overloads: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    version: Any = None

    def is_of(self, values: Captures, arrays: bytes) -> bool:
        return self.arrays == arrays and self.values.agrees(values)


_codes: weakref.WeakKeyDictionary[Any, dict[Target, _Code]] = weakref.WeakKeyDictionary()


def activate(captures: Captures, target: Target) -> None:
    """Let numba-cuda find the code of a kernel's device functions for its values and a target.

    The caller holds numba-cuda's compiler lock, and compiles for the target.
    """
    from numba.cuda.dispatcher import CUDADispatcher

    declared = []
    for callee in captures.device_functions:
        values = captures.of(callee.py_func)
        arrays = values.array_digest()
        codes = _codes.setdefault(callee, {})
        code = codes.get(target)
        if code is None or not code.is_of(values, arrays):
            code = codes[target] = _Code(values, arrays)
        if not isinstance(callee, CUDADispatcher):
            _activate_version(callee, code)
            continue
        if not code.overloads and (signatures := declared_signatures(callee)):
            declared.append((callee, signatures, callee.overloads))
        callee.overloads = code.overloads
    for callee, signatures, before in declared:
        try:
            for args, result in signatures:
                callee.compile_device(args, result)
        except BaseException:
            _codes.pop(callee)
            callee.overloads = before
            raise


def _activate_version(callee: Any, code: _Code) -> None:
    """Set numba-cuda's version of a CPU function, as ``CUDATypingContext`` would make it."""
    from numba.core.dispatcher import Dispatcher
    from numba.cuda.dispatcher import CUDADispatcher

    if not isinstance(callee, Dispatcher) or not callee._can_compile:  # numba-cuda refuses it
        return
    if code.version is None:
        options = {"debug": False, "opt": True, **callee.targetoptions, "device": True}
        code.version = CUDADispatcher(callee.py_func, options)
    setattr(callee, _CUDA_VERSION, code.version)
