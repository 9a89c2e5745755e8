"""Python's and NumPy's functions in kernels, with the meaning that the CUDA target gives them.

``max``, ``math.floor`` and others are replaced where numba-cuda computes something else than Numba.
Constructs that numba-cuda does not compile are refused: a kernel that uses one would run on a CPU
device and fail on the first CUDA device. ``tests/kernels/test_same_language.py`` enumerates the
language on both compilers and keeps the list complete.
"""

from __future__ import annotations

import operator
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import ir, types
from numba.core.ir_utils import build_definitions, get_definition, guard
from numba.core.unsafe.eh import mark_try_block

from nbrt.backends.cpu.simt.builtins.python import PYTHON
from nbrt.backends.cpu.simt.builtins.ufuncs import REDUCTIONS, UFUNCS
from nbrt.backends.cpu.simt.target import extensions
from nbrt.backends.cpu.simt.thread_context import SimtContextType
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "REPLACEMENTS",
    "adapt_python_calls",
    "named_object",
    "refusal_of_random",
    "refuse_names",
    "refuse_types",
]

REPLACEMENTS = PYTHON | REDUCTIONS | UFUNCS
extensions.stand_for(REPLACEMENTS)
_KINDS: tuple[type[Any], ...] = tuple(
    {BuiltinFunctionType, *map(type, REDUCTIONS), *map(type, UFUNCS)}
)


def adapt_python_calls(func_ir: Any) -> None:
    """Replace Python's functions by those of the CUDA target where the two differ.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function, rewritten in place.
    """
    for block in func_ir.blocks.values():
        for statement in block.find_insts(ir.Assign):
            replacement = _replacement(func_ir, statement.value)
            if replacement is not None:
                statement.value = ir.Global(replacement.__name__, replacement, statement.loc)
    func_ir._definitions = build_definitions(func_ir.blocks)


def _replacement(func_ir: Any, value: Any) -> Callable[..., Any] | None:
    target = named_object(func_ir, value)
    return REPLACEMENTS.get(target) if isinstance(target, _KINDS) else None


def named_object(func_ir: Any, value: Any) -> Any:
    """Return the object that a name in the IR refers to, such as ``np.sqrt``.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function.
    value : object
        The right-hand side of an assignment.

    Returns
    -------
    object
        None if the value is not a name, or the attribute of something other than a module.
    """
    return guard(_found, func_ir, value)


def _found(func_ir: Any, value: Any) -> Any:
    """Raise Numba's GuardException where a variable has more than one definition."""
    if isinstance(value, ir.Global | ir.FreeVar):
        return value.value
    if isinstance(value, ir.Expr) and value.op == "getattr":
        owner = _found(func_ir, get_definition(func_ir, value.value))
        return getattr(owner, value.attr, None) if isinstance(owner, ModuleType) else None
    return None


_MODULES = ("random", "numpy.random")
_DRAWS = {
    **dict.fromkeys(("gauss", "normal", "normalvariate", "randn", "standard_normal"), "normal4"),
    **dict.fromkeys(("integers", "randint", "random_integers", "randrange"), "randint4"),
}


def refusal_of_random(value: Any) -> str | None:
    """Return the reason to refuse a value that belongs to a generator with hidden state.

    Parameters
    ----------
    value : object
        The value of a name in a kernel.

    Returns
    -------
    str or None
        The reason and the next step; None for every other value.
    """
    owner = value if _is_generator(value) else getattr(value, "__self__", None)
    if not _is_generator(owner) and not _is_random(getattr(value, "__module__", None)):
        return None
    name = str(getattr(value, "__name__", type(value).__name__))
    function = _DRAWS.get(name, "uniform4")
    module = type(owner).__module__ if _is_generator(owner) else value.__module__
    space = "random" if module == "random" else "numpy.random"
    return (
        f"expected a counter-based generator, got {space}.{name}: its hidden state makes other "
        f"numbers in each launch, and CUDA does not have it; use "
        f"nbrt_kernels.random, such as {function}(seed, offset, index), or draw an array with "
        f"nbrt.Generator and pass it to the kernel"
    )


def _is_generator(value: Any) -> bool:
    return _is_random(type(value).__module__)


def _is_random(module: Any) -> bool:
    return isinstance(module, str) and (
        module in _MODULES or module.startswith(tuple(f"{name}." for name in _MODULES))
    )


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
"""Refused function -> its name, and the next step of the error."""


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
        target = named_object(func_ir, value)
        if target is None:
            continue
        if target is mark_try_block:
            _refuse(statement.loc, "try", "test for the condition with an if")
        reason = refusal_of_random(target)
        if reason is not None:
            raise UnsupportedConstructError(f"{_where(statement.loc)}: {reason}")
        if callable(target) and _is_hashable(target) and target in _STEPS:
            _refuse(statement.loc, *_STEPS[target])


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
    passed_types = state.calltypes[value].args
    caller = state.func_id.func
    if function is caller and tuple(passed_types) == tuple(state.args):
        return
    where = _where(value.loc)
    if function is not caller:
        raise UnsupportedConstructError(
            f"{where}: {function.__qualname__} and {caller.__qualname__} call each other, which "
            f"neither target links; write them as one function or as a loop"
        )
    own, passed = (
        ", ".join(str(kind) for kind in kinds if not isinstance(kind, SimtContextType))
        for kinds in (state.args, passed_types)
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
