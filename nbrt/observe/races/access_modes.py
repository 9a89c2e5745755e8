"""`argument_access_modes`: how a kernel accesses its array arguments, from its source.

A kernel has no pointers: it writes memory by assignments to elements, by atomic operations, and in
functions that receive an array. A walk over the syntax tree that follows names, views and device
functions therefore proves that most arguments are only read. An unknown construct counts as a use
that may write. An indexed value is a possible view of its array until it has taken as many indices
as the array has dimensions. Only a value that is known to be a number counts as such an index.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import threading
import warnings
import weakref
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nbrt.observe.races.shadow_blocks import AccessMode

__all__ = ["argument_access_modes"]

_RANKS: dict[AccessMode, int] = {"reads": 0, "updates": 1, "uses": 2, "writes": 3}

_NO_ELEMENTS = frozenset({"dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"})
"""Attributes of an array that do not give access to its memory."""

_HARMLESS = (
    ast.Assert, ast.BinOp, ast.Break, ast.Compare, ast.Continue, ast.Expr, ast.If, ast.Pass,
    ast.Raise, ast.Slice, ast.UnaryOp, ast.While, ast.boolop, ast.cmpop, ast.operator, ast.unaryop,
)  # fmt: skip
"""Nodes that only read, and whose value is not part of an array."""

_NUMBERS = (int, float, complex, np.number, np.bool_)

_COUNTS = (int, len, range)
"""Functions that always return numbers."""

_ARITHMETIC = (abs, divmod, float, max, min, pow, round, sum)
"""Functions that return numbers for numbers."""

_Parts: TypeAlias = dict[str, float]
"""The parameters that a value may be a part of, with the number of indices down to an element.

Empty for numbers and for containers of numbers.
"""

_UNKNOWN = ""
"""The key in `_Parts` for any other value, such as a slice, or None, which adds an axis."""

_summaries: weakref.WeakKeyDictionary[FunctionType, dict[tuple[float, ...], _AccessSummary | None]]
_summaries = weakref.WeakKeyDictionary()
_lock = threading.RLock()


class _AccessSummary(NamedTuple):
    """The accesses of a function to its arguments, and its return value."""

    modes: list[AccessMode | None]
    """None for an argument of which no element is read."""
    returned: list[float]
    """For each argument, the indices from the return value down to an element; 0 if unrelated."""
    unknown: _Parts
    """The part of the return value that comes from no argument."""


def argument_access_modes(kernel: object, arguments: Sequence[object]) -> list[AccessMode]:
    """Return how a kernel may access each of its arguments.

    Parameters
    ----------
    kernel : object
        A Python function, or an object with one as `py_func`.
    arguments : sequence
        The arguments of the launch; only their numbers of dimensions matter.

    Returns
    -------
    modes : list of str
        For each argument ``"reads"``, ``"updates"`` (only by atomic operations; an array that is
        also read counts as written), ``"writes"``, or ``"uses"`` if the source is missing or
        inconclusive.

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
    summary = None
    if isinstance(function, FunctionType):
        with _lock:
            summary = _access_summary(function, tuple(map(_depth, arguments)))
    if summary is None:
        return ["uses"] * len(arguments)
    return [mode or "reads" for mode in summary.modes]


def _depth(argument: Any) -> float:
    """Return the number of indices down to a number; a field of a record counts as an index."""
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
    """Return the summary of a function for arguments of such depths; None if it is unknown."""
    summaries = _summaries.setdefault(function, {})
    if depths not in summaries:
        summaries[depths] = None  # for a recursive function
        tree = _tree_of(function)
        names = _names(function, len(depths))
        if tree is not None and len(names) == len(depths):
            visitor = _AccessVisitor(function, names, depths)
            visitor.run(tree)
            summaries[depths] = _AccessSummary(
                [visitor.modes.get(name) for name in names],
                [visitor.returned.get(name, 0) for name in names],
                _unknown(visitor.returned),
            )
    return summaries[depths]


