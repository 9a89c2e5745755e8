"""From what the shadow runtime wrote down to what a person reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbrt.backends.cpu.simt.checked.flat import FLAT, TUPLE
from nbrt.backends.cpu.simt.checked.layout import Kind
from nbrt.backends.cpu.simt.checked.probes import HUGE
from nbrt.backends.cpu.simt.checked.source_locations import Site, SiteKind, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.checked.memory import Argument

__all__ = ["CheckReport", "Party", "Reader", "unravelled"]

Dim3 = tuple[int, int, int]

_WHOLE = {FLAT: ("array", "{}.size"), TUPLE: ("tuple", "len({})")}
_NO_SITE = 0xFFFF
_GRID = 2
_WIDEST = 64

_VERBS = {
    SiteKind.READ: "read",
    SiteKind.WRITE: "written",
    SiteKind.ATOMIC: "updated atomically",
}


@dataclass(frozen=True, slots=True)
class Party:
    """The other thread that a report is about.

    Attributes
    ----------
    access : str
        What it did: ``read``, ``write``, ``atomic``, ``barrier`` or ``warp operation``; empty if
        it did nothing, which was the fault.
    file, line, source, variable, index
        Where, if it did something.
    block, thread : tuple of int
        Which thread it was.
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
    """One fault that checked mode found; ``str`` gives the whole text.

    Attributes
    ----------
    kind : str
        ``out_of_bounds``, ``negative_index``, ``index_overflow``, ``uninitialised``, ``race``,
        ``barrier``, ``warp``, ``dynamic_shared`` or ``limits``.
    kernel, function : str
        The kernel, and the function in it that the line is of.
    file, line, source : str, int, str
        The line, and its text if it can still be read.
    variable, index : str
        The array and the index as the source spells them.
    position : tuple of int or None
        The element, where it is known.
    block, thread : tuple of int
        The thread that the fault was found in; of a launch that is too large, the first that there
        is no room for.
    other : Party or None
        The other thread, if the fault takes two.
    message, advice : str
        What is wrong, and how to mend it.
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
    """Makes reports of the rows that a launch left behind.

    Parameters
    ----------
    kernel : str
        The kernel's name.
    grid, block : tuple of int
        The launch.
    arguments : sequence of Argument
        The arrays it was given.
    """

    def __init__(self, kernel: str, grid: Dim3, block: Dim3, arguments: Sequence[Argument]) -> None:
        self._kernel = kernel
        self._grid, self._block = grid, block
        self._arguments = arguments

    def read(self, row: tuple[int, ...]) -> CheckReport:
        """Make a report of one row."""
        kind, number, thread, block, who, _, *figures = row
        site = table[number]
        kind = Kind(kind)
        other = self._other(who)
        position = self._position(kind, figures)
        message, advice = _TEXTS[kind](site, figures, other, _named(site, position))
        return CheckReport(
            kind=kind.name.lower(),
            kernel=self._kernel,
            message=message,
            advice=advice,
            function=site.function,
            file=site.file,
            line=site.line,
            source=site.source,
            variable=site.variable,
            index=site.index,
            position=position,
            block=unravelled(block, self._grid),
            thread=unravelled(thread, self._block),
            other=other,
        )

    def _other(self, who: int) -> Party | None:
        if who == 0:
            return None
        block = unravelled((who >> 32) - 1, self._grid)
        thread = unravelled((who >> 17) & 0x7FF, self._block)
        number = who & 0xFFFF
        if number == _NO_SITE:
            return Party("", "", 0, "", "", "", block, thread)
        site = table[number]
        access = site.kind.value
        return Party(
            access, site.file, site.line, site.source, site.variable, site.index, block, thread
        )

    def _position(self, kind: Kind, figures: list[int]) -> tuple[int, ...] | None:
        """Find the element that an address is of."""
        if kind not in (Kind.RACE, Kind.UNINITIALISED):
            return (figures[0],) if kind in (Kind.OUT_OF_BOUNDS, Kind.NEGATIVE_INDEX) else None
        address, start, _, made_at = figures
        if kind is Kind.RACE and made_at == 0:
            found = (argument.position(address) for argument in self._arguments)
            return next((position for position in found if position is not None), None)
        site = table[made_at - (kind is Kind.RACE)]
        _, extents, size = site.detail
        count = int(np.prod(extents))
        if count == 0:
            return None
        flat = (address - start) * count // size
        return tuple(int(at) for at in np.unravel_index(flat, extents))


def unravelled(number: int, extents: Dim3) -> Dim3:
    """Return the place of a thread in a block, or of a block in a grid, that has a number."""
    x, rest = number % extents[0], number // extents[0]
    return x, rest % extents[1], rest // extents[1]


def _named(site: Site, position: tuple[int, ...] | None) -> str:
    """Name an element: ``x[3, 4]``, or as the source spells it if it is not known."""
    if position is None:
        return f"{site.variable}[{site.index}]" if site.index else site.variable
    return f"{site.variable}[{', '.join(map(str, position))}]"


def _text_bounds(
    site: Site, figures: list[int], _other: Party | None, _element: str
) -> tuple[str, str]:
    index, extent, axis, _ = figures
    shown = f"index {index}"
    if index == HUGE:
        shown = "an unsigned index of 2**63 or more, as below zero,"
    written = f"{site.variable}[{site.index}]"
    if axis in _WHOLE:
        what, guard = _WHOLE[axis]
        return f"{written} is outside its {what}: {shown} of {extent} elements", (
            f"guard the access, as in `if i < {guard.format(site.variable)}`, or correct the index"
        )
    message = (
        f"{written} is outside its array: {shown} along axis {axis}, which has the extent {extent}"
    )
    return message, (
        f"guard the access, as in `if i < {site.variable}.shape[{axis}]`, or correct the index"
    )


def _text_negative(
    site: Site, figures: list[int], _other: Party | None, _element: str
) -> tuple[str, str]:
    index, extent, axis, _ = figures
    along = f"axis {axis} of extent {extent}" if axis >= 0 else f"a tuple of {extent} elements"
    end = f"{site.variable}.shape[{axis}]" if axis >= 0 else f"len({site.variable})"
    message = (
        f"{site.variable}[{site.index}] has the negative index {index} along {along}, which means "
        "an element at the other end"
    )
    return message, (
        f"guard the access, as in `if i > 0`; where the other end is meant, write {end} - k or a "
        "constant such as -1"
    )


def _text_overflow(
    site: Site, figures: list[int], _other: Party | None, _element: str
) -> tuple[str, str]:
    name = "" if site.variable == "..." else f" {site.variable}"
    left, right, bits, _ = figures
    exact = str(left) if bits < _WIDEST else f"the exact result from {left} and {right}"
    return f"the index{name} overflows: {exact} does not fit into {bits} bits", (
        "compute the index in int64 from smaller numbers, without casts to narrower types"
    )


def _text_uninitialised(
    site: Site, figures: list[int], _other: Party | None, element: str
) -> tuple[str, str]:
    if figures[2]:
        return f"the shared element {element} is read, and no thread of the block has written it", (
            "let a thread write every element that is read, then call cuda.syncthreads()"
        )
    return f"the local element {element} is read before this thread has written it", (
        "assign the element first: cuda.local.array has no contents to begin with"
    )


def _text_race(
    site: Site, figures: list[int], other: Party | None, element: str
) -> tuple[str, str]:
    assert other is not None
    space = "shared" if figures[3] else "global"
    mine = _VERBS[site.kind]
    theirs = _VERBS[SiteKind(other.access)]
    message = (
        f"{space} {element} is {mine} by one thread and {theirs} by thread {other.thread} of block "
        f"{other.block}, and nothing orders the two"
    )
    if "atomic" in (site.kind.value, other.access):
        return message, "make both accesses atomic, or put a barrier between them"
    if space == "shared" or other.block is None:
        return message, "put cuda.syncthreads() between them, or use cuda.atomic"
    return message, (
        "between threads of a block put cuda.syncthreads() between them; between blocks use "
        "cuda.atomic, give each block its own elements, or launch a second kernel"
    )


def _text_barrier(
    site: Site, figures: list[int], other: Party | None, _element: str
) -> tuple[str, str]:
    assert other is not None
    if figures[1] == _GRID:
        return (
            f"this block goes around the barrier of the grid in line {site.line}, at which thread "
            f"{other.thread} of block {other.block} waits; on a GPU the launch never ends"
        ), "let every block call grid.sync(), those without work too: guard the work instead"
    if figures[1]:
        return (
            f"this thread goes around the barrier in line {site.line}, at which thread "
            f"{other.thread} waits"
        ), "call cuda.syncthreads() where every thread of the block comes along: outside the branch"
    return (
        f"threads of a block wait at different barriers: one in line {site.line}, thread "
        f"{other.thread} in line {other.line}"
    ), "let all threads of a block call the same cuda.syncthreads(), outside of divergent branches"


def _text_warp(
    site: Site, figures: list[int], other: Party | None, _element: str
) -> tuple[str, str]:
    mask = f"0x{figures[0]:08x}"
    if other is None:
        return f"lane {figures[1]} calls a warp operation whose mask {mask} leaves it out", (
            "the mask must name every lane that makes the call, the caller included"
        )
    return (
        f"lane {figures[1]}, which the mask {mask} names, does not take part: thread "
        f"{other.thread} is elsewhere or has returned"
    ), (
        "let every lane of the mask make the call, or make the mask of those that do, by "
        "cuda.ballot_sync in front of the branch"
    )


def _text_dynamic(
    site: Site, _figures: list[int], _other: Party | None, _element: str
) -> tuple[str, str]:
    return f"{site.variable} is dynamic shared memory, and the launch gives none", (
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
