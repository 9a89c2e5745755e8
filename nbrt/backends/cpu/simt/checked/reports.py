"""Reports of checked mode: rows that the shadow runtime wrote, as objects with readable text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.cpu.simt.checked.layout import Kind
from nbrt.backends.cpu.simt.checked.probes import FLAT, HUGE, TUPLE
from nbrt.backends.cpu.simt.checked.source_locations import Site, SiteKind, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.checked.memory import Argument

__all__ = ["CheckReport", "Party", "Reader", "unravelled"]

Dim3 = tuple[int, int, int]

_WHOLE = {FLAT: ("array", "{}.size"), TUPLE: ("tuple", "len({})")}
_NO_SITE = 0xFFFF
_GRID_BARRIER = 2
_MAX_BITS = 64

_VERBS = {
    SiteKind.READ: "read",
    SiteKind.WRITE: "written",
    SiteKind.ATOMIC: "updated atomically",
}


@dataclass(frozen=True, slots=True)
class Party:
    """The other thread of a report.

    Attributes
    ----------
    access : str
        Its operation: ``read``, ``write``, ``atomic``, ``barrier`` or ``warp operation``; empty if
        the fault is that there was none.
    file, line, source, variable, index
        The place of the operation.
    block, thread : tuple of int
        The thread.
    """

    access: str
    file: str
    line: int
    source: str
    variable: str
    index: str
    block: Dim3
    thread: Dim3


@dataclass(frozen=True, slots=True)
class CheckReport:
    """One fault that checked mode found; ``str`` returns the whole text.

    Attributes
    ----------
    kind : str
        ``out_of_bounds``, ``negative_index``, ``index_overflow``, ``uninitialised``, ``race``,
        ``barrier``, ``warp``, ``dynamic_shared`` or ``limits``.
    kernel, function : str
        The kernel, and the function that contains the line.
    file, line, source : str, int, str
        The line, and its text if it can be read.
    variable, index : str
        The array and the index as the source spells them.
    position : tuple of int or None
        The element, if it is known.
    block, thread : tuple of int
        The thread with the fault; in a launch that is too large, the first thread beyond the limit.
    other : Party or None
        The other thread, if the fault involves two.
    message, advice : str
        The fault, and how to correct it.
    """

    kind: str
    kernel: str
    message: str
    advice: str
    function: str = ""
    file: str = ""
    line: int = 0
    source: str = ""
    variable: str = ""
    index: str = ""
    position: tuple[int, ...] | None = None
    block: Dim3 = (0, 0, 0)
    thread: Dim3 = (0, 0, 0)
    other: Party | None = None

    def __str__(self) -> str:
        lines = [f"{self.kind.replace('_', ' ')} in kernel {self.kernel}: {self.message}"]
        place = f"{self.file}:{self.line}, in {self.function}, " if self.file else ""
        lines.append(f"  {place}thread {self.thread} of block {self.block}")
        lines += [f"    {self.source}"] if self.source else []
        other = self.other
        if other is not None and other.file:
            lines.append(
                f"  {other.file}:{other.line}, thread {other.thread} of block {other.block}"
            )
            lines += [f"    {other.source}"] if other.source else []
        return "\n".join([*lines, f"  to mend it: {self.advice}"])


class Reader:
    """Converts the rows of a launch of `kernel` to reports; `arguments` are its arrays."""

    def __init__(self, kernel: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument]) -> None:
        self._kernel = kernel
        self._grid, self._block = grid, block
        self._arguments = arguments

    def read(self, row: tuple[int, ...]) -> CheckReport:
        """Return the report of one row."""
        code, number, thread, block, accessor, _, *figures = row
        kind, site = Kind(code), table[number]
        other = self._other(accessor)
        position = self._position(kind, figures)
        message, advice = _TEXTS[kind](_Fault(site, figures, other, _named(site, position)))
        return CheckReport(
            kind=kind.name.lower(),
            kernel=self._kernel,
            message=message,
            advice=advice,
            function=site.function,
            **site.shown,
            position=position,
            block=unravelled(block, self._grid),
            thread=unravelled(thread, self._block),
            other=other,
        )

    def _other(self, accessor: int) -> Party | None:
        if accessor == 0:
            return None
        block = unravelled((accessor >> 32) - 1, self._grid)
        thread = unravelled((accessor >> 17) & 0x7FF, self._block)
        number = accessor & 0xFFFF
        if number == _NO_SITE:
            return Party("", "", 0, "", "", "", block, thread)
        site = table[number]
        return Party(site.kind.value, **site.shown, block=block, thread=thread)

    def _position(self, kind: Kind, figures: list[int]) -> tuple[int, ...] | None:
        """Return the index of the element at an address."""
        if kind not in (Kind.RACE, Kind.UNINITIALISED):
            return (figures[0],) if kind in (Kind.OUT_OF_BOUNDS, Kind.NEGATIVE_INDEX) else None
        address, start, _, array_site = figures
        if kind is Kind.RACE and array_site == 0:
            positions = (argument.position(address) for argument in self._arguments)
            return next((position for position in positions if position is not None), None)
        _, extents, size = table[array_site - (kind is Kind.RACE)].detail
        count = int(np.prod(extents))
        if count == 0:
            return None
        flat = (address - start) * count // size
        return tuple(int(at) for at in np.unravel_index(flat, extents))


def unravelled(number: int, extents: Dim3) -> Dim3:
    """Return the index of a thread in a block, or of a block in a grid, with a number."""
    x, rest = number % extents[0], number // extents[0]
    return x, rest % extents[1], rest // extents[1]


def _named(site: Site, position: tuple[int, ...] | None) -> str:
    """Return the name of an element: ``x[3, 4]``, or the spelling in the source if unknown."""
    if position is None:
        return f"{site.variable}[{site.index}]" if site.index else site.variable
    return f"{site.variable}[{', '.join(map(str, position))}]"


class _Fault(NamedTuple):
    """The facts for the text of a report; `figures` depend on its kind."""

    site: Site
    figures: list[int]
    other: Any
    element: str


def _text_bounds(fault: _Fault) -> tuple[str, str]:
    site, (index, extent, axis, _) = fault.site, fault.figures
    shown = f"index {index}"
    if index == HUGE:
        shown = "an unsigned index of 2**63 or more, as below zero,"
    written = f"{site.variable}[{site.index}]"
    if axis in _WHOLE:
        owner, length = _WHOLE[axis]
        message = f"{written} is outside its {owner}: {shown} of {extent} elements"
        limit = length.format(site.variable)
    else:
        place = f"along axis {axis}, which has the extent {extent}"
        message = f"{written} is outside its array: {shown} {place}"
        limit = f"{site.variable}.shape[{axis}]"
    return message, f"guard the access, as in `if i < {limit}`, or correct the index"


def _text_negative(fault: _Fault) -> tuple[str, str]:
    site, (index, extent, axis, _) = fault.site, fault.figures
    along = f"axis {axis} of extent {extent}" if axis >= 0 else f"a tuple of {extent} elements"
    end = f"{site.variable}.shape[{axis}]" if axis >= 0 else f"len({site.variable})"
    return (
        f"{site.variable}[{site.index}] has the negative index {index} along {along}, which means "
        "an element at the other end"
    ), (
        f"guard the access, as in `if i > 0`; where the other end is meant, write {end} - k or a "
        "constant such as -1"
    )


def _text_overflow(fault: _Fault) -> tuple[str, str]:
    variable, (left, right, bits, _) = fault.site.variable, fault.figures
    name = "" if variable == "..." else f" {variable}"
    exact = str(left) if bits < _MAX_BITS else f"the exact result from {left} and {right}"
    return f"the index{name} overflows: {exact} does not fit into {bits} bits", (
        "compute the index in int64 from smaller numbers, without casts to narrower types"
    )


def _text_uninitialised(fault: _Fault) -> tuple[str, str]:
    element, is_shared = fault.element, fault.figures[2]
    if is_shared:
        return f"the shared element {element} is read, and no thread of the block has written it", (
            "let a thread write every element that is read, then call cuda.syncthreads()"
        )
    return f"the local element {element} is read before this thread has written it", (
        "assign the element first: cuda.local.array has no contents to begin with"
    )


def _text_race(fault: _Fault) -> tuple[str, str]:
    site, other = fault.site, fault.other
    space = "shared" if fault.figures[3] else "global"
    message = (
        f"{space} {fault.element} is {_VERBS[site.kind]} by one thread and "
        f"{_VERBS[SiteKind(other.access)]} by thread {other.thread} of block "
        f"{other.block}, and nothing orders the two"
    )
    if "atomic" in (site.kind.value, other.access):
        return message, "make both accesses atomic, or put a barrier between them"
    if space == "shared":
        return message, "put cuda.syncthreads() between them, or use cuda.atomic"
    return message, (
        "between threads of a block put cuda.syncthreads() between them; between blocks use "
        "cuda.atomic, give each block its own elements, or launch a second kernel"
    )


def _text_barrier(fault: _Fault) -> tuple[str, str]:
    site, other, form = fault.site, fault.other, fault.figures[1]
    if form == _GRID_BARRIER:
        return (
            f"this block goes around the barrier of the grid in line {site.line}, at which thread "
            f"{other.thread} of block {other.block} waits; on a GPU the launch never ends"
        ), "let every block call grid.sync(), those without work too: guard the work instead"
    if form:
        return (
            f"this thread goes around the barrier in line {site.line}, at which thread "
            f"{other.thread} waits"
        ), "call cuda.syncthreads() where every thread of the block comes along: outside the branch"
    return (
        f"threads of a block wait at different barriers: one in line {site.line}, thread "
        f"{other.thread} in line {other.line}"
    ), "let all threads of a block call the same cuda.syncthreads(), outside of divergent branches"


def _text_warp(fault: _Fault) -> tuple[str, str]:
    mask, lane = f"0x{fault.figures[0]:08x}", fault.figures[1]
    if fault.other is None:
        return f"lane {lane} calls a warp operation whose mask {mask} leaves it out", (
            "the mask must name every lane that makes the call, the caller included"
        )
    return (
        f"lane {lane}, which the mask {mask} names, does not take part: thread "
        f"{fault.other.thread} is elsewhere or has returned"
    ), (
        "let every lane of the mask make the call, or make the mask of those that do, by "
        "cuda.ballot_sync in front of the branch"
    )


def _text_dynamic(fault: _Fault) -> tuple[str, str]:
    return f"{fault.site.variable} is dynamic shared memory, and the launch gives none", (
        "launch with a size: kernel[grid, block, stream, nbytes](...)"
    )


_TEXTS = {
    Kind.OUT_OF_BOUNDS: _text_bounds,
    Kind.NEGATIVE_INDEX: _text_negative,
    Kind.INDEX_OVERFLOW: _text_overflow,
    Kind.UNINITIALISED: _text_uninitialised,
    Kind.RACE: _text_race,
    Kind.BARRIER: _text_barrier,
    Kind.WARP: _text_warp,
    Kind.DYNAMIC_SHARED: _text_dynamic,
}
