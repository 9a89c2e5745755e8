"""The values that a kernel captures, and the check for changes.

Compiled code contains the values of globals, closure variables and attributes of modules, for the
kernel and for the device functions that it calls. `Captures` reads all of them once. The kernel is
compiled from copies of its functions over these values, so that its versions for different argument
types never mix old and new values.
"""

from __future__ import annotations

import builtins
import dis
import enum
import hashlib
import linecache
import os
import sys
import textwrap
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.stable_modules import STABLE_PACKAGES, is_stable_module

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Captures", "bind", "is_device_function"]

Owner = dict[str, Any] | types.CellType

_MISSING: Any = object()
"""The value of a name that is not defined."""

_GENERATED = os.path.join(os.path.dirname(__file__), "<captures>")
"""File name of generated code: call sites leave out the frames of files of nbrt."""

# Else tracebacks would show lines of the kernel's module, whose globals the functions have.
linecache.cache[_GENERATED] = (0, None, [], _GENERATED)

_PLAIN = (type(None), bool, int, float, complex, str, bytes)

_IS_CURRENT = """
def is_current():
    try:
        return {is_current}
    except (AttributeError, KeyError, NameError):
        return False
"""

_CACHE, _EXTENDED = dis.opmap["CACHE"], dis.opmap["EXTENDED_ARG"]
_GLOBALS = {dis.opmap["LOAD_GLOBAL"]: 1, dis.opmap["LOAD_NAME"]: 0}
_ATTRIBUTES = {dis.opmap["LOAD_ATTR"]: int(sys.version_info >= (3, 12))}
if "LOAD_METHOD" in dis.opmap:
    _ATTRIBUTES[dis.opmap["LOAD_METHOD"]] = 0
"""Opcodes, and by how many bits the index of the name is shifted in their arguments."""


def is_device_function(value: object) -> bool:
    """Return whether a value is a jitted function of the CUDA or the CPU target.

    Parameters
    ----------
    value : object
        A global, closure variable or attribute that a kernel refers to.

    Returns
    -------
    bool
        True for dispatchers: objects with ``py_func`` and compiler options.
    """
    return isinstance(getattr(value, "py_func", None), types.FunctionType) and hasattr(
        value, "targetoptions"
    )


@dataclass(slots=True)
class _Entry:
    """A name and its value.

    `owner` is the dict or the cell that holds the name, `value` the captured object, `frozen` the
    object to compile with: a copy if it is an array.
    """

    owner: Owner
    name: str
    value: Any
    frozen: Any


_Entries = dict[tuple[int, str], _Entry]
_Chains = set[tuple[str, ...]]
"""Chains of attributes that code loads from a name."""


