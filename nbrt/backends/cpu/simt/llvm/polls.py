"""Polls of the stop word at the back edges of loops, inserted into optimised LLVM IR.

Polls would prevent vectorisation if they were inserted earlier. A loop that counts in a register is
strip-mined: an outer loop polls, and the inner loop keeps its code but for its bound, which is at
most `_STRIP` iterations away. Other loops poll in every iteration, short loops do not poll.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.counters import counter_of
from nbrt.backends.cpu.simt.llvm.graph import LoopInfo
from nbrt.backends.cpu.simt.llvm.text import BlockText, FunctionText
from nbrt.backends.cpu.simt.stop_codes import ATTEND, CALLING_CONVENTION, attend_module

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nbrt.backends.cpu.simt.llvm.counters import Counter as LoopCounter

__all__ = ["BOUNDED", "add_polls", "polled_thread"]

BOUNDED = "nbrt.bounded"
"""Metadata of the loops over the threads of a strip, whose number is limited."""

_STRIP = 4096
"""Iterations of a strip-mined loop between two polls."""

_MAX_UNPOLLED = 2**16
"""Maximum number of iterations of innermost loops between two polls."""

_MAX_UNPOLLED_IN_STRIP = 16
"""Maximum number of iterations that a thread of a strip may run without a poll."""

_LOOP_METADATA = re.compile(r"!llvm\.loop (!\d+)")
_MEETS = re.compile(r'\bcall [^@]*@"?nbrt\.(?:barrier|grid\.sync)')


@dataclass
class _PolledLoop(LoopInfo):
    """A loop, and how long it runs between two polls."""

    inner: list[_PolledLoop] = field(default_factory=list)
    unpolled: int = 1
    """Maximum number of iterations of innermost loops between two polls."""
    is_bounded: bool = False
    """Whether it is the loop over the threads of a strip, each of which does little."""


def add_polls(
    lines: list[str],
    stop: str,
    leave: list[str],
    metadata: Mapping[str, str],
    weights: str,
    *,
    polled: Collection[str] = (),
    strips: bool = True,
) -> list[str]:
    """Insert polls into the body of a function.

    Parameters
    ----------
    lines : list of str
        The lines between the header and the closing brace, as LLVM prints them.
    stop : str
        Name of the pointer to the stop word; its definition dominates every loop.
    leave : list of str
        Lines of the block that returns the status ``%nbrt.status``.
    metadata : mapping
        The metadata nodes of the module by name (``!4``).
    weights : str
        Metadata of a branch whose first target is the likely one, or empty.
    polled : collection of str
        Headers of loops that already poll in every iteration.
    strips : bool
        Whether loops that count are strip-mined, which makes entering a loop slower.

    Returns
    -------
    list of str
        The lines with polls; `lines` itself if no loop needs one.
    """
    body = FunctionText(lines)
    loops = _loops(body)
    writer = _PollWriter(body, loops, stop, metadata, weights, strips=strips)
    for loop in loops:
        if loop.header not in polled:
            writer.handle(loop)
    if not writer.leaving:
        return lines
    incoming = ", ".join(f"[ {code}, %{label} ]" for code, label in writer.leaving)
    return [*body.lines(), "nbrt.leave:", f"  %nbrt.status = phi i32 {incoming}", *leave]


def polled_thread(module: str, name: str, yielding: Collection[str] = ()) -> str:
    """Insert polls into a thread function that will become a coroutine.

    Parameters
    ----------
    module : str
        Text of the module, with names for all values.
    name : str
        Symbol of the function, in which ``%simt.stop`` is the address of the stop word.
    yielding : collection of str
        Headers of loops that yield in every iteration: the scheduler polls there.

    Returns
    -------
    str
        The module with a definition of ``nbrt_attend``. The thread returns ``STOPPED`` or
        ``INTERRUPTED`` if a poll ends it.
    """
    lines = module.splitlines()
    define = re.compile(rf'^define [^@\n]*@"?{re.escape(name)}"?\(')
    begin = next(i for i, line in enumerate(lines) if define.match(line)) + 1
    end = lines.index("}", begin)
    leave = ["  ret i32 %nbrt.status"]
    # Loops of coroutines are short: strip-mining would cost more than polls.
    text = lines[begin:end]
    body = add_polls(text, "%simt.stop", leave, {}, "", polled=yielding, strips=False)
    return "\n".join([*lines[:begin], *body, *lines[end:], attend_module(module)])


class _PollWriter:
    """Inserts polls into the blocks of a function."""

    def __init__(
        self,
        body: FunctionText,
        loops: list[_PolledLoop],
        stop: str,
        metadata: Mapping[str, str],
        weights: str,
        *,
        strips: bool,
    ) -> None:
        self._strips = strips
        self._body = body
        self._loops = loops
        self._stop = stop
        self._metadata = metadata
        self._weights = weights
        self._number = 0
        self._added: set[str] = set()
        self._meeting = {
            label
            for label, block in body.blocks.items()
            if any("@" in line and _MEETS.search(line) for line in block.lines)
        }
        """Labels of blocks that wait for the block or grid."""
        self.leaving: list[tuple[str, str]] = []
        """Status and label of each block that leaves the function."""

    def handle(self, loop: _PolledLoop) -> None:
        """Insert a poll into a loop if it needs one, and set its `unpolled`."""
        if self._is_bounded(loop) and all(
            inner.is_bounded or inner.unpolled <= _MAX_UNPOLLED_IN_STRIP for inner in loop.inner
        ):
            loop.is_bounded, loop.unpolled = True, _MAX_UNPOLLED
            return
        inside = max(1, sum(inner.unpolled for inner in loop.inner))
        iterations = self._max_iterations(loop)
        if iterations is not None and iterations * inside <= _MAX_UNPOLLED:
            loop.unpolled = iterations * inside
            return
        if self._always_meets(loop):
            loop.unpolled = inside
            return
        counter = None
        if self._strips and not loop.inner and len(loop.latches) == 1:
            counter = counter_of(self._body, loop.header, loop.latches[0], loop.blocks)
        if counter is not None and counter.can_strip(_STRIP):
            self._strip(loop, counter)
            loop.unpolled = _STRIP
        else:
            for latch in loop.latches:
                self._poll(latch, loop.header, loop.header)
            loop.unpolled = inside

    def _is_bounded(self, loop: _PolledLoop) -> bool:
        for latch in loop.latches:
            for name in _LOOP_METADATA.findall(self._body.blocks[latch].lines[-1]):
                operands = re.findall(r"!\d+", self._metadata.get(name, ""))
                if any(BOUNDED in self._metadata.get(node, "") for node in operands):
                    return True
        return False

    def _max_iterations(self, loop: _PolledLoop) -> int | None:
        if len(loop.latches) > 1:
            return None
        counter = counter_of(self._body, loop.header, loop.latches[0], loop.blocks)
        return counter.iterations if counter is not None else None

    def _always_meets(self, loop: _PolledLoop) -> bool:
        """Return whether every iteration waits for the block or grid, where the scheduler polls."""
        if not self._meeting:
            return False
        seen, pending = set[str](), [loop.header]
        while pending:
            label = pending.pop()
            block = self._body.blocks[label]
            if label not in seen and label not in self._meeting:
                seen.add(label)
                if loop.header in block.targets:
                    return False
                pending += [target for target in block.targets if self._is_inside(target, loop)]
        return True

    def _is_inside(self, label: str, loop: _PolledLoop) -> bool:
        """Return whether a block is in a loop, or belongs to a poll of an inner loop."""
        return label in loop.blocks or label in self._added

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _poll(self, latch: str, header: str, target: str) -> None:
        """Insert a poll into the edge from a latch to a header, which then leads to the target."""
        number = self._next()
        poll, attend = f"nbrt.poll.{number}", f"nbrt.attend.{number}"
        word, calm, code, go = (f"%nbrt.{n}.{number}" for n in ("word", "calm", "code", "go"))
        self._redirect(latch, header, poll)
        _replace_incoming(self._body.blocks[target], latch, [poll, attend])
        self._add(
            poll,
            f"  {word} = load volatile i64, ptr {self._stop}, align 8",
            f"  {calm} = icmp eq i64 {word}, 0",
            f"  br i1 {calm}, label %{target}, label %{attend}{self._weights}",
        )
        self._add(
            attend,
            f"  {code} = call {CALLING_CONVENTION} i32 @{ATTEND}(ptr {self._stop})",
            f"  {go} = icmp eq i32 {code}, 0",
            f"  br i1 {go}, label %{target}, label %nbrt.leave",
        )
        self.leaving.append((code, attend))

    def _add(self, label: str, *lines: str) -> None:
        self._body.blocks[label] = BlockText(label, list(lines))
        self._added.add(label)

    def _redirect(self, source: str, target: str, other: str) -> None:
        """Replace a target of a block."""
        block = self._body.blocks[source]
        pattern = re.compile(rf"label %{re.escape(target)}(?![-\w$.])")
        for index in range(block.end, len(block.lines)):
            block.lines[index] = pattern.sub(lambda _: f"label %{other}", block.lines[index])

    def _strip(self, loop: _PolledLoop, counter: LoopCounter) -> None:
        """Put a loop that polls around a loop; one iteration is at most `_STRIP` of the loop."""
        header, latch = self._body.blocks[loop.header], loop.latches[0]
        number = self._next()
        strip, end = f"nbrt.strip.{number}", f"nbrt.end.{number}"
        lines, begin = self._outer_phis(header, latch, counter.phi, strip, end, number)
        limit = f"%nbrt.limit.{number}"
        lines += counter.limit_lines(begin, limit, _STRIP, number)
        entering = self._entering(loop)
        for source in entering:
            self._redirect(source, loop.header, strip)
        self._add(strip, *lines, f"  br label %{loop.header}")
        self._leave_at(latch, counter, limit, end, number)
        self._poll(end, strip, strip)

    def _entering(self, loop: _PolledLoop) -> list[str]:
        return [
            block.label
            for block in self._body.blocks.values()
            if block.label not in loop.blocks and loop.header in block.targets
        ]

    def _outer_phis(
        self, header: BlockText, latch: str, counting: str, strip: str, end: str, number: int
    ) -> tuple[list[str], str]:
        """Return the lines of the outer loop's phis, and the name of the phi of the counter."""
        lines, begin = [], ""
        for index in header.phis:
            name, _, rest = header.lines[index].strip().partition(" = phi ")
            kind, _, pairs = rest.partition(" [ ")
            outer = f"%nbrt.begin.{number}.{index}"
            back = _value_from(f"[ {pairs}", latch)
            outside = _without_incoming(f"[ {pairs}", latch)
            lines.append(f"  {outer} = phi {kind} {outside}, [ {back}, %{end} ]")
            header.lines[index] = (
                f"  {name} = phi {kind} [ {outer}, %{strip} ], [ {back}, %{latch} ]"
            )
            if name == counting:
                begin = outer
        return lines, begin

    def _leave_at(
        self, latch: str, counter: LoopCounter, limit: str, end: str, number: int
    ) -> None:
        """Let the latch end a strip at the limit, and the loop at its bound."""
        block = self._body.blocks[latch]
        at = block.end
        branch = block.lines[at]
        is_at, is_done = f"%nbrt.at.{number}", f"%nbrt.done.{number}"
        exit_label = counter.exit
        inside = branch.replace(f"i1 {counter.condition},", f"i1 {is_at},", 1)
        block.lines[at:] = [f"  {is_at} = {counter.comparison(limit)}", inside]
        self._redirect(latch, exit_label, end)
        _replace_incoming(self._body.blocks[exit_label], latch, [end])
        strip = f"nbrt.strip.{number}"
        targets = (strip, exit_label) if counter.continues_if_true else (exit_label, strip)
        self._add(
            end,
            f"  {is_done} = {counter.comparison(counter.bound)}",
            f"  br i1 {is_done}, label %{targets[0]}, label %{targets[1]}",
        )
        self._forget(block, counter.condition)
        for loop in self._loops:
            if loop.header == exit_label:  # the exit edge is the back edge of another loop
                loop.latches = [end if label == latch else label for label in loop.latches]

    def _forget(self, block: BlockText, name: str) -> None:
        """Remove a comparison if it has no use."""
        use = re.compile(rf"{re.escape(name)}(?![-\w$.])")
        lines = (line for b in self._body.blocks.values() for line in b.lines if name in line)
        if sum(len(use.findall(line)) for line in lines) == 1:
            block.lines[:] = [
                line for line in block.lines if not line.lstrip().startswith(f"{name} = ")
            ]


