"""Copies of a kernel and its device functions in which names of ``numba.cuda`` are substituted.

The copies run the user's bytecode, so tracebacks, breakpoints and stepping show the user's lines.
The user's modules, functions and closures do not change.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interpret.arrays import Array
from nbrt.backends.cpu.interpret.dialect import Cuda
from nbrt.backends.cpu.simt.frontend.python_semantics import refusal_of_random
from nbrt.backends.dialect import dialect_name, is_dialect_module
from nbrt.backends.stable_modules import is_standard_module
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.interpret.scheduler import Thread
    from nbrt.typing import Dim3

__all__ = ["Interpretation", "as_compiled"]

_REALS = (float, np.float32)  # np.float64 is a float


def as_compiled(value: Any) -> Any:
    """Return a value with the type that it has in compiled code: a number as a NumPy scalar.

    A Python float is weak in NumPy: its product with a float32 is a float32, where compiled code
    computes in 64 bits.
    """
    if type(value) is np.ndarray:
        return value.view(Array)
    if type(value) is int:
        if -(2**63) <= value < 2**63:
            return np.int64(value)
        return np.uint64(value) if 0 <= value < 2**64 else value
    if type(value) is float:
        return np.float64(value)
    if type(value) is complex:
        return np.complex128(value)
    if isinstance(value, tuple):
        items = map(as_compiled, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


class _Module:
    """A module whose attributes are substituted when a kernel reads them."""

    def __init__(self, module: types.ModuleType, substitute: Callable[[Any], Any]) -> None:
        self._module = module
        self._substitute = substitute

    def __getattr__(self, name: str) -> Any:
        return self._substitute(getattr(self._module, name))

    def __repr__(self) -> str:
        return repr(self._module)


def _of_numpy(value: Any) -> Any:
    """Return an attribute of NumPy or ``random``; refuse stateful random functions."""
    if isinstance(value, types.ModuleType):
        return _Module(value, _of_numpy)
    reason = refusal_of_random(value)
    if reason is not None:
        raise UnsupportedConstructError(reason)
    return value


class Interpretation:
    """The substitutes of one interpreted launch: of ``numba.cuda``, builtins and functions."""

    def __init__(self, grid: Dim3, block: Dim3) -> None:
        module = sys.modules.get("numba.cuda")
        self.cuda = Cuda(module, grid, block, self.substitute)
        # range() yields Python integers, which are weak in NumPy as well; a debugger does not step
        # into map().
        self.builtins: dict[str, Any] = {
            **vars(builtins),
            "range": lambda *bounds: map(np.int64, range(*bounds)),
            "max": functools.partial(_extremum, max, np.fmax),
            "min": functools.partial(_extremum, min, np.fmin),
        }
        self._lanes: list[Callable[[Any], object]] = []
        self._functions: dict[int, tuple[Any, types.FunctionType]] = {}

    def function(self, function: types.FunctionType) -> types.FunctionType:
        """Return the copy of a function; there is one, so that functions may call themselves."""
        known = self._functions.get(id(function))
        if known is not None:
            return known[1]
        # All of the user's globals, for the debugger; those that the code names are substituted.
        scope: dict[str, Any] = {**function.__globals__, "__builtins__": self.builtins}
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copy = types.FunctionType(
            _with_typed_constants(function.__code__),
            scope,
            function.__name__,
            as_compiled(function.__defaults__),
            cells,
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__qualname__ = function.__qualname__
        # Keep the original alive: another function might get its id.
        self._functions[id(function)] = function, copy
        for name in _names(function.__code__) & function.__globals__.keys():
            value = function.__globals__[name]
            self._bind(value, functools.partial(scope.__setitem__, name))
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            self._bind(original.cell_contents, functools.partial(setattr, cell, "cell_contents"))
        return copy

    def switch(self, thread: Thread, *, stops: bool) -> None:
        """Set the lane of the thread that runs next, and whether ``breakpoint()`` stops in it."""
        self.builtins["breakpoint"] = builtins.breakpoint if stops else _nothing
        for assign in self._lanes:
            assign(np.int64(thread.lane))

    def _bind(self, value: Any, assign: Callable[[Any], object]) -> None:
        if dialect_name(value) == "laneid":
            self._lanes.append(assign)  # imported by name: a plain number in each thread
        else:
            assign(self.substitute(value))

    def substitute(self, value: Any) -> Any:
        """Return the substitute of a value that a kernel refers to, or the value itself."""
        if is_dialect_module(value):
            return self.cuda
        if isinstance(value, types.ModuleType):
            return self._module(value)
        name = dialect_name(value)
        # The dialect's own dispatchers run as those of the program: a call would be a launch.
        if name is not None and not hasattr(value, "forall"):
            return self._builtin(name, value)
        if value is max or value is min:
            return self.builtins[value.__name__]
        _of_numpy(value)
        python = getattr(value, "py_func", None)
        if python is None and not isinstance(value, types.FunctionType):
            python = getattr(value, "__wrapped__", None)  # a kernel called as a device function
        if isinstance(python, types.FunctionType):
            return self.function(python)
        return as_compiled(value)

    def _module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        if name.startswith("numba.cuda."):
            space = getattr(self.cuda, name.rpartition(".")[2], None)
            return (
                _Module(module, self.substitute) if isinstance(space, types.ModuleType) else space
            )
        if module is np or name in ("random", "numpy.random"):
            return _Module(module, _of_numpy)
        return module if is_standard_module(name) else _Module(module, self.substitute)

    def _builtin(self, name: str, value: Any) -> Any:
        builtin = self.cuda.vector(value) or self.cuda.builtin(name)
        return as_compiled(value) if builtin is None else builtin


def _extremum(python: Any, of_numbers: Any, *values: Any, **options: Any) -> Any:
    """Return the extremum of values; of a number and a NaN, the number."""
    if len(values) == 2 and not options and all(isinstance(v, _REALS) for v in values):
        return of_numbers(*values)
    return python(*values, **options)


def _nothing(*_: object, **__: object) -> None:
    """Replace ``breakpoint()`` in the threads that are not watched."""


def _names(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _with_typed_constants(code: types.CodeType) -> types.CodeType:
    constants = tuple(
        _with_typed_constants(item) if isinstance(item, types.CodeType) else as_compiled(item)
        for item in code.co_consts
    )
    return code.replace(co_consts=constants)
