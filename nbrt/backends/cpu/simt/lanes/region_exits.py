"""Where a group comes to the end of a region: it waits at a barrier, has ended, or has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.interchange import turn_of
from nbrt.backends.cpu.simt.lanes.regions import DONE, FAILED, NEVER, Barrier, Cut
from nbrt.backends.cpu.simt.lanes.values import Lanes, Mask, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.lanes.merges import Arrival
    from nbrt.backends.cpu.simt.lanes.spill_slots import Slots
    from nbrt.backends.cpu.simt.lanes.writer import Writer

__all__ = ["GroupExits", "PartialError"]


class PartialError(Exception):
    """Threads end before a barrier: which of them live on has to be kept."""


class GroupExits:
    """Writes what groups note at the end of a region, and where the block goes on from there.

    Parameters
    ----------
    writer, lanes : Writer, Lanes
        Where the code goes, operations on values.
    slots : Slots
        What groups keep.
    made : Cut
        The barriers.
    partial : bool
        Whether threads may end before others wait at a barrier.
    """

    def __init__(
        self, writer: Writer, lanes: Lanes, slots: Slots, made: Cut, *, partial: bool
    ) -> None:
        self._writer = writer
        self._lanes = lanes
        self._slots = slots
        self._made = made
        self._partial = partial
        self._results: dict[str, str] = {}
        for barrier in made.barriers.values():
            if barrier.result:
                self._results[barrier.result] = writer.slot("i32")
                self._results[barrier.wait] = writer.slot("i32")
        self._next = writer.slot("i32")
        self._some = {wait: writer.slot("i1") for wait in self._places()} if partial else {}
        self._waits: list[str] = []
        self._is_open = False

    def _places(self) -> list[str]:
        """Give the places that threads go on from, the more urgent first."""
        return [*self._made.turns, *self._made.barriers]

    def begin(self) -> None:
        """Prepare at the start of the function."""
        for barrier in self._made.barriers.values():
            self._begin_count(barrier)
        for flag in self._some.values():
            self._writer.do(f"store i1 false, ptr {flag}")

    def _begin_count(self, barrier: Barrier) -> None:
        if barrier.result:
            first = "1" if barrier.kind == "and" else "0"
            self._writer.do(f"store i32 {first}, ptr {self._results[barrier.wait]}")

    def results(self) -> dict[str, Value]:
        """Give what barriers have found out, by name."""
        return {
            barrier.result: Value(
                "i32",
                "scalar",
                self._writer.op(f"load i32, ptr {self._results[barrier.result]}"),
            )
            for barrier in self._made.barriers.values()
            if barrier.result
        }

    def begin_region(self, wait: str, targets: list[str]) -> None:
        """Prepare for a region, and for the places that threads may go to from it."""
        writer = self._writer
        barrier = self._made.barriers.get(wait)
        if barrier is not None and barrier.result:
            found = writer.op(f"load i32, ptr {self._results[wait]}")
            writer.do(f"store i32 {found}, ptr {self._results[barrier.result]}")
            self._begin_count(barrier)
        if self._partial:
            if wait:
                writer.do(f"store i1 false, ptr {self._some[wait]}")
            return
        self._waits = [target for target in targets if target in self._made.barriers]
        ends = not {DONE, FAILED}.isdisjoint(targets)
        self._is_open = len(self._waits) > 1 or (bool(self._waits) and ends)
        if self._is_open:
            writer.do(f"store i32 -1, ptr {self._next}")

    def end_region(self, labels: dict[str, str]) -> None:
        """Jump to the region that follows, once all groups are through with this one.

        `labels` gives the label of each region by the place that it goes on from.
        """
        writer = self._writer
        if self._partial:
            for wait in self._places():
                rest = writer.name("else")
                some = writer.op(f"load i1, ptr {self._some[wait]}")
                writer.choose(some, labels[wait], rest)
                writer.start(rest)
            writer.do("ret i32 0")
            return
        roots = [labels[wait] for wait in self._waits]
        if not self._is_open:
            if roots:
                writer.go(roots[0])
            else:
                writer.do("ret i32 0")
            return
        chosen = writer.op(f"load i32, ptr {self._next}")
        over = writer.name("over")
        cases = " ".join(f"i32 {i}, label {root}" for i, root in enumerate(roots))
        writer.do(f"switch i32 {chosen}, label {over} [ {cases} ]")
        writer.start(over)
        writer.do("ret i32 0")

    # -- a group -----------------------------------------------------------------------------------

    def end_group(self, arrivals: list[Arrival], mask: Mask, place: Sequence[Value]) -> None:
        """Note where the lanes of a group have gone; `place` is their threadIdx.

        Raises
        ------
        PartialError
            If some have ended and others wait, which nobody has been prepared for.
        """
        failed = next((a for a in arrivals if a.target == FAILED), None)
        if failed is not None:
            self._fail(failed, place)
        for arrival in arrivals:
            if arrival.target in (DONE, FAILED, NEVER):
                continue
            is_whole = arrival.mask is mask and arrival.taken == "true"
            if not is_whole and not self._partial and not self._is_choice(arrivals, mask):
                raise PartialError
            self._arrive(arrival)

    def _is_choice(self, arrivals: list[Arrival], mask: Mask) -> bool:
        """Whether all lanes of the group went the same of several ways."""
        return all(a.mask is mask for a in arrivals if a.target not in (NEVER, FAILED))

    def _taken_bits(self, arrival: Arrival) -> str:
        kind = f"i{self._writer.width}"
        bits = self._lanes.bits(arrival.mask)
        if arrival.taken == "true":
            return bits
        return self._writer.op(f"select i1 {arrival.taken}, {kind} {bits}, {kind} 0")

    def _arrive(self, arrival: Arrival) -> None:
        """Note that lanes of the group wait at a barrier, or go for another turn of a loop."""
        writer, wait = self._writer, arrival.target
        if self._partial:
            bits = self._taken_bits(arrival)
            self._slots.add_to_mask(wait, bits)
            some = writer.op(f"icmp ne i{writer.width} {bits}, 0")
            flag = self._some[wait]
            old = writer.op(f"load i1, ptr {flag}")
            writer.do(f"store i1 {writer.op(f'or i1 {old}, {some}')}, ptr {flag}")
        elif self._is_open:
            number = self._waits.index(wait)
            some = arrival.taken
            if arrival.mask is not None:
                some = writer.op(f"icmp ne i{writer.width} {self._taken_bits(arrival)}, 0")
            old = writer.op(f"load i32, ptr {self._next}")
            new = writer.op(f"select i1 {some}, i32 {number}, i32 {old}")
            writer.do(f"store i32 {new}, ptr {self._next}")
        if wait in self._made.turns:
            for phi in self._made.phis(wait):
                self._slots.keep(turn_of(phi.name), arrival.values[phi.name], None)
            return
        barrier = self._made.barriers[wait]
        if barrier.test is not None:
            self._count(barrier, arrival)

    def _count(self, barrier: Barrier, arrival: Arrival) -> None:
        """Add what the lanes contribute to what a barrier finds out."""
        writer, width = self._writer, self._writer.width
        assert barrier.test is not None
        test = arrival.values[barrier.test.name]
        true = writer.op(f"icmp ne {writer.vector('i32')} {test.text}, zeroinitializer")
        votes = writer.op(f"bitcast {writer.vector('i1')} {true} to i{width}")
        here = self._taken_bits(arrival)
        yes = writer.op(f"and i{width} {votes}, {here}")
        slot = self._results[barrier.wait]
        old = writer.op(f"load i32, ptr {slot}")
        if barrier.kind == "count":
            count = writer.call(f"i{width}", f"llvm.ctpop.i{width}", [f"i{width} {yes}"])
            wide = count if width == 32 else writer.op(f"zext i{width} {count} to i32")
            new = writer.op(f"add i32 {old}, {wide}")
        elif barrier.kind == "or":
            some = writer.op(f"icmp ne i{width} {yes}, 0")
            new = writer.op(f"select i1 {some}, i32 1, i32 {old}")
        else:
            every = writer.op(f"icmp eq i{width} {yes}, {here}")
            new = writer.op(f"select i1 {every}, i32 {old}, i32 0")
        writer.do(f"store i32 {new}, ptr {slot}")

    def _fail(self, arrival: Arrival, place: Sequence[Value]) -> None:
        """Leave the block if a lane has failed, and say which thread that was."""
        writer, lanes, width = self._writer, self._lanes, self._writer.width
        # One way out may return 0 for some lanes, which have just ended.
        status = next(iter(arrival.values.values()))
        whole = f"{writer.vector('i32')} {lanes.vector(status)}"
        wrong = writer.op(f"icmp ne {whole}, zeroinitializer")
        wrong = writer.op(f"bitcast {writer.vector('i1')} {wrong} to i{width}")
        bits = writer.op(f"and i{width} {self._taken_bits(arrival)}, {wrong}")
        some = writer.op(f"icmp ne i{width} {bits}, 0")
        failed, after = writer.name("failed"), writer.name("passed")
        writer.choose(some, failed, after)
        writer.start(failed)
        first = writer.call(f"i{width}", f"llvm.cttz.i{width}", [f"i{width} {bits}", "i1 true"])
        for axis, index in enumerate(place):
            indices = f"{writer.vector('i32')} {lanes.vector(index)}"
            one = writer.op(f"extractelement {indices}, i{width} {first}")
            at = writer.op(f"getelementptr i32, ptr %nbrt.where, i64 {axis}")
            writer.do(f"store i32 {one}, ptr {at}")
        writer.do(f"ret i32 {writer.op(f'extractelement {whole}, i{width} {first}')}")
        writer.start(after)
