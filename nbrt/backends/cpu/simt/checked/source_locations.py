"""Sites: the places in a kernel that reports name, and how its source reads there."""

from __future__ import annotations

import linecache
import operator
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba.core import ir

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.checked.kinds import SiteKind

__all__ = ["Site", "SiteTable", "spell", "table"]

_MAX_SITES = 0xFFFF
_LONGEST = 60

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


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a kernel or device function.

    Attributes
    ----------
    kind : SiteKind
        What stands there.
    function, file, line
        Where it is.
    variable : str
        The array, as the source spells it.
    index : str
        The index, as the source spells it.
    detail : tuple
        Of an array that the kernel makes: its element type, shape and size in bytes.
    """

    kind: SiteKind
    function: str
    file: str
    line: int
    variable: str = ""
    index: str = ""
    detail: tuple[Any, ...] = ()

    @property
    def source(self) -> str:
        """The line of source, if it can still be read."""
        return linecache.getline(self.file, self.line).strip()


class SiteTable:
    """All sites of a process, by number: what compiled code refers to."""

    def __init__(self) -> None:
        self._sites: list[Site] = []
        self._lock = threading.Lock()

    def add(self, site: Site) -> int:
        """Enter a site; the last number stands for all that there is no number for."""
        with self._lock:
            if len(self._sites) < _MAX_SITES:
                self._sites.append(site)
            return len(self._sites) - 1

    def __getitem__(self, number: int) -> Site:
        return self._sites[number]


table = SiteTable()


def spell(func_ir: Any, variable: Any, depth: int = 8) -> str:
    """Write an IR variable as the source has it, as far as that can be told.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function.
    variable : numba.core.ir.Var
        The variable.
    depth : int
        How deep to look into expressions.

    Returns
    -------
    str
        A name or an expression; ``...`` where it is too involved.
    """
    name = variable.unversioned_name
    if not name.startswith("$"):
        return str(name)
    definitions = func_ir._definitions.get(variable.name, [])
    if len(definitions) != 1 or depth == 0:
        return "..."
    text = _spell_value(func_ir, definitions[0], depth - 1)
    return text if len(text) <= _LONGEST else "..."


def _spell_value(func_ir: Any, value: Any, depth: int) -> str:
    if isinstance(value, ir.Var):
        return spell(func_ir, value, depth)
    if isinstance(value, ir.Const):
        return repr(value.value)
    if isinstance(value, (ir.Global, ir.FreeVar)):
        return str(value.name)
    if isinstance(value, ir.Arg):
        return str(value.name)
    if isinstance(value, ir.Expr):
        return _spell_expression(func_ir, value, depth)
    return "..."


def _spell_expression(func_ir: Any, value: Any, depth: int) -> str:
    def one(variable: Any) -> str:
        return spell(func_ir, variable, depth)

    if value.op in ("binop", "inplace_binop") and value.fn in _BINARY:
        return f"{one(value.lhs)} {_BINARY[value.fn]} {one(value.rhs)}"
    if value.op == "unary":
        sign = {operator.neg: "-", operator.invert: "~"}.get(value.fn, "")
        return f"{sign}{one(value.value)}"
    if value.op in ("build_tuple", "build_list"):
        return ", ".join(one(item) for item in value.items)
    if value.op == "getattr":
        owner = "cuda" if value.value.name == "__simt__" else one(value.value)
        return f"{owner}.{value.attr}"
    if value.op == "static_getitem":
        return f"{one(value.value)}[{value.index!r}]"
    if value.op == "getitem":
        return f"{one(value.value)}[{one(value.index)}]"
    if value.op == "call":
        return f"{one(value.func)}({', '.join(one(argument) for argument in value.args)})"
    if value.op in ("cast", "exhaust_iter"):
        return one(value.value)
    return "..."
