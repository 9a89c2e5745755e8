"""Polls of the stop word at the back edges of loops, put into LLVM's text after its optimiser.

Before the optimiser they would keep loops from becoming vectors. A loop that counts in a register
is strip-mined: an outer loop polls, the loop itself runs at most `_STRIP` turns at a time and stays
as it is but for its limit. Other loops poll in every turn, loops of few turns not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.counters import counter_of
from nbrt.backends.cpu.simt.stop_codes import ATTEND, CALLING_CONVENTION, attend_module

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nbrt.backends.cpu.simt.llvm.counters import Counter as LoopCounter

__all__ = ["BOUNDED", "Block", "Body", "add_polls", "polled_thread"]

BOUNDED = "nbrt.bounded"
"""Loop metadata of the loops over the threads of a strip, whose number is limited."""

_STRIP = 4096
"""Turns of a strip-mined loop between two polls."""

_MAX_UNPOLLED = 2**16
"""Turns of innermost loops that may pass between two polls."""

_FEW = 16
"""Turns of a loop that a thread of a strip may make without a poll."""

_LABEL = re.compile(r'^("[^"]*"|[-\w$.]+):')
_TARGET = re.compile(r'label %("[^"]*"|[-\w$.]+)')
_TERMINATOR = re.compile(r"  (?:br|switch|ret|unreachable|resume|invoke|indirectbr|callbr)\b")
_LOOP_METADATA = re.compile(r"!llvm\.loop (!\d+)")
_MEETS = re.compile(r'\bcall [^@]*@"?nbrt\.(?:barrier|grid\.sync)')


@dataclass
class Block:
    """A basic block: its label without the percent sign, its lines, where its terminator begins."""

    label: str
    lines: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index of the line that the terminator begins in."""
        return next(i for i, line in enumerate(self.lines) if _TERMINATOR.match(line))

    @property
    def targets(self) -> list[str]:
        """Labels of the blocks that may follow, each once."""
        text = "\n".join(self.lines[self.end :])
        return list(dict.fromkeys(_TARGET.findall(text)))

    @property
    def phis(self) -> range:
        """Indices of the lines that are phis."""
        count = 0
        while count < len(self.lines) and " = phi " in self.lines[count]:
            count += 1
        return range(count)


@dataclass
class _Loop:
    """A natural loop."""

    header: str
    latches: list[str]
    blocks: set[str]
    inner: list[_Loop] = field(default_factory=list)
    unpolled: int = 1
    """Turns of innermost loops that may pass inside it, in all, without a poll."""
    is_bounded: bool = False
    """Whether it goes over the threads of a strip, each of which does little."""


class Body:
    """The body of a function, in which blocks and values can be found.

    Parameters
    ----------
    lines : list of str
        The lines between its header and the closing brace.
    """

    def __init__(self, lines: list[str]) -> None:
        self.blocks: dict[str, Block] = {}
        block = Block("")
        for line in lines:
            found = _LABEL.match(line)
            if found:
                block = self.blocks[found[1]] = Block(found[1])
            elif line.strip() and not line.lstrip().startswith(";"):
                self.blocks.setdefault(block.label, block)
                block.lines.append(line)

    def lines(self) -> list[str]:
        """Return the text."""
        found: list[str] = []
        for block in self.blocks.values():
            found += [f"{block.label}:"] if block.label else []
            found += block.lines
        return found


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
    """Put polls into the body of a function.

    Parameters
    ----------
    lines : list of str
        The lines between the function's header and the closing brace, as LLVM prints them.
    stop : str
        Name of the pointer to the stop word; it has to be defined in front of every loop.
    leave : list of str
        Lines of the block that leaves the function with the status ``%nbrt.status``.
    metadata : mapping
        The module's metadata nodes by number (``!4``).
    weights : str
        What marks a branch whose first target is the likely one, or empty.
    polled : collection of str
        Labels of the headers of loops that are left alone, as a poll is made in each turn.
    strips : bool
        Whether loops that count are strip-mined. A short loop takes longer to enter then.

    Returns
    -------
    list of str
        The lines with polls; the same if there are no loops to poll in.
    """
    body = Body(lines)
    loops = _loops(body)
    writer = _Writer(body, loops, stop, metadata, weights, strips=strips)
    for loop in loops:  # those inside others first
        if loop.header not in polled:
            writer.handle(loop)
    if not writer.leaving:
        return lines
    ways = ", ".join(f"[ {code}, %{label} ]" for code, label in writer.leaving)
    return [*body.lines(), "nbrt.leave:", f"  %nbrt.status = phi i32 {ways}", *leave]


