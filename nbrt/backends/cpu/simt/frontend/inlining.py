"""Inlining, in Numba IR, of device functions that ask for it: ``inline="always"``, or a cost model.

An inlined function may return a slice or a local array, as on the CUDA target, because the
caller then holds the array.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler import run_frontend
from numba.core.inline_closurecall import InlineWorker
from numba.core.ir_utils import build_definitions, get_definition, guard, simplify_CFG
from numba.core.transforms import canonicalize_cfg

from nbrt.backends.captures import is_device_function
from nbrt.backends.cpu.simt.frontend.python_semantics import named_object
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

__all__ = ["inline_functions"]

_NEVER = (None, False, "never")


def inline_functions(func_ir: Any, function_of: Callable[[Any], FunctionType]) -> None:
    """Inline the calls of device functions whose option ``inline`` asks for it.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The caller, before its names are resolved; changed in place.
    function_of : callable
        Returns the function to compile for a device function.

    Raises
    ------
    UnsupportedConstructError
        If an inlined function calls itself, or takes ``*args``.
    """
    inliner = _Inliner(func_ir, function_of)
    pending = list(func_ir.blocks)
    while pending:
        pending += inliner.inline_first(pending.pop())
    if inliner.callers:
        for dead in compute_cfg_from_blocks(func_ir.blocks).dead_nodes():
            del func_ir.blocks[dead]
        func_ir.blocks = simplify_CFG(func_ir.blocks)
        func_ir._definitions = build_definitions(func_ir.blocks)


class _Inliner:
    """Inlines calls in one function."""

    def __init__(self, func_ir: Any, function_of: Callable[[Any], FunctionType]) -> None:
        self._ir = func_ir
        self._function_of = function_of
        self._worker = InlineWorker()
        self._known: dict[int, Any] = {}
        self.callers: dict[int, tuple[Any, ...]] = {}
        """By the label of a block: the inlined functions that it belongs to, outermost first."""

    def inline_first(self, label: int) -> list[int]:
        """Inline the first call in a block that is to be; return the labels of the new blocks."""
        block = self._ir.blocks[label]
        for number, statement in enumerate(block.body):
            callee = self._callee(statement)
            if callee is None:
                continue
            callee_ir = self._ir_of(callee)
            option = callee.targetoptions["inline"]
            if callable(option) and not option(statement.value, self._ir, callee_ir):
                continue
            return self._inline(label, number, callee, callee_ir)
        return []

    def _callee(self, statement: Any) -> Any:
        """Return the device function that a statement calls, if it may be inlined."""
        value = statement.value if isinstance(statement, ir.Assign) else None
        if not (isinstance(value, ir.Expr) and value.op == "call"):
            return None
        callee = named_object(self._ir, guard(get_definition, self._ir, value.func))
        if not is_device_function(callee) or callee.targetoptions.get("inline") in _NEVER:
            return None
        return callee

    def _ir_of(self, callee: Any) -> Any:
        if id(callee) not in self._known:
            callee_ir = run_frontend(self._function_of(callee), inline_closures=True)
            callee_ir.blocks = canonicalize_cfg(callee_ir.blocks)
            self._known[id(callee)] = callee_ir
        return self._known[id(callee)]

    def _inline(self, label: int, number: int, callee: Any, callee_ir: Any) -> list[int]:
        block = self._ir.blocks[label]
        loc = block.body[number].loc
        chain = self.callers.get(label, ())
        if any(each is callee for each in chain):
            _refuse(loc, callee, "calls itself")
        function = callee_ir.func_id.func
        if function.__code__.co_flags & inspect.CO_VARARGS:
            _refuse(loc, callee, "takes *args")
        *_, added = self._worker.inline_ir(
            *(self._ir, block, number, callee_ir, function.__code__.co_freevars)
        )
        rest, *inlined = (each for each, _ in added)
        self.callers[rest] = chain
        self.callers.update(dict.fromkeys(inlined, (*chain, callee)))
        return [rest, *inlined]


def _refuse(loc: Any, callee: Any, reason: str) -> None:
    raise UnsupportedConstructError(
        f"{loc.filename}:{loc.line}: {callee.py_func.__qualname__} is to be inlined and {reason}, "
        "which no target compiles; leave out its option inline"
    )
