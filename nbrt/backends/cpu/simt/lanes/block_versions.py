"""Two versions of a block function.

One is for blocks inside of all limits of indices, or for arguments with which all threads run the
same iterations of loops. The other is for all other blocks.

Neighbouring blocks that need the same version may run in one call, as a strip.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from nbrt.backends.cpu.simt.lanes import block
from nbrt.backends.cpu.simt.lanes.analysis.limits import find_limits
from nbrt.backends.cpu.simt.lanes.analysis.whole_iterations import find_whole_iterations
from nbrt.backends.cpu.simt.lanes.block_strips import block_index
from nbrt.backends.cpu.simt.lanes.signatures import block_parameters, declared_symbols
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError, ThreadIR, renamed
from nbrt.backends.cpu.simt.llvm.parse import parse_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.lanes.analysis.special_threads import SpecialThread

__all__ = ["Versions", "lanes_versions"]

_ONE_BY_ONE = "blocks run one by one, though strips of blocks would have longer runs of memory: {}"
_UNKNOWN = "limits of indices that depend on what threads load or count, with gathers: {}"
_OVERFLOW = re.compile(r"@llvm\.\w+\.with\.overflow\.(i\d+)")


class Versions(NamedTuple):
    """A block function.

    Attributes
    ----------
    modules : list of str
        The first defines the block function.
    symbol : str
        Its name.
    notes : list of str
        The versions, the rules that applied, and what stood in the way of others.
    strip : int
        Maximum number of neighbouring blocks that a call runs. If it is not 1, the block function
        has a last parameter, their number.
    """

    modules: list[str]
    symbol: str
    notes: list[str]
    strip: int


def lanes_versions(
    code: ThreadIR, simplified: Callable[[ThreadIR], ThreadIR], register_bytes: int
) -> Versions:
    """Lower a thread to a block function of vector code, with two versions if useful.

    One is for inner blocks, or for loops in which all threads run the same iterations.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    simplified : callable
        Runs LLVM's passes on a thread again.
    register_bytes : int
        Size of all vector registers.

    Returns
    -------
    Versions
        The block function.

    Raises
    ------
    CannotLowerError
        If lanes cannot run the thread in step.
    """
    strip, obstacle = block.longest_strip(code)
    if strip > 1:
        try:
            return _versions(code, simplified, strip, register_bytes)
        except CannotLowerError as error:
            obstacle = str(error)
    found = _versions(code, simplified, 1, register_bytes)
    return found._replace(notes=[*found.notes, _ONE_BY_ONE.format(obstacle)]) if obstacle else found


def _versions(
    code: ThreadIR,
    simplified: Callable[[ThreadIR], ThreadIR],
    strip: int,
    register_bytes: int,
) -> Versions:
    symbol = f"{code.name}.{'strip' if strip > 1 else 'lanes'}"
    special, unknown = find_limits(code)
    notes = [_UNKNOWN.format(unknown)] if unknown else []
    if special is None:
        special = find_whole_iterations(code, register_bytes)
    if special is not None:
        edge = block.lanes_block(code, f"{symbol}.edge", strip=strip)
        rules: list[str] = [special.note]
        try:
            thread = simplified(ThreadIR(special.module, code.name, code.block))
            inner = block.lanes_block(thread, f"{symbol}.inner", notes=rules, strip=strip)
        except CannotLowerError:
            pass
        else:
            choice = _choice(code, symbol, special, edge, strip)
            return Versions([f"{edge}\n{choice}", inner], symbol, [*rules, *notes], strip)
    return Versions(
        [block.lanes_block(code, symbol, notes=notes, strip=strip)], symbol, notes, strip
    )


def _choice(code: ThreadIR, symbol: str, special: SpecialThread, outer: str, strip: int) -> str:
    """Return a block function that calls one of the versions."""
    function = parse_function(code.module, code.name)
    parameters = block_parameters(function, strip)
    declared = declared_symbols(outer)
    lines = [f"declare i32 @{symbol}.inner({parameters})"]
    used = {(match[0][1:], match[1]) for line in special.test for match in _OVERFLOW.finditer(line)}
    for operation, kind in sorted(used):
        if operation not in declared:
            lines.append(f"declare {{ {kind}, i1 }} @{operation}({kind}, {kind})")
    lines.append(f"define i32 @{symbol}({parameters}) {{")
    if strip > 1:
        index = block_index(function)
        lines += _strip_loop(symbol, special, parameters, index)
        return "\n".join([*lines, "}"])
    lines += ["entry:", *(f"  {line}" for line in special.test)]
    lines.append(f"  br i1 {special.holds}, label %inner, label %edge")
    for version in ("inner", "edge"):
        lines.append(f"{version}:")
        lines.append(f"  %nbrt.{version} = call i32 @{symbol}.{version}({parameters})")
        lines.append(f"  ret i32 %nbrt.{version}")
    return "\n".join([*lines, "}"])


def _strip_loop(symbol: str, special: SpecialThread, parameters: str, index: str) -> list[str]:
    """Return the body of a function that calls a version for each run of blocks that need it.

    `index` is the parameter ``blockIdx.x``.
    """
    test = "\n  ".join(renamed(line, {index: "%nbrt.index"}) for line in special.test)
    arguments = renamed(parameters, {index: "%nbrt.start", "%nbrt.blocks": "%nbrt.count"})
    body = f"""entry:
  br label %run
run:
  %nbrt.first = phi i64 [ 0, %entry ], [ %nbrt.at, %ran ]
  br label %test
test:
  %nbrt.at = phi i64 [ %nbrt.first, %run ], [ %nbrt.next, %same ]
  %nbrt.before = phi i1 [ false, %run ], [ {special.holds}, %same ]
  %nbrt.end = icmp eq i64 %nbrt.at, %nbrt.blocks
  br i1 %nbrt.end, label %call, label %decide
decide:
  %nbrt.narrow = trunc i64 %nbrt.at to i32
  %nbrt.index = add i32 {index}, %nbrt.narrow
  {test}
  %nbrt.begins = icmp eq i64 %nbrt.at, %nbrt.first
  %nbrt.equals = icmp eq i1 %nbrt.before, {special.holds}
  %nbrt.belongs = or i1 %nbrt.begins, %nbrt.equals
  br i1 %nbrt.belongs, label %same, label %call
same:
  %nbrt.next = add i64 %nbrt.at, 1
  br label %test
call:
  %nbrt.count = sub i64 %nbrt.at, %nbrt.first
  %nbrt.skipped = trunc i64 %nbrt.first to i32
  %nbrt.start = add i32 {index}, %nbrt.skipped
  br i1 %nbrt.before, label %inner, label %edge
inner:
  %nbrt.inner = call i32 @{symbol}.inner({arguments})
  br label %called
edge:
  %nbrt.edge = call i32 @{symbol}.edge({arguments})
  br label %called
called:
  %nbrt.code = phi i32 [ %nbrt.inner, %inner ], [ %nbrt.edge, %edge ]
  %nbrt.goes = icmp eq i32 %nbrt.code, 0
  br i1 %nbrt.goes, label %ran, label %leave
ran:
  %nbrt.done = icmp eq i64 %nbrt.at, %nbrt.blocks
  br i1 %nbrt.done, label %leave, label %run
leave:
  ret i32 %nbrt.code"""
    return body.splitlines()
