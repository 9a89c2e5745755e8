"""Selection of the lowering from the threads of a block to one CPU function.

*threads*: a loop around one thread's code, for kernels whose threads do not wait for each other.
*lanes*: regions between barriers, each in vector code. *coroutines*: every thread suspends where it
waits and resumes there; slower, and correct for any kernel. The modules of the last two are
imported when the first kernel needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.simt.llvm.model import CannotLowerError, ThreadsAreFasterError
from nbrt.backends.cpu.simt.processor import processor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.cpu.simt.llvm.model import ThreadIR

__all__ = [
    "Lowered",
    "Lowering",
    "lower",
    "lower_if_diverging",
    "lower_if_spinning",
    "lower_to_coroutines",
]


@dataclass(frozen=True)
class Lowering:
    """How a kernel was lowered.

    Attributes
    ----------
    kind : str
        ``threads``, ``lanes`` or ``coroutines``.
    reasons : tuple of str
        The reasons, the decisive one first.
    """

    kind: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Lowered:
    """A block function in a separate module."""

    module: str
    symbol: str
    lowering: Lowering
    whole_grid: bool = False
    """The function runs all blocks of the launch, not one."""
    is_tiled: bool = False
    """Local arrays of one thread fill the vector registers; its threads run one after the other."""
    static_shared: int = 0
    """Bytes of shared memory that the kernel declares."""
    resident: bool = False
    """The function claims blocks and keeps several of them at once."""
    strip: int = 1
    """Maximum number of neighbouring blocks along x that the function runs in one call. If it is
    not 1, their number is its last argument, and its block is the first of them."""
    more: tuple[str, ...] = ()
    """Further modules, with functions that the first calls."""
    sites: tuple[str, ...] = ()
    """Source locations of the sites, from 1, at which threads of resident blocks wait."""

    @property
    def bypasses_caches(self) -> bool:
        """Whether some of its stores do, so that they need a fence."""
        return any("!nontemporal" in text for text in (self.module, *self.more))


def lower(
    code: ThreadIR,
    kinds: set[str],
    places: Sequence[str] = (),
    tiled: ThreadIR | None = None,
    *,
    simplified: Callable[[ThreadIR], ThreadIR],
) -> Lowered:
    """Lower one thread to a function of a block, or of the grid if its blocks wait for each other.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    kinds : set of str
        Kinds of markers in it.
    places : sequence of str
        Where they are called, for the reasons.
    tiled : ThreadIR, optional
        The thread with its local arrays in vector registers.
    simplified : callable
        Runs LLVM's passes on a thread again.
    """
    from nbrt.backends.cpu.simt.lanes.block_versions import lanes_versions

    if "grid" in kinds:
        reason = "the blocks of the grid wait for each other (cg.this_grid().sync())"
        return lower_to_coroutines(code, kinds, (reason, *places))
    if tiled is not None:
        found = _lower_tiled(tiled, kinds, places)
        if found is not None:
            return found
    try:
        number, size = processor().vector_registers
        modules, symbol, notes, strip = lanes_versions(code, simplified, number * size)
    except CannotLowerError as error:
        return lower_to_coroutines(code, kinds, (str(error), *places))
    uses = ", ".join(sorted(kinds)) or "a loop"
    reason = f"threads of a block run in step as lanes of vectors ({uses})"
    why = Lowering("lanes", (reason, *notes, *places))
    return Lowered(modules[0], symbol, why, strip=strip, more=tuple(modules[1:]))


def _lower_tiled(code: ThreadIR, kinds: set[str], places: Sequence[str]) -> Lowered | None:
    """Lower a thread that fills vector registers by itself; return None if one lane cannot."""
    from nbrt.backends.cpu.simt.lanes.analysis.jammed_loops import Registers
    from nbrt.backends.cpu.simt.lanes.block import one_lane_block

    notes: list[str] = []
    try:
        text = one_lane_block(code, Registers(*processor().vector_registers), notes)
    except CannotLowerError:
        return None
    reason = (
        "threads of a block run one after the other between barriers: the local arrays of one "
        f"thread fill the vector registers ({', '.join(sorted(kinds))})"
    )
    why = Lowering("lanes", (reason, *notes, *places))
    return Lowered(text, f"{code.name}.lanes", why, is_tiled=True)


def lower_if_diverging(code: ThreadIR) -> Lowered | Lowering | None:
    """Lower one thread without markers to lanes; return None, or the reason, if that is slower."""
    from nbrt.backends.cpu.simt.lanes.block import lanes_block

    notes: list[str] = []
    try:
        text = lanes_block(code, only_diverging=True, notes=notes)
    except ThreadsAreFasterError as error:
        return Lowering("threads", (str(error),))
    except CannotLowerError:
        return None
    reason = "threads leave a loop at different times: lanes of vectors, under masks"
    why = Lowering("lanes", (reason, *notes))
    return Lowered(text, f"{code.name}.lanes", why)


def lower_if_spinning(
    code: ThreadIR, kinds: set[str], places: Sequence[str] = (), **options: Any
) -> Lowered | None:
    """Lower one thread to coroutines that yield; return None if it has no loop that spins.

    Parameters
    ----------
    code : ThreadIR
        One thread, with the markers of places.
    kinds : set of str
        Kinds of markers in it.
    places : sequence of str
        Where they are called, for the reasons.
    **options
        Passed to `coroutine_resident`.
    """
    from nbrt.backends.cpu.simt.llvm.parse import parse_function
    from nbrt.backends.cpu.simt.llvm.spins import find_spins

    spins = find_spins(parse_function(code.module, code.name))
    if not spins:
        return None
    reasons = ["a loop waits for other threads (a lock or a flag): it yields to them"]
    reasons += [f"a loop that spins at {place}" for place in dict.fromkeys(s.place for s in spins)]
    from nbrt.backends.cpu.simt.coroutines import coroutine_resident

    text, sites = coroutine_resident(code, spins, **options)
    why = Lowering("coroutines", (*reasons, *places))
    whole = "grid" in kinds
    symbol = f"{code.name}.resident"
    return Lowered(text, symbol, why, whole_grid=whole, resident=True, sites=tuple(sites))


def lower_to_coroutines(
    code: ThreadIR, kinds: set[str], reasons: tuple[str, ...] = (), **options: Any
) -> Lowered:
    """Lower one thread to a function that runs each thread as a coroutine.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    kinds : set of str
        Kinds of markers in it.
    reasons : tuple of str
        The reasons, for `Lowering`.
    **options
        Passed to `coroutine_block` or `coroutine_grid`.
    """
    from nbrt.backends.cpu.simt.coroutines import coroutine_block, coroutine_grid

    is_grid = "grid" in kinds
    text = (coroutine_grid if is_grid else coroutine_block)(code, **options)
    symbol = f"{code.name}.{'grid' if is_grid else 'block'}"
    return Lowered(text, symbol, Lowering("coroutines", reasons), whole_grid=is_grid)