def _tree_of(function: FunctionType) -> ast.FunctionDef | None:
    """Return the definition of a function; None if its source is missing or has changed."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # issued already when Python compiled the file
            module = ast.parse(text)
            compiled = compile(
                module, code.co_filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
    except (SyntaxError, ValueError):
        return None
    if not any(_is_same(code, each) for each in _inner_codes(compiled)):
        return None
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inner_codes(each)


def _is_same(code: CodeType, other: CodeType) -> bool:
    names = ("co_firstlineno", "co_name", "co_code", "co_names", "co_varnames", "co_freevars")
    return all(getattr(code, name) == getattr(other, name) for name in names)


def _names(function: FunctionType, count: int) -> list[str]:
    """Return the parameters of the first `count` arguments; a starred one takes the rest."""
    code = function.__code__
    names = list(code.co_varnames[: code.co_argcount])
    if code.co_flags & inspect.CO_VARARGS:
        names += [code.co_varnames[code.co_argcount + code.co_kwonlyargcount]] * count
    return names[:count]


def _merge(parts: _Parts, more: _Parts) -> None:
    """Add possible parts; a depth that grows between passes becomes infinite, so passes end."""
    for name, depth in more.items():
        if depth > 0:
            grows = name in parts and depth > parts[name]
            parts[name] = math.inf if grows else max(depth, parts.get(name, 0))


def _deeper(parts: _Parts, steps: float) -> _Parts:
    """Return the parts after `-steps` indices, or for `steps` above 0, inside as many tuples."""
    return {name: depth + steps for name, depth in parts.items() if depth + steps > 0}


def _unknown(parts: _Parts) -> _Parts:
    """Return the unknown part of a value."""
    return dict.fromkeys(parts.keys() & {_UNKNOWN}, math.inf)


class _AccessVisitor(ast.NodeVisitor):
    """A visitor of one function, which collects the access modes of its parameters.

    Visiting an expression returns the `_Parts` of its value.
    """

    def __init__(
        self, function: FunctionType, names: Sequence[str], depths: Sequence[float]
    ) -> None:
        self.modes: dict[str, AccessMode] = {}
        self.returned: _Parts = {}
        self._function = function
        self._locals: dict[str, _Parts] = {}
        for index, (name, depth) in enumerate(zip(names, depths, strict=True)):
            is_in_tuple = index >= function.__code__.co_argcount
            _merge(self._locals.setdefault(name, {}), {name: depth + is_in_tuple})

    def run(self, tree: ast.FunctionDef) -> None:
        """Visit until nothing changes: a loop carries values from its end to its start."""
        before = ""
        while before != (now := repr((self.modes, self.returned, self._locals))):
            before = now
            for statement in tree.body:
                self.visit(statement)

    def _record(self, mode: AccessMode, parts: Iterable[str]) -> None:
        for name in parts:
            before = self.modes.get(name, mode)
            if {before, mode} == {"reads", "updates"}:
                self.modes[name] = "writes"  # plain reads are not ordered with atomic operations
            else:
                self.modes[name] = max(before, mode, key=_RANKS.__getitem__)

    def _bind(self, target: ast.expr, parts: _Parts) -> None:
        """Assign to a name, to several, or to an element."""
        if isinstance(target, ast.Name):
            _merge(self._locals.setdefault(target.id, {}), parts)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._bind(element, self._element(parts, 1))
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            self._record("writes", self.visit(target.value))
            self._record("reads", parts)
            if isinstance(target, ast.Subscript):
                self._indices(target.slice)
        else:
            self._record("uses", parts)

    # -- statements --------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        """Handle ``a = b = x``, and ``a, b = x, y`` element by element."""
        for target in node.targets:
            if (
                isinstance(target, ast.Tuple)
                and isinstance(node.value, ast.Tuple)
                and len(target.elts) == len(node.value.elts)
            ):
                for element, value in zip(target.elts, node.value.elts, strict=True):
                    self._bind(element, self.visit(value))
            else:
                self._bind(target, self.visit(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Handle ``a: int32 = x``."""
        if node.value is not None:
            self._bind(node.target, self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Handle ``a += x``, which works in place for an array."""
        parts: _Parts = self.visit(node.value)
        self._record("reads", parts)
        if isinstance(node.target, ast.Name):
            self._record("writes", self._locals.get(node.target.id, ()))
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
        """Handle ``x.T`` and fields of records."""
        parts: _Parts = self.visit(node.value)
        is_plain = node.attr in _NO_ELEMENTS or any(
            _is_plain(self._meaning(name)) for name in (node, node.value)
        )
        return {} if is_plain else parts

    def visit_Subscript(self, node: ast.Subscript) -> _Parts:
        """Handle ``x[i]``, ``x[i, :]``."""
        return self._element(self.visit(node.value), self._indices(node.slice))

    def visit_Tuple(self, node: ast.Tuple) -> _Parts:
        """Handle ``(x, y)``."""
        parts: _Parts = {} if node.elts else {_UNKNOWN: math.inf}
        for element in node.elts:
            _merge(parts, _deeper(self.visit(element), 1))
        return parts

    def visit_IfExp(self, node: ast.IfExp) -> _Parts:
        """Handle ``x if a else y``."""
        self.visit(node.test)
        return self._any_of([node.body, node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> _Parts:
        """Handle ``x or y``."""
        return self._any_of(node.values)

    def visit_Call(self, node: ast.Call) -> _Parts:
        """Handle a call of a device function, an atomic operation or an unknown function."""
        self._record("uses", self.visit(node.func))  # a method
        callee = self._meaning(node.func)
        args: list[_Parts] = [self.visit(argument) for argument in node.args]
        kwargs: list[_Parts] = [self.visit(keyword.value) for keyword in node.keywords]
        returned = _returned(callee, (*args, *kwargs))
        if callee is len:
            return returned
        if _is_atomic(callee):
            self._record("updates", args[0] if args else ())
            args = args[1:]
        elif not any(kwargs):
            inner = getattr(callee, "py_func", None)
            depths = tuple(max(parts.values(), default=0) for parts in args)
            summary = _access_summary(inner, depths) if isinstance(inner, FunctionType) else None
            if summary is not None:
                return self._apply(summary, args)
        for parts in (*args, *kwargs):
            self._record("uses", parts)
        return returned

    def generic_visit(self, node: ast.AST) -> _Parts:
        """Handle other nodes: an unknown one may do anything with the names in it."""
        if isinstance(node, _HARMLESS):
            read: _Parts = {}
            for child in ast.iter_child_nodes(node):
                _merge(read, self.visit(child) or {})
            self._record("reads", read)
            return _unknown(read)
        for name in ast.walk(node):
            if isinstance(name, ast.Name):
                self._record("uses", self._locals.get(name.id, ()))
                if isinstance(name.ctx, ast.Store):
                    _merge(self._locals.setdefault(name.id, {}), {_UNKNOWN: math.inf})
        return {_UNKNOWN: math.inf}

    def _indices(self, node: ast.expr) -> float:
        """Return how many dimensions an index removes; any value but a number may add some."""
        if isinstance(node, ast.Tuple):
            return sum(map(self._indices, node.elts))
        parts = self.visit(node)
        literal = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Slice) or literal is ...:
            return 0
        is_field = isinstance(literal, str)
        return 1 if is_field or not parts else -math.inf

    def _element(self, parts: _Parts, indices: float) -> _Parts:
        """Return the parts after an index; parts that are elements now are read."""
        views = _deeper(parts, -indices)
        self._record("reads", parts.keys() - views.keys())
        return views

    def _any_of(self, nodes: Iterable[ast.expr]) -> _Parts:
        parts: _Parts = {}
        for node in nodes:
            _merge(parts, self.visit(node))
        return parts

    def _apply(self, summary: _AccessSummary, args: Sequence[_Parts]) -> _Parts:
        """Record the accesses of a device function; return the parts of its return value."""
        returned = dict(summary.unknown)
        for mode, depth, parts in zip(summary.modes, summary.returned, args, strict=True):
            if mode is not None:
                self._record(mode, parts)
            _merge(returned, dict.fromkeys(parts, depth))
        return returned

    def _meaning(self, node: ast.expr) -> Any:
        """Return the value of an expression of global or closure names, or None."""
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
            except ValueError:  # not assigned yet
                return None
        return outside.get(node.id, getattr(builtins, node.id, None))


def _is_plain(value: object) -> bool:
    """Return whether a global value is a number, or consists of numbers."""
    if isinstance(value, tuple):
        return len(value) > 0 and all(map(_is_plain, value))
    return isinstance(value, (*_NUMBERS, np.ndarray)) or _home(value).startswith("numba.cuda")


def _returned(function: object, args: Iterable[_Parts]) -> _Parts:
    """Return the parts of the return value of a function that returns no part of its arguments."""
    home = _home(function)
    is_arithmetic = function in _ARITHMETIC or isinstance(function, np.ufunc)
    if (
        function in _COUNTS
        or (isinstance(function, type) and issubclass(function, (np.number, np.bool_)))
        or home == "math"
        or home.startswith(("numba.cuda", "numba.core.types"))
        or (is_arithmetic and not any(_UNKNOWN in parts for parts in args))
    ):
        return {}
    return {_UNKNOWN: math.inf}


def _is_atomic(value: object) -> bool:
    """Return whether a value is a function of ``cuda.atomic``; its first argument is the array."""
    name = getattr(value, "__qualname__", "")
    return _home(value).startswith("numba.cuda") and name.startswith("atomic.")


def _home(value: object) -> str:
    return getattr(value, "__module__", None) or ""
