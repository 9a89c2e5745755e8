"""Constructs that Numba compiles for a CPU and numba-cuda does not compile for a GPU.

A kernel that uses one would work on a CPU device and fail on the first CUDA device, so both refuse
it. ``tests/kernels/test_same_language.py`` enumerates the language on both compilers and holds this
file complete.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import ir, types
from numba.core.unsafe.eh import mark_try_block

from nbrt.backends.cpu.simt.frontend.named_objects import named_object
from nbrt.backends.cpu.simt.frontend.stateful_random import refusal_of_random
from nbrt.backends.cpu.simt.thread_context import SimtContextType
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["refuse_names", "refuse_types"]

_LOOP = "write a loop over the elements"
_STEPS: dict[Any, tuple[str, str]] = {
    **{
        getattr(np, name): (f"np.{name}", step)
        for name, step in {
            "around": "use round(x, ndigits) or np.rint(x)",
            "dot": _LOOP,
            "nanargmax": _LOOP,
            "nanargmin": _LOOP,
            "vdot": _LOOP,
            "round": "use round(x, ndigits) or np.rint(x)",
        }.items()
    },
    filter: ("filter", "write a loop with an if"),
    map: ("map", "write a loop that calls the function"),
}
"""Function -> its name and a spelling that compiles on both targets."""


def refuse_names(func_ir: Any) -> None:
    """Raise if a function uses a name, an operator or a statement that CUDA does not have.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function, before its types are inferred.

    Raises
    ------
    UnsupportedConstructError
        Names the construct, its line and a spelling that works on both targets.
    """
    for statement in _assignments(func_ir):
        value = statement.value
        if isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop"):
            if value.fn in (operator.matmul, operator.imatmul):
                _refuse(statement.loc, "the operator @", _LOOP)
            continue
        found = named_object(func_ir, value)
        if found is None:
            continue
        if found is mark_try_block:
            _refuse(statement.loc, "try", "test for the condition with an if")
        reason = refusal_of_random(found)
        if reason is not None:
            raise UnsupportedConstructError(f"{_where(statement.loc)}: {reason}")
        if callable(found) and _is_hashable(found) and found in _STEPS:
            _refuse(statement.loc, *_STEPS[found])


def _is_hashable(value: Any) -> bool:
    return getattr(value, "__hash__", None) is not None


def refuse_types(state: Any) -> None:
    """Raise if a function uses a construct that CUDA does not have for these types.

    Parameters
    ----------
    state : numba.core.compiler.StateDict
        The compiler's state after type inference.

    Raises
    ------
    UnsupportedConstructError
        Names the construct, its line and a spelling that works on both targets.
    """
    typemap = state.typemap
    for block in state.func_ir.blocks.values():
        for statement in block.find_insts(ir.Print):
            if any(isinstance(typemap[value.name], types.Array) for value in statement.args):
                _refuse(statement.loc, "print of an array", "print its elements")
    for statement in _assignments(state.func_ir):
        value = statement.value
        if not isinstance(value, ir.Expr):
            continue
        if value.op in ("getitem", "static_getitem"):
            _refuse_new_axis(value, typemap)
        elif value.op == "call":
            _refuse_call(value, state)


def _refuse_new_axis(value: Any, typemap: Any) -> None:
    index = value.index_var if value.op == "static_getitem" else value.index
    of_array = isinstance(typemap[value.value.name], types.Array)
    if of_array and index is not None and typemap[index.name] == types.none:
        _refuse(value.loc, "x[None] of an array", "use x[None, :], or x.reshape")


def _refuse_call(value: Any, state: Any) -> None:
    callee = state.typemap[value.func.name]
    if isinstance(callee, types.BoundFunction) and callee.key[0] == (types.Array, "dot"):
        _refuse(value.loc, "the method dot", _LOOP)
    if isinstance(callee, types.RecursiveCall):
        _refuse_recursion(value, callee.dispatcher_type.dispatcher.py_func, state)


def _refuse_recursion(value: Any, function: Any, state: Any) -> None:
    given = state.calltypes[value].args
    caller = state.func_id.func
    if function is caller and tuple(given) == tuple(state.args):
        return
    where = _where(value.loc)
    if function is not caller:
        raise UnsupportedConstructError(
            f"{where}: {function.__qualname__} and {caller.__qualname__} call each other, which "
            f"neither target links; write them as one function or as a loop"
        )
    own, passed = (
        ", ".join(str(kind) for kind in kinds if not isinstance(kind, SimtContextType))
        for kinds in (state.args, given)
    )
    raise UnsupportedConstructError(
        f"{where}: {function.__qualname__} was called with ({own}) and calls itself with "
        f"({passed}), which neither target links: a recursion keeps its types; call it with values "
        f"of these types from the start, such as np.int64(10) for a literal, or write a loop"
    )


def _assignments(func_ir: Any) -> Iterator[Any]:
    for block in func_ir.blocks.values():
        yield from block.find_insts(ir.Assign)


def _where(loc: Any) -> str:
    return f"{loc.filename}:{loc.line}"


def _refuse(loc: Any, construct: str, step: str) -> None:
    raise UnsupportedConstructError(
        f"{_where(loc)}: {construct} does not compile for CUDA, so no kernel may use it; {step}"
    )