def polled_thread(module: str, name: str, yielding: Collection[str] = ()) -> str:
    """Put polls into the code of a thread that becomes a coroutine, where it is still one function.

    Parameters
    ----------
    module : str
        Text of the module, with names for all values.
    name : str
        Symbol of the thread's function. ``%simt.stop`` is the address of the stop word in it.
    yielding : collection of str
        Labels of the headers of loops that yield in each turn: the scheduler polls there.

    Returns
    -------
    str
        The module, which defines ``nbrt_attend``. Where a poll ends the thread, it returns
        ``STOPPED`` or ``INTERRUPTED``.
    """
    lines = module.splitlines()
    define = re.compile(rf'^define [^@\n]*@"?{re.escape(name)}"?\(')
    begin = next(i for i, line in enumerate(lines) if define.match(line)) + 1
    end = lines.index("}", begin)
    leave = ["  ret i32 %nbrt.status"]
    # Such loops are short, and become no vectors: threads of other lowerings do what can be long.
    text = lines[begin:end]
    body = add_polls(text, "%simt.stop", leave, {}, "", polled=yielding, strips=False)
    return "\n".join([*lines[:begin], *body, *lines[end:], attend_module(module)])


class _Writer:
    """Changes the blocks of a body."""

    def __init__(
        self,
        body: Body,
        loops: list[_Loop],
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
        self.leaving: list[tuple[str, str]] = []
        """Names of the status, and labels of the blocks, from which the function is left."""

    def handle(self, loop: _Loop) -> None:
        """Put a poll into a loop that needs one; note how long it may run without."""
        if self._is_bounded(loop) and all(
            inner.is_bounded or inner.unpolled <= _FEW for inner in loop.inner
        ):
            loop.is_bounded, loop.unpolled = True, _MAX_UNPOLLED
            return
        inside = max(1, sum(inner.unpolled for inner in loop.inner))
        turns = self._most_turns(loop)
        if turns is not None and turns * inside <= _MAX_UNPOLLED:
            loop.unpolled = turns * inside
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

    def _is_bounded(self, loop: _Loop) -> bool:
        for latch in loop.latches:
            for name in _LOOP_METADATA.findall(self._body.blocks[latch].lines[-1]):
                operands = re.findall(r"!\d+", self._metadata.get(name, ""))
                if any(BOUNDED in self._metadata.get(each, "") for each in operands):
                    return True
        return False

    def _most_turns(self, loop: _Loop) -> int | None:
        if len(loop.latches) > 1:
            return None
        counter = counter_of(self._body, loop.header, loop.latches[0], loop.blocks)
        return counter.turns if counter is not None else None

    def _always_meets(self, loop: _Loop) -> bool:
        """Whether each turn waits for the block or the grid, where the scheduler polls."""
        seen, pending = set[str](), [loop.header]
        while pending:
            label = pending.pop()
            block = self._body.blocks[label]
            if label not in seen and not any(_MEETS.search(line) for line in block.lines):
                seen.add(label)
                if loop.header in block.targets:
                    return False
                pending += [target for target in block.targets if self._is_inside(target, loop)]
        return True

    def _is_inside(self, label: str, loop: _Loop) -> bool:
        """Whether a block is in a loop, or belongs to a poll of a loop inside it."""
        return label in loop.blocks or label in self._added

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _poll(self, latch: str, header: str, target: str) -> None:
        """Poll on the edge from a latch to a header, which leads on to the target."""
        number = self._next()
        poll, attend = f"nbrt.poll.{number}", f"nbrt.attend.{number}"
        word, calm, code, go = (f"%nbrt.{n}.{number}" for n in ("word", "calm", "code", "go"))
        self._redirect(latch, header, poll)
        _rename_way(self._body.blocks[target], latch, [poll, attend])
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
        self._body.blocks[label] = Block(label, list(lines))
        self._added.add(label)

    def _redirect(self, source: str, target: str, other: str) -> None:
        """Lead the edges from a block to a target elsewhere."""
        block = self._body.blocks[source]
        pattern = re.compile(rf"label %{re.escape(target)}(?![-\w$.])")
        for index in range(block.end, len(block.lines)):
            block.lines[index] = pattern.sub(lambda _: f"label %{other}", block.lines[index])

    def _strip(self, loop: _Loop, counter: LoopCounter) -> None:
        """Put a loop around a loop, whose turns are at most `_STRIP` turns of it, and polls."""
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

    def _entering(self, loop: _Loop) -> list[str]:
        return [
            block.label
            for block in self._body.blocks.values()
            if block.label not in loop.blocks and loop.header in block.targets
        ]

    def _outer_phis(
        self, header: Block, latch: str, counting: str, strip: str, end: str, number: int
    ) -> tuple[list[str], str]:
        """Write the outer loop's phis; return them and the name of the counter's."""
        lines, begin = [], ""
        for index in header.phis:
            name, _, rest = header.lines[index].strip().partition(" = phi ")
            kind, _, pairs = rest.partition(" [ ")
            outer = f"%nbrt.begin.{number}.{index}"
            back = _value_from(f"[ {pairs}", latch)
            outside = _without_way(f"[ {pairs}", latch)
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
        """Have the latch end a strip at the limit, and the loop where it ended before."""
        block = self._body.blocks[latch]
        at = block.end
        branch = block.lines[at]
        is_at, is_done = f"%nbrt.at.{number}", f"%nbrt.done.{number}"
        exit_label = counter.exit
        inside = branch.replace(f"i1 {counter.condition},", f"i1 {is_at},", 1)
        block.lines[at:] = [f"  {is_at} = {counter.comparison(limit)}", inside]
        self._redirect(latch, exit_label, end)
        _rename_way(self._body.blocks[exit_label], latch, [end])
        ways = (end, exit_label) if counter.continues_if_true else (exit_label, end)
        targets = [f"nbrt.strip.{number}" if way == end else way for way in ways]
        self._add(
            end,
            f"  {is_done} = {counter.comparison(counter.bound)}",
            f"  br i1 {is_done}, label %{targets[0]}, label %{targets[1]}",
        )
        self._forget(block, counter.condition)
        for loop in self._loops:
            if loop.header == exit_label:  # the way out of this loop is the way back in another
                loop.latches = [end if each == latch else each for each in loop.latches]

    def _forget(self, block: Block, name: str) -> None:
        """Take out a comparison that nothing uses any more."""
        use = re.compile(rf"{re.escape(name)}(?![-\w$.])")
        uses = sum(len(use.findall(line)) for b in self._body.blocks.values() for line in b.lines)
        if uses == 1:
            block.lines[:] = [
                line for line in block.lines if not line.lstrip().startswith(f"{name} = ")
            ]


_WAY = re.compile(r'\[ (?P<value>(?:(?! \]).)*), %(?P<label>"[^"]*"|[-\w$.]+) \]')


def _rename_way(block: Block, label: str, others: Iterable[str]) -> None:
    """Have phis take what came from one block from others."""
    for index in block.phis:
        head, _, pairs = block.lines[index].partition(" [ ")
        value = _value_from(f"[ {pairs}", label)
        ways = [f"[ {value}, %{other} ]" for other in others]
        rest = _without_way(f"[ {pairs}", label)
        block.lines[index] = f"{head} {', '.join([rest, *ways] if rest else ways)}"


def _value_from(pairs: str, label: str) -> str:
    return next(way["value"] for way in _WAY.finditer(pairs) if way["label"] == label)


def _without_way(pairs: str, label: str) -> str:
    return ", ".join(way[0] for way in _WAY.finditer(pairs) if way["label"] != label)


def _loops(body: Body) -> list[_Loop]:
    """Find the loops, those inside others first."""
    targets = {label: block.targets for label, block in body.blocks.items()}
    before: dict[str, list[str]] = {label: [] for label in targets}
    for label, found in targets.items():
        for target in found:
            before[target].append(label)
    edges = _back_edges(next(iter(targets)), targets)
    latches: dict[str, list[str]] = {}
    for latch, header in edges:
        latches.setdefault(header, []).append(latch)
    loops = [_Loop(h, found, _natural_loop(h, found, before)) for h, found in latches.items()]
    loops.sort(key=lambda loop: len(loop.blocks))
    for index, loop in enumerate(loops):
        around = next((o for o in loops[index + 1 :] if loop.header in o.blocks), None)
        if around is not None:
            around.inner.append(loop)
    return loops


def _natural_loop(header: str, latches: list[str], before: Mapping[str, list[str]]) -> set[str]:
    blocks = {header}
    pending = list(latches)
    while pending:
        label = pending.pop()
        if label not in blocks:
            blocks.add(label)
            pending += before[label]
    return blocks


def _back_edges(root: str, targets: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """List the edges to a block on the path of a depth-first walk: every cycle has one."""
    edges: list[tuple[str, str]] = []
    seen, path = {root}, {root}
    stack = [(root, iter(targets[root]))]
    while stack:
        label, rest = stack[-1]
        for target in rest:
            if target in path:
                edges.append((label, target))
            elif target not in seen:
                seen.add(target)
                path.add(target)
                stack.append((target, iter(targets[target])))
                break
        else:
            path.discard(label)
            stack.pop()
    return edges
