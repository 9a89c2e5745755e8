"""Hash of a kernel: its bytecode and every value that compilation freezes.

The compiler freezes globals, closure variables and attributes of modules at their current values
and compiles in the functions that a kernel calls. All of it goes into the hash. What cannot be
hashed for certain raises `UnhashableError`, and the kernel is then not cached on disk: a missing
cache entry is better than a wrong one.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import types
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import types as numba_types

from nbrt.backends.captures import is_device_function
from nbrt.backends.declared_signatures import declared_signatures
from nbrt.backends.dialect import dialect_name, is_dialect_module
from nbrt.backends.stable_modules import is_stable_class, is_standard_module

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UnhashableError", "exception_classes", "fingerprint"]

_VERSIONED = frozenset({"builtins", "numba", "numba_cuda", "llvmlite", "numpy"})
"""Packages whose versions are part of every key, so that their objects are known by name."""

_RAISE = dis.opmap["RAISE_VARARGS"]

_BACKWARD = frozenset(code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name)
_FOR = dis.opmap["FOR_ITER"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)


class UnhashableError(Exception):
    """A kernel refers to something whose meaning no hash can hold."""


def fingerprint(
    function: types.FunctionType,
    freeze: Callable[[types.FunctionType], types.FunctionType] = lambda function: function,
    options: Callable[[Any], bytes] = lambda _: b"",
) -> bytes:
    """Hash a function and, through it, everything that compiling it depends on.

    Parameters
    ----------
    function : function
        A kernel.
    freeze : callable
        Returns the function that is compiled in the place of a device function.
    options : callable
        Returns the compiler options of the dispatcher of a device function as bytes; raises
        `UnhashableError`.

    Returns
    -------
    bytes
        The digest.

    Raises
    ------
    UnhashableError
        If the function refers to a value of a kind that cannot be hashed for certain.
    """
    walk = _Walk(freeze, options)
    walk.function(function)
    walk.finish()
    return walk.hash.digest()


def exception_classes(
    function: types.FunctionType,
    freeze: Callable[[types.FunctionType], types.FunctionType] = lambda function: function,
) -> list[type[BaseException]]:
    """Return the exception classes of the program that a function refers to.

    In the order of the hash: functions with equal fingerprints have as many, in the same order.

    Parameters
    ----------
    function, freeze
        As of `fingerprint`.
    """
    walk = _Walk(freeze, lambda _: b"")
    walk.function(function)
    return walk.exceptions


def _is_versioned(module: str | None) -> bool:
    root, _, rest = (module or "").partition(".")
    if root in _VERSIONED:
        return ".tests." not in f".{rest}."  # its tests are programs
    return is_standard_module(module)


def _has_while(code: types.CodeType) -> bool:
    """Return whether code has more backward jumps than loops with an iterator."""
    operations = code.co_code[::2]
    return sum(operation in _BACKWARD for operation in operations) > operations.count(_FOR)


class _Walk:
    def __init__(
        self,
        freeze: Callable[[types.FunctionType], types.FunctionType],
        options: Callable[[Any], bytes],
    ) -> None:
        self._freeze = freeze
        self._options = options
        self.hash = hashlib.sha256()
        self._seen: dict[Any, int] = {}
        self._keep_alive: list[object] = []
        self._places: list[object] = []
        self._may_spin = False
        self.exceptions: list[type[BaseException]] = []

    def _put(self, *parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            self.hash.update(len(data).to_bytes(8, "little"))
            self.hash.update(data)

    def _is_first_visit(self, key: Any, *alive: object) -> bool:
        """Remember what has been hashed; a second meeting, or a circle, is hashed as its number."""
        number = self._seen.setdefault(key, len(self._seen))
        self._keep_alive.extend(alive)
        first = number == len(self._seen) - 1
        self._put("visit", number)
        return first

    # -- code --------------------------------------------------------------------------------

    def function(self, function: types.FunctionType) -> None:
        if ("function", id(function)) in self._seen:
            self._put("visit", self._seen["function", id(function)])
            return
        self._is_first_visit(("function", id(function)), function)
        # The name of a module of the program has no effect on the code: it differs between
        # `__main__` and `__mp_main__`, and may between runs where `exec` makes the function.
        module = function.__module__ if _is_versioned(function.__module__) else ""
        self._put("function", module, function.__qualname__)
        self.value(function.__defaults__)
        self._put(sorted(function.__kwdefaults__ or {}))
        for value in (function.__kwdefaults__ or {}).values():
            self.value(value)
        names = self._code(function.__code__)
        for name in sorted(names & function.__globals__.keys()):
            self._put("global", name)
            self._named(function.__globals__[name], names)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._put("closure", name)
            try:
                content = cell.cell_contents
            except ValueError:
                self._put("empty")
            else:
                self._named(content, names)

    def _code(self, code: types.CodeType) -> set[str]:
        """Hash a code object and give the names it uses, those of its inner functions included."""
        self._put(code.co_code, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._put(
            code.co_flags, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        )
        self._put(getattr(code, "co_exceptiontable", b""))
        if _RAISE in code.co_code[::2]:
            # An exception says where it was raised. Else a function may move, as notebook cells do.
            self._put(code.co_filename, code.co_firstlineno, getattr(code, "co_linetable", b""))
        self._places.append((code.co_filename, code.co_firstlineno, code.co_linetable))
        self._may_spin |= _has_while(code)
        names = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._code(constant)
            else:
                self.value(constant)
        return names

    def finish(self) -> None:
        """Hash where the functions are if threads may spin: messages then name their lines."""
        if self._may_spin:
            self._put(self._places)

    def _named(self, value: object, names: set[str]) -> None:
        """Hash what a name stands for; of a module, what the code may read from it."""
        if not isinstance(value, types.ModuleType):
            self.value(value)
            return
        self._put("module", value.__name__)
        if is_dialect_module(value) or _is_versioned(value.__name__):
            return
        key = ("module", id(value), frozenset(names))
        if key in self._seen:
            return
        self._is_first_visit(key, value)
        for name in sorted(names & vars(value).keys()):
            self._put("attribute", name)
            self._named(vars(value)[name], names)

    # -- values ------------------------------------------------------------------------------

    def value(self, value: Any) -> None:
        """Hash a value that compiling freezes."""
        kind = type(value)
        if kind in _PLAIN:
            self._put(kind.__name__, value)
        elif kind in (tuple, list, slice):
            members = value if kind is not slice else (value.start, value.stop, value.step)
            self._put(kind.__name__, len(members))
            for member in members:
                self.value(member)
        elif kind is frozenset:
            self._put("frozenset", sorted(map(repr, value)))
            for member in sorted(value, key=repr):
                self.value(member)
        elif isinstance(value, np.generic | np.ndarray | np.dtype):
            self._numpy(value)
        elif is_device_function(value):
            self._put("jitted", self._options(value))
            for args, result in declared_signatures(value):
                self._put("declared", str(args), str(result))
            self.function(self._freeze(value.py_func))
        elif isinstance(value, numba_types.Type):
            self._put("type", str(value))
        elif (name := dialect_name(value)) is not None:
            self._put("dialect", name)
        elif isinstance(value, enum.Enum):
            self._put("enum", value.name)
            self._by_name(type(value))
            self.value(value.value)
        elif isinstance(value, tuple) and hasattr(kind, "_fields"):
            self._by_name(kind)
            self.value(tuple(value))
        else:
            self._by_name(value)

    def _numpy(self, value: Any) -> None:
        if isinstance(value, np.dtype):
            self._put("dtype", repr(value), value.str)
            return
        if value.dtype.hasobject:
            raise UnhashableError(f"an array or scalar of dtype {value.dtype}")
        self._put("array", type(value).__name__, repr(value.dtype), value.dtype.str, value.shape)
        if isinstance(value, np.ndarray):
            self._put(value.flags.c_contiguous, value.flags.f_contiguous, value.flags.aligned)
        self._put(value.tobytes())

    def _by_name(self, value: Any) -> None:
        """Hash something by its module and name, where those say what it is."""
        module = getattr(value, "__module__", None)
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if isinstance(value, np.ufunc):
            # NumPy's own only: users' ones, also those of numba.vectorize, have other types.
            known = getattr(np, value.__name__, None) is value
            module, name = ("numpy", value.__name__) if known else (None, None)
        is_known = not isinstance(value, type) or is_stable_class(value)
        if isinstance(name, str) and _is_versioned(module) and is_known:
            self._put("named", module, name)
        elif isinstance(value, type) and issubclass(value, BaseException):
            self._put("exception", name)
            self.exceptions.append(value)
        elif isinstance(value, type) and issubclass(value, enum.Enum):
            self._put("enum class", name, [member.name for member in value])
            for member in value:
                self.value(member.value)
        elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            self._put("named tuple", name, value._fields)
        else:
            raise UnhashableError(f"{value!r} of type {type(value).__name__}")
