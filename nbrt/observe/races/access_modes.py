"""`argument_access_modes`: what a kernel does with the arrays it is given, as its source says.

A kernel knows no pointers: it writes memory by assignments to elements, by atomic operations, and
by functions that it gives an array to. So a walk through its syntax tree that follows names, views
and device functions proves of most arguments that they are only read. What the walk does not know
counts as a use that may write. An element stays a possible view of its array until as many indices
were taken as the array has dimensions, and only what is known to be a number counts as an index
that takes one away.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import threading
import weakref
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from nbrt.observe.races.kernel_source import tree_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbrt.observe.races.shadow_blocks import AccessMode

__all__ = ["argument_access_modes"]

_RANKS: dict[AccessMode, int] = {"reads": 0, "updates": 1, "uses": 2, "writes": 3}

_NO_ELEMENTS = frozenset({"dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"})
"""Attributes of an array that are not its memory."""

_HARMLESS = (
    ast.Assert, ast.BinOp, ast.Break, ast.Compare, ast.Continue, ast.Expr, ast.If, ast.Pass,
    ast.Raise, ast.Slice, ast.UnaryOp, ast.While, ast.boolop, ast.cmpop, ast.operator, ast.unaryop,
)  # fmt: skip
"""Nodes that only read, and whose value is no part of an array."""

_NUMBERS = (int, float, complex, np.number, np.bool_)

_COUNTS = (int, len, range)
"""Functions that give numbers, whatever they are given."""

_ARITHMETIC = (abs, divmod, float, max, min, pow, round, sum)
"""Functions that give numbers of numbers."""

_Parts: TypeAlias = dict[str, float]
"""What arrays a value may be a part of: parameters, and the indices from it to their elements.

