"""Sites: places in the source of a kernel, as reports name them."""

from __future__ import annotations

import linecache
import operator
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from numba.core import ir

__all__ = ["Site", "SiteKind", "SiteTable", "spell", "table"]

_MAX_SITES = 0xFFFF
_MAX_LENGTH = 60

_BINARY = {
    operator.add: "+",
    operator.iadd: "+",
    operator.sub: "-",
    operator.isub: "-",
    operator.mul: "*",
    operator.imul: "*",
    operator.floordiv: "//",
    operator.ifloordiv: "//",
    operator.truediv: "/",
    operator.mod: "%",
    operator.imod: "%",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
}


class SiteKind(StrEnum):
    """The operation at a site."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"
    ARITHMETIC = "arithmetic"
    LOCAL = "local array"
    SHARED = "shared array"
    BARRIER = "barrier"
    WARP = "warp operation"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Site:
    """An operation in a kernel or device function; the source spells `variable` and `index`."""

    kind: SiteKind
    function: str
    file: str
    line: int
    variable: str = ""
    index: str = ""
    detail: tuple[Any, ...] = ()
    """Element type, shape and bytes of a local or shared array; bytes of a view's elements."""

    @property
    def shown(self) -> dict[str, Any]:
        """The place as fields of a report; the source line is empty if it cannot be read."""
        source = linecache.getline(self.file, self.line).strip()
        names = ("file", "line", "variable", "index")
        return {**{name: getattr(self, name) for name in names}, "source": source}


class SiteTable:
    """The sites of the process, by the number that compiled code refers to."""

    def __init__(self) -> None:
        self._sites: list[Site] = []
        self._lock = threading.Lock()

    def add(self, site: Site) -> int:
        """Add a site and return its number; the last number stands for all further sites."""
        with self._lock:
            if len(self._sites) < _MAX_SITES:
                self._sites.append(site)
            return len(self._sites) - 1

    def __getitem__(self, number: int) -> Site:
        return self._sites[number]


table = SiteTable()


def spell(func_ir: Any, variable: Any, depth: int = 8) -> str:
    """Return an IR variable as the source spells it; ``...`` for a long or unknown expression.

    `depth` limits how many expressions are nested.
    """
    name = variable.unversioned_name
    if not name.startswith("$"):
        return str(name)
    definitions = func_ir._definitions.get(variable.name, [])
    if len(definitions) != 1 or depth == 0:
        return "..."
    text = _spell_value(func_ir, definitions[0], depth - 1)
    return text if len(text) <= _MAX_LENGTH else "..."


def _spell_value(func_ir: Any, value: Any, depth: int) -> str:
    def spelled(variable: Any) -> str:
        return spell(func_ir, variable, depth)

    if isinstance(value, ir.Var):
        return spelled(value)
    if isinstance(value, ir.Const):
        return repr(value.value)
    if isinstance(value, (ir.Global, ir.FreeVar, ir.Arg)):
        return str(value.name)
    if not isinstance(value, ir.Expr):
        return "..."
    if value.op in ("binop", "inplace_binop") and value.fn in _BINARY:
        return f"{spelled(value.lhs)} {_BINARY[value.fn]} {spelled(value.rhs)}"
    if value.op == "unary":
        sign = {operator.neg: "-", operator.invert: "~"}.get(value.fn, "")
        return f"{sign}{spelled(value.value)}"
    if value.op in ("build_tuple", "build_list"):
        return ", ".join(spelled(item) for item in value.items)
    if value.op == "getattr":
        owner = "cuda" if value.value.name == "__simt__" else spelled(value.value)
        return f"{owner}.{value.attr}"
    if value.op == "static_getitem":
        return f"{spelled(value.value)}[{value.index!r}]"
    if value.op == "getitem":
        return f"{spelled(value.value)}[{spelled(value.index)}]"
    if value.op == "call":
        return f"{spelled(value.func)}({', '.join(spelled(argument) for argument in value.args)})"
    if value.op in ("cast", "exhaust_iter"):
        return spelled(value.value)
    return "..."