class Captures:
    """The values that a function and the device functions it calls capture.

    Parameters
    ----------
    function : function
        A kernel, or a device function.
    within : Captures, optional
        The captures of the kernel that compiles: values in them take precedence.
    itself : object, optional
        The value of the function's own name as long as it has none: a decorator compiles the
        function before its name refers to it.

    Attributes
    ----------
    frozen : function
        A copy of the function over the captured values.
    device_functions : list
        The dispatchers of the device functions that it calls, to any depth.
    is_current : callable or None
        Returns whether every name still refers to the captured object. None if no captured value
        can change.
    """

    def __init__(
        self,
        function: types.FunctionType,
        within: Captures | None = None,
        itself: object = _MISSING,
    ) -> None:
        self._entries: _Entries = {}
        self._itself = itself
        self._names: dict[int, tuple[types.FunctionType, list[str]]] = {}
        self._frozen: dict[int, types.FunctionType] = {}
        self._inner: dict[int, Captures] = {}
        self.device_functions: list[Any] = []
        self._function = function
        self._is_valid = True
        self._tests: list[str] = []
        self._cells: dict[str, types.CellType] = {}
        self._compared: dict[tuple[int, str], types.CellType] = {}
        self._visit(function, {} if within is None else within._entries)
        self.frozen = self.freeze(function)
        self.is_current: types.FunctionType | None = None
        if within is None:
            self._collect_tests()
        if self._tests:
            self.is_current = self.bind(_IS_CURRENT, {})

    @property
    def names(self) -> frozenset[str]:
        """The names of globals and attributes in the code of all captured functions."""
        return frozenset[str]().union(*(_names(each.__code__) for each in self.functions))

    @property
    def functions(self) -> list[types.FunctionType]:
        """The function and the device functions that it calls, to any depth, as captured."""
        return [function for function, _ in self._names.values()]

    # -- compiling -----------------------------------------------------------------------------

    def freeze(self, function: types.FunctionType) -> types.FunctionType:
        """Return a copy of a captured function over the captured values."""
        known = self._frozen.get(id(function))
        if known is not None:
            return known
        if id(function) not in self._names:
            return function
        scope = function.__globals__
        namespace: dict[str, Any] = {"__name__": scope.get("__name__")}
        if "__builtins__" in scope:
            namespace["__builtins__"] = scope["__builtins__"]
        for name in self._names[id(function)][1]:
            entry = self._entries[id(scope), name]
            if entry.value is not _MISSING:
                namespace[name] = entry.frozen
        cells = []
        for name, cell in _cells(function):
            entry = self._entries[id(cell), name]
            cells.append(types.CellType(*(() if entry.value is _MISSING else (entry.frozen,))))
        copy = types.FunctionType(
            function.__code__, namespace, function.__name__, function.__defaults__, tuple(cells)
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__annotations__ = function.__annotations__  # shown in errors about arguments
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        copy.__dict__.update(function.__dict__)
        return self._frozen.setdefault(id(function), copy)

    def of(self, function: types.FunctionType) -> Captures:
        """Return the captures of a device function, at the values captured here."""
        known = self._inner.get(id(function))
        if known is None:
            known = self._inner.setdefault(id(function), Captures(function, self))
        return known

    def agrees(self, other: Captures) -> bool:
        """Return whether another capture of the same function has the same values."""
        theirs = other._entries
        return theirs.keys() == self._entries.keys() and all(
            _is_same(entry.value, theirs[key].value) for key, entry in self._entries.items()
        )

    def array_digest(self) -> bytes:
        """Return a hash of the present contents of captured arrays, which can change in place."""
        found = hashlib.sha256()
        for entry in self._entries.values():
            if isinstance(entry.value, np.ndarray):
                found.update(entry.value.tobytes())
        return found.digest()

    # -- changes -------------------------------------------------------------------------------

    def expire(self) -> None:
        """Make `is_current` return False from now on."""
        self._is_valid = False
        for cell in self._compared.values():
            cell.cell_contents = object()

    def changes(self) -> list[str]:
        """Return the names whose values have changed, each with both values."""
        changes = []
        for entry in self._entries.values():
            now = _read(entry.owner, entry.name)
            if not _is_same(entry.value, now):
                changes.append(_described(entry, now))
        return changes

    def holds(self) -> bool:
        """Return whether every name refers to an equal value; slower than `is_current`.

        An object of the same plain value replaces the captured one.
        """
        if not self._is_valid or self.changes():
            return False
        for key, entry in self._entries.items():
            now = _read(entry.owner, entry.name)
            if now is not entry.value and _is_same(entry.value, now):
                entry.value = now
                if key in self._compared:
                    self._compared[key].cell_contents = now
        return True

    def digest(self) -> str | None:
        """Return a hash of the functions' code and of the captured values, as they were then.

        It is the same in every process of one version of Python. None if a value has no text that
        would be.
        """
        found = hashlib.sha256()
        for function, names in self._names.values():
            keys = [(id(function.__globals__), name) for name in names]
            keys += [(id(cell), name) for name, cell in _cells(function)]
            values: list[Any] = [self._entries[key].frozen for key in keys]
            values += [function.__defaults__, *sorted((function.__kwdefaults__ or {}).items())]
            for text in (_code_text(function.__code__), *map(_stable_text, values)):
                if text is None:
                    return None
                found.update(f"{len(text)}:{text}".encode())
        return found.hexdigest()

    # -- collecting ----------------------------------------------------------------------------

    def _visit(self, function: types.FunctionType, known: _Entries) -> None:
        if id(function) in self._names:
            return
        loads, attributes = _loads(function.__code__)
        scope = function.__globals__
        names = [name for name in loads if name in scope or not hasattr(builtins, name)]
        self._names[id(function)] = function, names
        for name in names:
            self._add(scope, name, loads[name], attributes, known)
        for name, cell in _cells(function):
            self._add(cell, name, {()}, attributes, known)

    def _add(
        self, owner: Owner, name: str, chains: _Chains, attributes: set[str], known: _Entries
    ) -> None:
        key = id(owner), name
        entry = self._entries.get(key) or known.get(key)
        if entry is None:
            value = _read(owner, name)
            if value is _MISSING and name == self._function.__name__:
                value = self._itself
            entry = _Entry(owner, name, value, _frozen_value(value))
        self._entries[key] = entry
        self._visit_value(entry.value, chains, attributes, known)

    def _visit_value(
        self, value: Any, chains: _Chains, attributes: set[str], known: _Entries
    ) -> None:
        if isinstance(value, types.ModuleType):
            if is_stable_module(value.__name__):
                return
            scope = vars(value)
            if () in chains:  # used as a value: any attribute in the function may belong to it
                chains = {*chains, *((name,) for name in attributes if name in scope)}
            for name in sorted({chain[0] for chain in chains if chain}):
                rest = {chain[1:] for chain in chains if chain and chain[0] == name}
                self._add(scope, name, rest, attributes, known)
        elif isinstance(value, tuple):
            for member in value:
                self._visit_value(member, {()}, attributes, known)
        elif is_device_function(value):
            if not any(function is value for function in self.device_functions):
                self.device_functions.append(value)
            self._visit(value.py_func, known)

    # -- the check of every launch -------------------------------------------------------------

    def bind(self, source: str, names: dict[str, object]) -> types.FunctionType:
        """Compile a function over the globals of the kernel, with the check inside.

        The interpreter specialises the lookup of global names, and closure variables cost as
        little, so a captured value costs a few nanoseconds. A call would cost ten times as much.

        Parameters
        ----------
        source : str
            Source of the function, with ``{is_current}`` in place of the check: an expression
            that is true, or false, or raises AttributeError, KeyError or NameError. The names
            of its variables begin with ``_nbrt_``.
        names : dict
            Values of its free variables.
        """
        return bind(source, names, self._tests, self._cells, self._function.__globals__)

    def _collect_tests(self) -> None:
        """Generate the tests of `bind`: one comparison for each captured name."""
        for key, entry in self._entries.items():
            value = entry.value
            if isinstance(value, types.ModuleType) and is_stable_module(value.__name__):
                continue  # programs do not replace these modules
            number = len(self._tests)
            self._compared[key] = self._cells[f"_nbrt_value{number}"] = types.CellType(value)
            self._tests.append(f"{self._named(entry, number)} is _nbrt_value{number}")

    def _named(self, entry: _Entry, number: int) -> str:
        """Return the expression that reads a captured name, in terms of `_cells`."""
        owner, name, scope = entry.owner, entry.name, f"_nbrt_scope{number}"
        if isinstance(owner, types.CellType):
            self._cells[scope] = owner
            return scope
        if entry.value is _MISSING:
            self._cells[scope] = types.CellType(owner)
            self._cells["_nbrt_missing"] = types.CellType(_MISSING)
            return f"{scope}.get({name!r}, _nbrt_missing)"
        if owner is self._function.__globals__:
            return name
        module = sys.modules.get(str(owner.get("__name__")))
        if module is not None and vars(module) is owner:
            self._cells[scope] = types.CellType(module)
            return f"{scope}.{name}"
        self._cells[scope] = types.CellType(owner)
        return f"{scope}[{name!r}]"


def bind(
    source: str,
    names: dict[str, object],
    tests: list[str] = [],  # noqa: B006  # only read
    cells: dict[str, types.CellType] = {},  # noqa: B006
    scope: dict[str, Any] = {},  # noqa: B006
) -> types.FunctionType:
    """Compile a function whose source contains ``{is_current}``; see `Captures.bind`.

    Parameters
    ----------
    source : str
        Source of the function.
    tests : list of str
        Expressions that are all true if no captured value has changed.
    names, cells : dict
        Free variables: by value, and as cells.
    scope : dict
        Globals of the function.
    """
    cells = cells | {name: types.CellType(value) for name, value in names.items()}
    body = source.format(is_current=" and ".join(tests) or "True")
    text = f"def make({', '.join(cells)}):\n{textwrap.indent(body, '    ')}"
    namespace: dict[str, Any] = {}
    exec(compile(text, _GENERATED, "exec"), namespace)
    (code,) = (c for c in namespace["make"].__code__.co_consts if isinstance(c, types.CodeType))
    closure = tuple(cells[name] for name in code.co_freevars)
    return types.FunctionType(code, scope, code.co_name, None, closure)


def _loads(code: types.CodeType) -> tuple[dict[str, _Chains], set[str]]:
    """Return the globals that code loads, with chains of attributes, and all attributes."""
    loads: dict[str, _Chains] = {}
    attributes: set[str] = set()
    name: str | None = None
    chain: tuple[str, ...] = ()
    extended = 0
    for opcode, low in _instructions(code):
        argument = low | extended
        extended = argument << 8 if opcode == _EXTENDED else 0
        if opcode == _EXTENDED:
            continue
        if opcode in _ATTRIBUTES:
            attribute = code.co_names[argument >> _ATTRIBUTES[opcode]]
            attributes.add(attribute)
            chain = (*chain, attribute)
            continue
        if name is not None:
            loads.setdefault(name, set()).add(chain)
        name, chain = None, ()
        if opcode in _GLOBALS:
            name = code.co_names[argument >> _GLOBALS[opcode]]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            further, more = _loads(constant)
            attributes |= more
            for each, chains in further.items():
                loads.setdefault(each, set()).update(chains)
    return loads, attributes


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*inner)


