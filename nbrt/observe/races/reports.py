"""`MemoryRaceReport`: what the race checker found, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt._internal.callsite import CallSite
    from nbrt._internal.device import Device
    from nbrt.observe.races.shadow_blocks import MemoryAccess, ShadowBlock, StreamName

__all__ = [
    "MemoryRaceReport",
    "RaceKind",
    "ReportedCall",
    "report_damage",
    "report_freed",
    "report_race",
]

RaceKind: TypeAlias = Literal["use_after_free", "write_after_free", "reuse_race", "unordered_use"]


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """Something that was done to memory, and where.

    Attributes
    ----------
    what : str
        ``"allocation"``, ``"free"``, or the command: ``"copy"``, ``"launch of scale"``.
    stream : str
        The stream that it was given to or meant for.
    stack : str
        The Python stack of the call, as tracebacks show it, without nbrt's own frames.
    """

    what: str
    stream: str
    stack: str

    def __str__(self) -> str:
        return f"  {self.what} on {self.stream}:\n{_indented(self.stack)}"


@dataclass(frozen=True, slots=True)
class MemoryRaceReport:
    """One fault in the use of memory; ``str`` gives the whole text.

    Attributes
    ----------
    kind : str
        ``unordered_use``: two streams touch the same bytes, one of them writes, and nothing orders
        the two.

        ``use_after_free``: a command touches memory whose arrays are gone, such as by an array made
        from an address.

        ``reuse_race``: a block was freed, handed out again, and is touched before work of another
        stream on its earlier array is over. Either the new array is used on another stream than the
        one it was allocated for, which must wait for that; or the earlier one was, by an address or
        another library's wrapper, and ``record_stream`` is the remedy. For the arguments of its own
        commands nbrt calls that itself.

        ``write_after_free``: what freed memory was filled with has changed.
    device : Device
        Whose memory it is.
    address, nbytes : int
        The bytes that the command touches, or that were found changed.
    touched : ReportedCall or None
        The command that was found; None where what wrote to freed memory was no command.
    other : ReportedCall or None
        The command that it is not ordered behind.
    allocated : ReportedCall or None
        The allocation of the block; None if that came before the watch. Of a reused block, the use
        that has ended.
    freed : ReportedCall or None
        The end of that use.
    message, advice : str
        What is wrong, and how to mend it.
    """

    kind: RaceKind
    device: Device
    address: int
    nbytes: int
    message: str
    advice: str
    touched: ReportedCall | None = None
    other: ReportedCall | None = None
    allocated: ReportedCall | None = None
    freed: ReportedCall | None = None

    def __str__(self) -> str:
        lines = [f"{self.kind.replace('_', ' ')} on {self.device}: {self.message}"]
        places = (self.touched, self.other, self.allocated, self.freed)
        lines += [str(place) for place in places if place is not None]
        return "\n".join([*lines, f"  to mend it: {self.advice}"])


def report_freed(access: MemoryAccess) -> MemoryRaceReport:
    """Report a command that touches memory whose arrays are gone."""
    footprint, block = access.footprint, access.block
    return MemoryRaceReport(
        "use_after_free",
        block.device,
        footprint.begin,
        footprint.end - footprint.begin,
        f"{access.label} {access.mode} {_range(footprint.begin, footprint.end)}, which was freed "
        f"and may be handed out again at any moment",
        "keep the array, or a view of it, for as long as its memory is used: an address, or an "
        "array made from one, keeps nothing alive",
        touched=_place(access.label, access.stream, access.site),
        allocated=_place("allocation", block.stream, block.allocated),
        freed=_place("free", block.stream, block.freed),
    )


def report_race(access: MemoryAccess, other: MemoryAccess) -> MemoryRaceReport:
    """Report a command that is not ordered behind an earlier one on another stream."""
    footprint, block = access.footprint, other.block
    touches = f"{access.label} {access.mode} {_range(footprint.begin, footprint.end)}"
    rest = f"earlier {other.label} {other.mode} on another stream, and nothing orders the two"
    kind: RaceKind
    if access.block is block:
        kind, message = "unordered_use", f"{touches}, which an {rest}"
        advice = (
            f"make one wait for the other: call wait_stream({other.stream.text}) on "
            f"{access.stream.text}, or let it wait for an event recorded behind the {other.label}"
        )
        if "uses" in (access.mode, other.mode) and "writes" not in (access.mode, other.mode):
            advice += (
                "; or, if the kernel only reads, pass it a NumPy view with flags.writeable = False"
            )
    else:
        kind = "reuse_race"
        message = f"{touches} of a block that was freed and handed out again, which an {rest}"
        advice = (
            f"make {access.stream.text} wait for the stream that the block was allocated for, or "
            f"allocate it for the stream that uses it"
            if other.stream.key == block.stream.key
            else f"before the old array dies, call nbrt.memory.record_stream(array, stream) for "
            f"the stream of the {other.label}; or let {access.stream.text} wait for that stream"
        )
    return MemoryRaceReport(
        kind,
        block.device,
        footprint.begin,
        footprint.end - footprint.begin,
        message,
        advice,
        touched=_place(access.label, access.stream, access.site),
        other=_place(f"earlier {other.label}", other.stream, other.site),
        allocated=_place("allocation", block.stream, block.allocated),
        freed=_place("free", block.stream, block.freed),
    )


def report_damage(block: ShadowBlock, address: int, since: Sequence[str]) -> MemoryRaceReport:
    """Report freed memory that has changed; `since` are the commands its stream got meanwhile."""
    given = (
        f"its stream was given since: {', '.join(since)}"
        if since
        else ("its stream was given nothing since")
    )
    return MemoryRaceReport(
        "write_after_free",
        block.device,
        address,
        1,
        f"byte {address - block.address} of {block.nbytes} freed bytes at "
        f"{block.address:#x} was written after the free; {given}",
        "look for who keeps the address past its array: a pointer handed to foreign code, an "
        "array made from an address, a thread that was not waited for",
        allocated=_place("allocation", block.stream, block.allocated),
        freed=_place("free", block.stream, block.freed),
    )


def _place(what: str, stream: StreamName, site: CallSite | None) -> ReportedCall | None:
    return None if site is None else ReportedCall(what, stream.text, site.format())


def _range(begin: int, end: int) -> str:
    return f"{end - begin} bytes at {begin:#x}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
