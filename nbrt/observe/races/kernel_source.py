"""`tree_of`: the syntax tree of a function, if its source file has not changed."""

from __future__ import annotations

import ast
import linecache
import warnings
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

__all__ = ["tree_of"]


def tree_of(function: FunctionType) -> ast.FunctionDef | None:
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
    if not any(_is_same(code, each) for each in _codes(compiled)):
        return None
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _is_same(code: CodeType, other: CodeType) -> bool:
    names = ("co_firstlineno", "co_name", "co_code", "co_names", "co_varnames", "co_freevars")
    return all(getattr(code, name) == getattr(other, name) for name in names)