def _instructions(code: types.CodeType) -> Iterator[tuple[int, int]]:
    raw = code.co_code
    return (pair for pair in zip(raw[::2], raw[1::2], strict=True) if pair[0] != _CACHE)


def _cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _read(owner: Owner, name: str) -> Any:
    if isinstance(owner, types.CellType):
        try:
            return owner.cell_contents
        except ValueError:
            return _MISSING
    return owner.get(name, _MISSING)


def _frozen_value(value: Any) -> Any:
    """Return a value whose elements cannot change: a copy of a dense array."""
    if type(value) is not np.ndarray or not value.flags.writeable or value.dtype.hasobject:
        return value
    flags = value.flags
    return value.copy(order="K") if flags.c_contiguous or flags.f_contiguous else value


def _is_same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    # repr distinguishes -0.0 from 0.0, and NaN equals NaN.
    return type(old) is type(new) and isinstance(old, _PLAIN) and repr(old) == repr(new)


def _code_text(code: types.CodeType) -> str | None:
    constants = [
        _code_text(each) if isinstance(each, types.CodeType) else _stable_text(each)
        for each in code.co_consts
    ]
    if None in constants:
        return None
    names = code.co_names, code.co_varnames, code.co_freevars
    return f"{code.co_name} {code.co_code.hex()} {names} {constants}"


def _stable_text(value: Any) -> str | None:
    """Return a text of a value that is the same in every process; None if there is none."""
    if value is _MISSING:
        return "missing"
    if isinstance(value, (*_PLAIN, type(Ellipsis), np.dtype)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return f"array {value.dtype.str} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, (tuple, frozenset)):
        members = list(map(_stable_text, value))
        if None in members:
            return None
        listed = members if isinstance(value, tuple) else sorted(map(str, members))
        return f"{type(value).__name__} {listed}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__module__}.{value}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if (type(value).__module__ or "").partition(".")[0] in STABLE_PACKAGES:
        text = repr(value)  # such as a type of Numba
        return None if " at 0x" in text else text
    source = value.py_func if is_device_function(value) else value
    name = getattr(source, "__qualname__", None)
    return None if name is None else f"{source.__module__}.{name}"


def _described(entry: _Entry, now: Any) -> str:
    old, new = ("undefined" if value is _MISSING else _short(value) for value in (entry.value, now))
    if isinstance(entry.owner, types.CellType):
        return f"the closure variable {entry.name} ({old} before, {new} now)"
    return f"{entry.owner.get('__name__', 'the global')}.{entry.name} ({old} before, {new} now)"


def _short(value: object) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"
