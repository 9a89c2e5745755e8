"""`MemoryRaceReport`: the text of a fault that the race checker found."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
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
    """An operation on memory and its call site.

    Attributes
    ----------
    what : str
        ``"allocation"``, ``"free"``, or the command: ``"copy"``, ``"launch of scale"``.
    stream : str
        The stream of the operation.
    stack : str
        The Python stack of the call in the format of a traceback, without nbrt's frames.
    """

    what: str
    stream: str
    stack: str

    def __str__(self) -> str:
        return f"  {self.what} on {self.stream}:\n{indent(self.stack, '  ')}"


@dataclass(frozen=True, slots=True)
class MemoryRaceReport:
    """A fault in the use of memory; ``str`` returns the full text.

    Attributes
    ----------
    kind : str
        ``unordered_use``: two streams access the same bytes without order, and one writes.

        ``use_after_free``: a command accesses memory whose arrays are gone, for example through an
        array made from an address.

        ``reuse_race``: memory is reused while work of another stream on the earlier array may still
        run. Either the new array is used on a stream that does not wait for the stream of the
        allocation; or the earlier array was used through an address or another library's wrapper,
        which needs ``record_stream``. nbrt records the arguments of nbrt commands.

        ``write_after_free``: the poison in freed memory was overwritten.
    device : Device
        Device of the memory.
    address, nbytes : int
        The bytes accessed or overwritten.
    touched : ReportedCall or None
        The faulty command; None for ``write_after_free``.
    other : ReportedCall or None
        The earlier command without order.
    allocated, freed : ReportedCall or None
        Allocation and free of the block, or of the earlier block of reused memory; None if they
        preceded the checker.
    message, advice : str
        Description and remedy.
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

    @property
    def calls(self) -> tuple[ReportedCall | None, ...]:
        """The operations of the report: `touched`, `other`, `allocated` and `freed`."""
        return self.touched, self.other, self.allocated, self.freed

    def __str__(self) -> str:
        lines = [f"{self.kind.replace('_', ' ')} on {self.device}: {self.message}"]
        lines += [str(call) for call in self.calls if call is not None]
        return "\n".join([*lines, f"  to mend it: {self.advice}"])


def report_freed(access: MemoryAccess) -> MemoryRaceReport:
    """Return the report of a command that accesses freed memory."""
    return _report(
        "use_after_free",
        access,
        access.block,
        ", which was freed and may be reused at any time",
        "keep the array, or a view of it, while its memory is used: an address, or an array made "
        "from one, keeps no memory alive",
    )


def report_race(access: MemoryAccess, other: MemoryAccess) -> MemoryRaceReport:
    """Return the report of a command without order after one on another stream."""
    block = other.block
    rest = f"earlier {other.label} {other.mode} on another stream, and nothing orders the two"
    kind: RaceKind
    if access.block is block:
        kind, relation = "unordered_use", f", which an {rest}"
        advice = (
            f"make one wait for the other: call wait_stream({other.stream.text}) on "
            f"{access.stream.text}, or let it wait for an event recorded behind the {other.label}"
        )
        if "uses" in (access.mode, other.mode) and "writes" not in (access.mode, other.mode):
            advice += (
                "; or, if the kernel only reads, pass it a NumPy view with flags.writeable = False"
            )
    else:
        kind, relation = "reuse_race", f" of a block that was freed and reused, which an {rest}"
        advice = (
            f"make {access.stream.text} wait for the stream of the allocation, or allocate on the "
            f"stream that uses the block"
            if other.stream.key == block.stream.key
            else f"before the old array dies, call nbrt.memory.record_stream(array, stream) for "
            f"the stream of the {other.label}; or let {access.stream.text} wait for that stream"
        )
    return _report(kind, access, block, relation, advice, other)


def report_damage(block: ShadowBlock, address: int, since: Sequence[str]) -> MemoryRaceReport:
    """Return the report of overwritten poison; `since` are later commands of the block's stream."""
    return MemoryRaceReport(
        "write_after_free",
        block.device,
        address,
        1,
        f"byte {address - block.address} of {block.nbytes} freed bytes at {block.address:#x} was "
        f"written after the free; later commands of its stream: {', '.join(since) or 'none'}",
        "look for code that keeps the address after the array is gone: a pointer passed to foreign "
        "code, an array made from an address, a thread that was not joined",
        allocated=_call("allocation", block.stream, block.allocated),
        freed=_call("free", block.stream, block.freed),
    )


def _report(
    kind: RaceKind,
    access: MemoryAccess,
    block: ShadowBlock,
    relation: str,
    advice: str,
    other: MemoryAccess | None = None,
) -> MemoryRaceReport:
    begin, nbytes = access.footprint.begin, access.footprint.end - access.footprint.begin
    return MemoryRaceReport(
        kind,
        block.device,
        begin,
        nbytes,
        f"{access.label} {access.mode} {nbytes} bytes at {begin:#x}{relation}",
        advice,
        touched=_call(access.label, access.stream, access.site),
        other=None if other is None else _call(f"earlier {other.label}", other.stream, other.site),
        allocated=_call("allocation", block.stream, block.allocated),
        freed=_call("free", block.stream, block.freed),
    )


def _call(what: str, stream: StreamName, site: CallSite | None) -> ReportedCall | None:
    return None if site is None else ReportedCall(what, stream.text, site.format())
