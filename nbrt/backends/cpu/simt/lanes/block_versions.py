"""Two versions of a block function: for blocks inside of all limits of indices, and others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes import block
from nbrt.backends.cpu.simt.lanes.analysis.limits import find_limits
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError, ThreadIR
from nbrt.backends.cpu.simt.llvm.parse import parse_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.analysis.limits import Limits

__all__ = ["lanes_versions"]

_VERSIONS = "limits of indices (min, max): {}; blocks where they change no index run without them"
_UNKNOWN = "limits of indices that depend on what threads load or count, with gathers: {}"
_OVERFLOW = re.compile(r"@llvm\.\w+\.with\.overflow\.(i\d+)")


def lanes_versions(
    code: ThreadIR, simplified: Callable[[ThreadIR], ThreadIR]
) -> tuple[list[str], list[str]]:
    """Lower a thread to a block function of vector code, with a version for inner blocks if useful.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    simplified : callable
        Runs LLVM's passes on a thread again.

    Returns
    -------
    modules : list of str
        The first defines ``@<name>.lanes``.
    notes : list of str
        The versions, the rules that applied, and what stood in the way of others.

    Raises
    ------
    CannotLowerError
        If lanes cannot run the thread in step.
    """
    limits, unknown = find_limits(code)
    notes = [_UNKNOWN.format(unknown)] if unknown else []
    if limits is None:
        return [block.lanes_block(code, notes=notes)], notes
    edge = block.lanes_block(code, f"{code.name}.edge.lanes")
    rules: list[str] = [_VERSIONS.format(limits.count)]
    try:
        thread = simplified(ThreadIR(limits.thread, code.name, code.block))
        inner = block.lanes_block(thread, f"{code.name}.inner.lanes", notes=rules)
    except CannotLowerError:
        return [block.lanes_block(code, notes=notes)], notes
    return [f"{edge}\n{_choice(code, limits, edge)}", inner], [*rules, *notes]


def _choice(code: ThreadIR, limits: Limits, outer: str) -> str:
    """Return a block function that calls one of the versions."""
    parameters = block.block_parameters(parse_function(code.module, code.name))
    declared = block.declared_symbols(outer)
    lines = [f"declare i32 @{code.name}.inner.lanes({parameters})"]
    used = {(match[0][1:], match[1]) for line in limits.test for match in _OVERFLOW.finditer(line)}
    for symbol, kind in sorted(used):
        if symbol not in declared:
            lines.append(f"declare {{ {kind}, i1 }} @{symbol}({kind}, {kind})")
    lines.append(f"define i32 @{code.name}.lanes({parameters}) {{")
    lines += ["entry:", *(f"  {line}" for line in limits.test)]
    lines.append(f"  br i1 {limits.holds}, label %inner, label %edge")
    for version in ("inner", "edge"):
        lines.append(f"{version}:")
        lines.append(f"  %nbrt.{version} = call i32 @{code.name}.{version}.lanes({parameters})")
        lines.append(f"  ret i32 %nbrt.{version}")
    return "\n".join([*lines, "}"])
