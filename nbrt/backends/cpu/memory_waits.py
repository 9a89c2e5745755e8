"""`may_wait_for_memory`: whether a kernel may run until its caller or another stream writes memory.

Such a launch must not run in the thread that submits it, which may be the one that writes.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
import types
from typing import TYPE_CHECKING, Any, TypeGuard

from nbrt.backends.captures import is_device_function
from nbrt.backends.dialect import dialect_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["may_wait_for_memory"]

_PURE = (abs, min, max, len, round, pow, divmod)
"""Further functions are those of `math`, and types as conversions."""

_PURE_OF_DIALECT = frozenset(["grid", "gridsize", "syncthreads"])
_LIBRARIES = ("numpy", "numba", "llvmlite", "math", "operator")


def may_wait_for_memory(function: types.FunctionType) -> bool:
    """Return whether a kernel may have a loop that ends only when memory changes.

    A loop over a range or an array ends by itself. The end of a ``while`` loop may depend on memory
    if it depends on the element of an array or on the result of a function, by the values or the
    conditions of assignments in the loop. True may be wrong, False is not.

    Parameters
    ----------
    function : function
        The kernel. The device functions that it calls are examined, too. A function without source
        text may have any loop.
    """
    pending, seen = [function], set[types.CodeType]()
    while pending:
        current = pending.pop()
        if current.__code__ in seen:
            continue
        seen.add(current.__code__)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(current.__code__)))
        except (OSError, TypeError, SyntaxError):
            return True
        names = _Names(current)
        if any(_waits(loop, names) for loop in ast.walk(tree) if isinstance(loop, ast.While)):
            return True
        for call in _calls(tree):
            callee = names.value(call.func)
            if is_device_function(callee):
                pending.append(callee.py_func)
            elif _is_unknown(callee):
                return True
    return False


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls in the body of a function, not those of its decorators and defaults."""
    for statement in getattr(tree.body[0], "body", tree.body):
        nodes = ast.walk(statement) if isinstance(statement, ast.AST) else ()
        yield from (node for node in nodes if isinstance(node, ast.Call))


def _is_unknown(callee: object) -> bool:
    """Return whether a callee may be the name of an overload, whose code is not examined."""
    if not isinstance(callee, types.FunctionType) or dialect_name(callee) is not None:
        return False
    return not callee.__module__.startswith(_LIBRARIES)


class _Names:
    """The values of the names in a function."""

    def __init__(self, function: types.FunctionType) -> None:
        self._globals = function.__globals__
        self._cells = dict(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )

    def value(self, node: ast.expr) -> Any:
        """Return the value of a name, or of an attribute of one; None if it is a local variable."""
        if isinstance(node, ast.Attribute):
            return getattr(self.value(node.value), node.attr, None)
        if not isinstance(node, ast.Name):
            return None
        if node.id in self._cells:
            try:
                return self._cells[node.id].cell_contents
            except ValueError:  # not assigned yet
                return None
        return self._globals.get(node.id, getattr(builtins, node.id, None))


def _waits(loop: ast.While, names: _Names) -> bool:
    """Return whether the end of a loop may depend on memory."""
    nodes = list(ast.walk(loop))
    if any(isinstance(node, (ast.Match, ast.Try, ast.With)) for node in nodes):
        return True
    ends = [loop.test, *(node.test for node in nodes if _leaves(node))]
    if all(isinstance(end, ast.Constant) for end in ends):
        return True
    dependent = _dependent_names(loop, names)
    return any(_depends(end, dependent, names) for end in ends)


def _leaves(node: ast.AST) -> TypeGuard[ast.If]:
    """Return whether a condition decides on leaving a loop."""
    is_end = (isinstance(inner, (ast.Break, ast.Return)) for inner in ast.walk(node))
    return isinstance(node, ast.If) and any(is_end)


def _dependent_names(loop: ast.While, names: _Names) -> set[str]:
    """Return the local variables that a loop assigns and whose values may depend on memory."""
    found: set[str] = set()
    while True:
        before = len(found)
        _add_dependent(loop.body, found, names, is_conditional=False)
        if len(found) == before:
            return found


def _add_dependent(
    statements: Iterable[ast.AST], found: set[str], names: _Names, *, is_conditional: bool
) -> None:
    """Add the variables that statements assign; `is_conditional`: memory decides on them."""
    for statement in statements:
        depends = is_conditional
        if isinstance(statement, (ast.If, ast.While)):
            depends = depends or _depends(statement.test, found, names)
        elif isinstance(statement, ast.For):
            # The elements of an array are memory.
            depends = depends or not _is_range(statement.iter, found, names)
            if depends:
                found.update(_stored(statement.target))
        elif depends or _depends(statement, found, names):
            found.update(_stored(statement))
            continue
        inner = [*getattr(statement, "body", ()), *getattr(statement, "orelse", ())]
        _add_dependent(inner, found, names, is_conditional=depends)


def _is_range(node: ast.expr, found: set[str], names: _Names) -> bool:
    is_call = isinstance(node, ast.Call) and names.value(node.func) is range
    return is_call and not _depends(node, found, names)


def _stored(node: ast.AST) -> set[str]:
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }


def _depends(node: ast.AST, dependent: set[str], names: _Names) -> bool:
    """Return whether the value of an expression, or of a statement's, may depend on memory."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Subscript):
            if isinstance(inner.ctx, ast.Load):
                return True
        elif isinstance(inner, ast.Name):
            if isinstance(inner.ctx, ast.Load) and inner.id in dependent:
                return True
        elif isinstance(inner, ast.Call):
            if not _is_pure(names.value(inner.func)):
                return True
        elif isinstance(inner, ast.NamedExpr):
            return True
    return False


def _is_pure(callee: object) -> bool:
    """Return whether the result of a function depends on nothing but its arguments."""
    name = dialect_name(callee)
    if name is not None:  # its functions may be classes
        return name in _PURE_OF_DIALECT
    if isinstance(callee, type) or getattr(callee, "__module__", "") == math.__name__:
        return True
    return any(callee is pure for pure in _PURE)