_INCOMING = re.compile(r'\[ (?P<value>(?:(?! \]).)*), %(?P<label>"[^"]*"|[-\w$.]+) \]')


def _replace_incoming(block: BlockText, label: str, others: Iterable[str]) -> None:
    """Replace the incoming block of phis by other blocks."""
    for index in block.phis:
        head, _, pairs = block.lines[index].partition(" [ ")
        value = _value_from(f"[ {pairs}", label)
        new = [f"[ {value}, %{other} ]" for other in others]
        rest = _without_incoming(f"[ {pairs}", label)
        block.lines[index] = f"{head} {', '.join([rest, *new] if rest else new)}"


def _value_from(pairs: str, label: str) -> str:
    return next(pair["value"] for pair in _INCOMING.finditer(pairs) if pair["label"] == label)


def _without_incoming(pairs: str, label: str) -> str:
    return ", ".join(pair[0] for pair in _INCOMING.finditer(pairs) if pair["label"] != label)


def _loops(body: FunctionText) -> list[_PolledLoop]:
    """Return the loops, inner loops first."""
    loops = [_PolledLoop(loop.header, loop.latches, loop.blocks) for loop in body.loops().values()]
    loops.sort(key=lambda loop: len(loop.blocks))
    for index, loop in enumerate(loops):
        outer = next((o for o in loops[index + 1 :] if loop.header in o.blocks), None)
        if outer is not None:
            outer.inner.append(loop)
    return loops