Of what is known to be a number, or to be made of numbers alone, it is empty.
"""

_UNKNOWN = ""
"""Stands in `_Parts` for anything else, such as a slice, or None, which is a new axis."""

_known: weakref.WeakKeyDictionary[FunctionType, dict[tuple[float, ...], _AccessSummary | None]]
_known = weakref.WeakKeyDictionary()
_lock = threading.RLock()


class _AccessSummary(NamedTuple):
    """What a function does with its arguments, and how deep in which it is what it returns.

    A mode of None: it reads no element.
    """

    modes: list[AccessMode | None]
    returned: list[float]
    made: _Parts
    """What it returns that is no part of its arguments."""


def argument_access_modes(kernel: object, arguments: Sequence[object]) -> list[AccessMode]:
    """Return what a kernel may do with each of its arguments.

    Parameters
    ----------
    kernel : object
        A Python function, or what has one as `py_func`.
    arguments : sequence
        What it is launched with; only their numbers of dimensions count.

    Returns
    -------
    modes : list of str
        For each argument ``"reads"``, ``"updates"`` (by atomic operations alone; an array that is
        read besides counts as written), ``"writes"``, or
        ``"uses"`` where the source is not at hand or does not say.

    Examples
    --------
    >>> import numpy as np
    >>> import nbrt
    >>> from numba import cuda
    >>> @nbrt.kernel
    ... def scale(out, x):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         out[i] = 2.0 * x[i]
    >>> argument_access_modes(scale, [np.zeros(3), np.ones(3)])
    ['writes', 'reads']
    """
    function = getattr(kernel, "py_func", kernel)
    found = None
    if isinstance(function, FunctionType):
        with _lock:
            found = _access_summary(function, tuple(map(_depth, arguments)))
    if found is None:
        return ["uses"] * len(arguments)
    return [mode or "reads" for mode in found.modes]


def _depth(argument: Any) -> float:
    """Return how many indices lead to a plain number, of which it is 0 itself.

    To a record's fields it is one more than to the record.
    """
    if isinstance(argument, (tuple, list)):
        return 1 + max(map(_depth, argument), default=0)
    if isinstance(argument, _NUMBERS):
        return 0
    depth: float = getattr(argument, "ndim", math.inf)
    fields = getattr(getattr(argument, "dtype", None), "fields", None)
    if fields is None:
        return max(depth, 1)
    is_nested = any(kind.fields or kind.subdtype for kind, *_ in fields.values())
    return math.inf if is_nested else depth + 1


def _access_summary(function: FunctionType, depths: tuple[float, ...]) -> _AccessSummary | None:
    """Return what a function does with arguments of such depths; None if that is not known."""
    found = _known.setdefault(function, {})
    if depths not in found:
        found[depths] = None  # for the function that calls itself
        tree = tree_of(function)
        names = _names(function, len(depths))
        if tree is not None and len(names) == len(depths):
            walk = _AccessVisitor(function, names, depths)
            walk.run(tree)
            found[depths] = _AccessSummary(
                [walk.uses.get(name) for name in names],
                [walk.returned.get(name, 0) for name in names],
                _unknown(walk.returned),
            )
    return found[depths]


def _names(function: FunctionType, count: int) -> list[str]:
    """Return the parameters that get the first `count` arguments; a starred one gets the rest."""
    code = function.__code__
    names = list(code.co_varnames[: code.co_argcount])
    if code.co_flags & inspect.CO_VARARGS:
        names += [code.co_varnames[code.co_argcount + code.co_kwonlyargcount]] * count
    return names[:count]


def _merge(parts: _Parts, more: _Parts) -> None:
    """Add to what a value may be; what grows from turn to turn of a loop may grow for ever."""
    for name, depth in more.items():
        if depth > 0:
            is_grown = name in parts and depth > parts[name]
            parts[name] = math.inf if is_grown else max(depth, parts.get(name, 0))


def _deeper(parts: _Parts, steps: float) -> _Parts:
    """Return what is left after an index, or (`steps` above 0) of what is put into a tuple."""
    return {name: depth + steps for name, depth in parts.items() if depth + steps > 0}


def _unknown(parts: _Parts) -> _Parts:
    """Return what a value may be besides a number and a part of an array."""
    return dict.fromkeys(parts.keys() & {_UNKNOWN}, math.inf)


class _AccessVisitor(ast.NodeVisitor):
    """A walk through one function.

    Visiting an expression returns the `_Parts` that its value may be; what is done to them on the
    way is noted in `uses`.
    """

    def __init__(
        self, function: FunctionType, names: Sequence[str], depths: Sequence[float]
    ) -> None:
        self.uses: dict[str, AccessMode] = {}
        self.returned: _Parts = {}
        self._function = function
        self._locals: dict[str, _Parts] = {}
        for place, (name, depth) in enumerate(zip(names, depths, strict=True)):
            is_in_tuple = place >= function.__code__.co_argcount
            _merge(self._locals.setdefault(name, {}), {name: depth + is_in_tuple})

    def run(self, tree: ast.FunctionDef) -> None:
        """Walk until nothing is new: the end of a loop may give names a meaning for its start."""
        before = ""
        while before != (now := repr((self.uses, self.returned, self._locals))):
            before = now
            for statement in tree.body:
                self.visit(statement)

    def _note(self, use: AccessMode, parts: Iterable[str]) -> None:
        for name in parts:
            before = self.uses.get(name, use)
            if {before, use} == {"reads", "updates"}:
                self.uses[name] = "writes"  # plain reading is not ordered with atomic operations
            else:
                self.uses[name] = max(before, use, key=_RANKS.__getitem__)

    def _bind(self, target: ast.expr, parts: _Parts) -> None:
        """Assign to a name, to several, or to an element."""
        if isinstance(target, ast.Name):
            _merge(self._locals.setdefault(target.id, {}), parts)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._bind(each, self._element(parts, 1))
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            self._note("writes", self.visit(target.value))
            self._note("reads", parts)
            if isinstance(target, ast.Subscript):
                self._indices(target.slice)
        else:
            self._note("uses", parts)

    # -- statements --------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        """Handle ``a = b = x``, and ``a, b = x, y`` piece by piece."""
        for target in node.targets:
            if (
                isinstance(target, ast.Tuple)
                and isinstance(node.value, ast.Tuple)
                and len(target.elts) == len(node.value.elts)
            ):
                for one, value in zip(target.elts, node.value.elts, strict=True):
                    self._bind(one, self.visit(value))
            else:
                self._bind(target, self.visit(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Handle ``a: int32 = x``."""
        if node.value is not None:
            self._bind(node.target, self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Handle ``a += x``: of an array in place, of a number not."""
        parts: _Parts = self.visit(node.value)
        self._note("reads", parts)
        if isinstance(node.target, ast.Name):
            self._note("writes", self._locals.get(node.target.id, ()))
            parts = _unknown(parts)
        self._bind(node.target, parts)

    def visit_For(self, node: ast.For) -> None:
        """Handle ``for a in x``."""
        self._bind(node.target, self._element(self.visit(node.iter), 1))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_Return(self, node: ast.Return) -> None:
        """Handle ``return x``."""
        if node.value is not None:
            _merge(self.returned, self.visit(node.value))

    # -- expressions -------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> _Parts:
        """Look up a name."""
        if node.id in self._locals:
            return dict(self._locals[node.id])
        return {} if _is_plain(self._meaning(node)) else {_UNKNOWN: math.inf}

    def visit_Constant(self, node: ast.Constant) -> _Parts:
        """Handle ``2`` and ``None``."""
        return {} if _is_plain(node.value) else {_UNKNOWN: math.inf}

    def visit_NamedExpr(self, node: ast.NamedExpr) -> _Parts:
        """Handle ``(a := x)``."""
        parts: _Parts = self.visit(node.value)
        self._bind(node.target, parts)
        return parts

    def visit_Attribute(self, node: ast.Attribute) -> _Parts:
        """Handle ``x.T`` and fields of records: a part like any other."""
        parts: _Parts = self.visit(node.value)
        is_plain = node.attr in _NO_ELEMENTS or any(
            _is_plain(self._meaning(each)) for each in (node, node.value)
        )
        return {} if is_plain else parts

    def visit_Subscript(self, node: ast.Subscript) -> _Parts:
        """Handle ``x[i]``, ``x[i, :]``."""
        return self._element(self.visit(node.value), self._indices(node.slice))

    def visit_Tuple(self, node: ast.Tuple) -> _Parts:
        """Handle ``(x, y)``."""
        parts: _Parts = {} if node.elts else {_UNKNOWN: math.inf}
        for each in node.elts:
            _merge(parts, _deeper(self.visit(each), 1))
        return parts

    def visit_IfExp(self, node: ast.IfExp) -> _Parts:
        """Handle ``x if a else y``."""
        self.visit(node.test)
        return self._any_of([node.body, node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> _Parts:
        """Handle ``x or y``."""
        return self._any_of(node.values)

    def visit_Call(self, node: ast.Call) -> _Parts:
        """Handle a call: of a device function, of an atomic operation, of what is not known."""
        self._note("uses", self.visit(node.func))  # a method
        callee = self._meaning(node.func)
        given: list[_Parts] = [self.visit(each) for each in node.args]
        named: list[_Parts] = [self.visit(each.value) for each in node.keywords]
        returned = _returned(callee, (*given, *named))
        if callee is len:
            return returned
        if _is_atomic(callee):
            self._note("updates", given[0] if given else ())
            given = given[1:]
        elif not any(named):
            inner = getattr(callee, "py_func", None)
            depths = tuple(max(parts.values(), default=0) for parts in given)
            found = _access_summary(inner, depths) if isinstance(inner, FunctionType) else None
            if found is not None:
                return self._called(found, given)
        for parts in (*given, *named):
            self._note("uses", parts)
        return returned

    def generic_visit(self, node: ast.AST) -> _Parts:
        """Handle the rest: what is not known to be harmless may do anything with what it names."""
        if isinstance(node, _HARMLESS):
            read: _Parts = {}
            for child in ast.iter_child_nodes(node):
                _merge(read, self.visit(child) or {})
            self._note("reads", read)
            return _unknown(read)
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                self._note("uses", self._locals.get(each.id, ()))
                if isinstance(each.ctx, ast.Store):
                    _merge(self._locals.setdefault(each.id, {}), {_UNKNOWN: math.inf})
        return {_UNKNOWN: math.inf}

    def _indices(self, node: ast.expr) -> float:
        """Return how many dimensions an index takes away; what is no number may add new ones."""
        if isinstance(node, ast.Tuple):
            return sum(map(self._indices, node.elts))
        parts = self.visit(node)
        literal = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Slice) or literal is ...:
            return 0
        is_field = isinstance(literal, str)
        return 1 if is_field or not parts else -math.inf

    def _element(self, parts: _Parts, indices: float) -> _Parts:
        """Return what is left after an index; what is no view any more was read."""
        left = _deeper(parts, -indices)
        self._note("reads", parts.keys() - left.keys())
        return left

    def _any_of(self, nodes: Iterable[ast.expr]) -> _Parts:
        parts: _Parts = {}
        for each in nodes:
            _merge(parts, self.visit(each))
        return parts

    def _called(self, found: _AccessSummary, given: Sequence[_Parts]) -> _Parts:
        """Take over what a device function does with what it is given, and returns of it."""
        returned = dict(found.made)
        for mode, depth, parts in zip(found.modes, found.returned, given, strict=True):
            if mode is not None:
                self._note(mode, parts)
            _merge(returned, dict.fromkeys(parts, depth))
        return returned

    def _meaning(self, node: ast.expr) -> Any:
        """Return what an expression of names from outside of the function stands for, or None."""
        if isinstance(node, ast.Attribute):
            owner = self._meaning(node.value)
            is_namespace = isinstance(owner, (ModuleType, type))
            return getattr(owner, node.attr, None) if is_namespace else None
        code, outside = self._function.__code__, self._function.__globals__
        if not isinstance(node, ast.Name) or node.id in (*code.co_varnames, *code.co_cellvars):
            return None
        if node.id in code.co_freevars and self._function.__closure__ is not None:
            try:
                return self._function.__closure__[code.co_freevars.index(node.id)].cell_contents
            except ValueError:  # nothing is assigned to it yet
                return None
        return outside.get(node.id, getattr(builtins, node.id, None))


def _is_plain(value: object) -> bool:
    """Return whether what a name from outside stands for is a number, or made of numbers alone."""
    if isinstance(value, tuple):
        return len(value) > 0 and all(map(_is_plain, value))
    return isinstance(value, (*_NUMBERS, np.ndarray)) or _home(value).startswith("numba.cuda")


def _returned(function: object, given: Iterable[_Parts]) -> _Parts:
    """Return what a function makes of values of which it gives no part back."""
    home = _home(function)
    is_arithmetic = function in _ARITHMETIC or isinstance(function, np.ufunc)
    if (
        function in _COUNTS
        or (isinstance(function, type) and issubclass(function, (np.number, np.bool_)))
        or home == "math"
        or home.startswith(("numba.cuda", "numba.core.types"))
        or (is_arithmetic and not any(_UNKNOWN in parts for parts in given))
    ):
        return {}
    return {_UNKNOWN: math.inf}


def _is_atomic(value: object) -> bool:
    """Return whether a value is one of ``cuda.atomic``, whose first argument is the array."""
    name = getattr(value, "__qualname__", "")
    return _home(value).startswith("numba.cuda") and name.startswith("atomic.")


def _home(value: object) -> str:
    return getattr(value, "__module__", None) or ""
