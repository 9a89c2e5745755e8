"""The ends of regions: lanes that wait at a barrier, have returned, or have failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.interchange import iteration_name
from nbrt.backends.cpu.simt.lanes.analysis.regions import (
    DONE,
    FAILED,
    NEVER,
    Barrier,
    final_targets,
    region_targets,
)
from nbrt.backends.cpu.simt.lanes.vectors.writer import LaneWriter, Mask, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.simt.lanes.analysis.regions import BarrierRegion, SplitThread
    from nbrt.backends.cpu.simt.lanes.flow.merges import Edge
    from nbrt.backends.cpu.simt.lanes.spill_slots import SpillSlots

__all__ = ["PartialError", "RegionExits"]


class PartialError(Exception):
    """Some threads return before a barrier, and the code was generated without exit masks."""


class RegionExits:
    """Writes the ends of regions: the state that groups keep, and the jump to the next region.

    Exit masks record the threads that start another iteration of an interchanged loop. If `partial`
    is true, they also record those that wait at each barrier, because others may return before or
    wait elsewhere.

    Attributes
    ----------
    masked : list of str
        The labels of the places with exit masks, by priority.
    """

    def __init__(
        self, writer: LaneWriter, slots: SpillSlots, thread: SplitThread, *, partial: bool
    ) -> None:
        self._writer = writer
        self._slots = slots
        self._thread = thread
        self._partial = partial
        self._results: dict[str, str] = {}
        for barrier in thread.barriers.values():
            if barrier.result:
                self._results[barrier.result] = writer.slot("i32")
                self._results[barrier.wait] = writer.slot("i32")
        self._next = writer.slot("i32")
        self.masked = [*thread.interchanged, *(thread.barriers if partial else ())]
        self._some = {wait: writer.slot("i1") for wait in self.masked}
        self._every = {wait: writer.slot("i1") for wait in thread.interchanged}
        """By place: whether all lanes of all groups continue from it."""
        self._wait = ""
        self._waits: list[str] = []
        self._has_choice = False
        self._iterates = False

    def begin(self) -> None:
        """Write the initial state, at the start of the function."""
        for barrier in self._thread.barriers.values():
            self._reset_count(barrier)
        for flag in self._some.values():
            self._writer.do(f"store i1 false, ptr {flag}")
        for flag in self._every.values():
            self._writer.do(f"store i1 true, ptr {flag}")

    def _reset_count(self, barrier: Barrier) -> None:
        if barrier.result:
            first = "1" if barrier.kind == "and" else "0"
            self._writer.do(f"store i32 {first}, ptr {self._results[barrier.wait]}")

    def results(self) -> dict[str, Value]:
        """Return the results of barriers by name."""
        return {
            barrier.result: Value(
                "i32",
                "scalar",
                self._writer.op(f"load i32, ptr {self._results[barrier.result]}"),
            )
            for barrier in self._thread.barriers.values()
            if barrier.result
        }

    def begin_region(self, region: BarrierRegion) -> None:
        """Write the initial state of a region."""
        writer, wait = self._writer, region.wait
        self._wait = wait
        barrier = self._thread.barriers.get(wait)
        if barrier is not None and barrier.result:
            result = writer.op(f"load i32, ptr {self._results[wait]}")
            writer.do(f"store i32 {result}, ptr {self._results[barrier.result]}")
            self._reset_count(barrier)
        if wait in self._some:
            writer.do(f"store i1 false, ptr {self._some[wait]}")
        if self._partial:
            return
        targets = region_targets(self._thread, region)
        self._iterates = any(target in self._thread.interchanged for target in targets)
        if self._iterates:
            # The threads of the block continue at one place behind all iterations.
            targets = final_targets(self._thread, region)
        self._waits = [target for target in targets if target in self._thread.barriers]
        returns = DONE in targets or FAILED in targets
        self._has_choice = not self._iterates and (
            len(self._waits) > 1 or (bool(self._waits) and returns)
        )
        if self._has_choice:
            writer.do(f"store i32 -1, ptr {self._next}")

    def take_every(self, wait: str) -> str:
        """Return whether all lanes of all groups start an iteration, as an ``i1``."""
        every = self._writer.op(f"load i1, ptr {self._every[wait]}")
        self._writer.do(f"store i1 true, ptr {self._every[wait]}")
        return every

    def end_region(self, labels: dict[str, str]) -> None:
        """Write the jump to the next region, behind the loop over groups.

        `labels` are the labels of regions by the places that they continue from.
        """
        writer = self._writer
        if self._partial or self._iterates:
            for wait in self.masked:
                rest = writer.name("else")
                some = writer.op(f"load i1, ptr {self._some[wait]}")
                writer.choose(some, labels[wait], rest)
                writer.start(rest)
        if self._partial:
            writer.do("ret i32 0")
            return
        roots = [labels[wait] for wait in self._waits]
        if not self._has_choice:
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

    def end_group(self, edges: list[Edge], mask: Mask, indices: Sequence[Value]) -> None:
        """Write the state of a group after a region.

        `mask` are the lanes that entered it, `indices` their ``threadIdx``, `edges` leave it.

        Raises
        ------
        PartialError
            If some lanes have returned and others wait, without exit masks.
        """
        failed = next((edge for edge in edges if edge.target == FAILED), None)
        if failed is not None:
            self._fail(failed, indices)
        others = [edge for edge in edges if edge.target not in (NEVER, FAILED)]
        together = self._iterates or all(edge.mask is mask for edge in others)
        for edge in others:
            if edge.target == DONE:
                continue
            is_whole = edge.mask is mask and edge.taken == "true"
            if not (is_whole or together or self._partial):
                raise PartialError
            self._continue_at(edge)

    def end_full_group(
        self, wait: str, edges: list[Edge], mask: Mask, indices: Sequence[Value]
    ) -> None:
        """Write the state of a group whose lanes have all run an iteration of a loop.

        They start the next one, as a rule. Their exit mask is full already, then, and none of them
        waits at another place.
        """
        writer = self._writer
        again = next((edge for edge in edges if edge.target == wait), None)
        if again is None or again.taken != "true":
            self.end_group(edges, mask, indices)
            return
        if any(edge.target == FAILED for edge in edges):
            self._fail(next(edge for edge in edges if edge.target == FAILED), indices)
        full, rest, after = writer.name("every"), writer.name("rest"), writer.name("next")
        writer.choose(writer.all(again.mask), full, rest)
        writer.start(full)
        self._keep_phis(again, None)
        writer.do(f"store i1 true, ptr {self._some[wait]}")
        for edge in edges:
            if edge.target in self._every and edge.target != wait:
                writer.do(f"store i1 false, ptr {self._every[edge.target]}")
        writer.go(after)
        writer.start(rest)
        self._slots.clear_mask(wait)
        edges = [edge for edge in edges if edge.target != FAILED]
        if writer.has_limit(again.mask):
            # The last iteration of all lanes: none of them needs a mask.
            some, none = writer.name("some"), writer.name("none")
            writer.choose(writer.any(again.mask), some, none)
            writer.start(none)
            writer.do(f"store i1 false, ptr {self._every[wait]}")
            self.end_group([edge for edge in edges if edge is not again], mask, indices)
            writer.go(after)
            writer.start(some)
        self.end_group(edges, mask, indices)
        writer.go(after)
        writer.start(after)

    def _taken_bits(self, edge: Edge) -> str:
        kind = f"i{self._writer.width}"
        bits = self._writer.bits(edge.mask)
        if edge.taken == "true":
            return bits
        return self._writer.op(f"select i1 {edge.taken}, {kind} {bits}, {kind} 0")

    def _continue_at(self, edge: Edge) -> None:
        """Record that lanes of the group wait at a barrier, or start another iteration."""
        writer, wait = self._writer, edge.target
        if wait in self._every and edge.taken == "true" and writer.has_limit(edge.mask):
            full, rest, after = writer.name("every"), writer.name("rest"), writer.name("next")
            some = writer.any(edge.mask)
            writer.choose(writer.all(edge.mask), full, rest)
            writer.start(full)
            self._slots.add_to_mask(wait, "-1")
            writer.do(f"store i1 true, ptr {self._some[wait]}")
            writer.go(after)
            writer.start(rest)
            self._add_to_mask(edge)
            writer.go(after)
            writer.start(after)
        elif wait in self._some:
            some = self._add_to_mask(edge)
        elif self._has_choice:
            number = self._waits.index(wait)
            some = edge.taken
            if edge.mask is not None:
                some = writer.op(f"icmp ne i{writer.width} {self._taken_bits(edge)}, 0")
            old = writer.op(f"load i32, ptr {self._next}")
            new = writer.op(f"select i1 {some}, i32 {number}, i32 {old}")
            writer.do(f"store i32 {new}, ptr {self._next}")
        if wait in self._thread.interchanged:
            self._keep_late_phis(edge, some)
            return
        barrier = self._thread.barriers[wait]
        if barrier.test is not None:
            self._count(barrier, edge)

    def _add_to_mask(self, edge: Edge) -> str:
        """Record the lanes that take an edge; return whether there are any."""
        writer, wait = self._writer, edge.target
        bits = self._taken_bits(edge)
        self._slots.add_to_mask(wait, bits)
        some = writer.op(f"icmp ne i{writer.width} {bits}, 0")
        self._add_flag("or", self._some[wait], some)
        if wait in self._every:
            every = writer.op(f"icmp eq i{writer.width} {bits}, -1")
            self._add_flag("and", self._every[wait], every)
        return some

    def _add_flag(self, opcode: str, flag: str, value: str) -> None:
        old = self._writer.op(f"load i1, ptr {flag}")
        self._writer.do(f"store i1 {self._writer.op(f'{opcode} i1 {old}, {value}')}, ptr {flag}")

    def _keep_phis(self, edge: Edge, mask: Mask, some: str = "true") -> None:
        """Keep the values that the next iteration of an interchanged loop starts with.

        `some` is whether a lane takes the edge.
        """
        for phi in self._thread.phis(edge.target):
            self._slots.keep(iteration_name(phi.name), edge.incoming[phi.name], mask, some)

    def _keep_late_phis(self, edge: Edge, some: str) -> None:
        """Keep these values; other lanes may wait with theirs if another loop leads to the place.

        `some` is whether a lane takes the edge.
        """
        if self._wait not in self._thread.interchanged or edge.target == self._wait:
            self._keep_phis(edge, None, some)
            return
        writer = self._writer
        keep, after = writer.name("keep"), writer.name("kept")
        writer.choose(some, keep, after)
        writer.start(keep)
        self._keep_phis(edge, edge.mask)
        writer.go(after)
        writer.start(after)

    def _count(self, barrier: Barrier, edge: Edge) -> None:
        """Add the operands of the lanes to the reduction of a barrier."""
        writer, width = self._writer, self._writer.width
        assert barrier.test is not None
        votes = self._nonzero_bits(edge.incoming[barrier.test.name])
        present = self._taken_bits(edge)
        yes = writer.op(f"and i{width} {votes}, {present}")
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
            every = writer.op(f"icmp eq i{width} {yes}, {present}")
            new = writer.op(f"select i1 {every}, i32 {old}, i32 0")
        writer.do(f"store i32 {new}, ptr {slot}")

    def _nonzero_bits(self, value: Value) -> str:
        """Return the lanes with a nonzero ``i32``, as an integer with one bit for each.

        In a group of which no lane takes the edge the value is poison. An integer with a poison bit
        is poison as a whole, even after the bits of these lanes are cleared.
        """
        writer, kind = self._writer, self._writer.vector_type("i32")
        lanes = writer.op(f"freeze {kind} {writer.vector(value)}")
        nonzero = writer.op(f"icmp ne {kind} {lanes}, zeroinitializer")
        return writer.op(f"bitcast {writer.vector_type('i1')} {nonzero} to i{writer.width}")

    def _fail(self, edge: Edge, indices: Sequence[Value]) -> None:
        """Write a return from the block if a lane has failed, and store its ``threadIdx``."""
        writer, width = self._writer, self._writer.width
        # The status of a lane that has returned is 0.
        status = next(iter(edge.incoming.values()))
        wrong = self._nonzero_bits(status)
        bits = writer.op(f"and i{width} {self._taken_bits(edge)}, {wrong}")
        some = writer.op(f"icmp ne i{width} {bits}, 0")
        failed, after = writer.name("failed"), writer.name("passed")
        writer.choose(some, failed, after)
        writer.start(failed)
        first = writer.call(f"i{width}", f"llvm.cttz.i{width}", [f"i{width} {bits}", "i1 true"])
        for axis, index in enumerate(indices):
            vector = f"{writer.vector_type('i32')} {writer.vector(index)}"
            element = writer.op(f"extractelement {vector}, i{width} {first}")
            at = writer.op(f"getelementptr i32, ptr %nbrt.where, i64 {axis}")
            writer.do(f"store i32 {element}, ptr {at}")
        whole = f"{writer.vector_type('i32')} {writer.vector(status)}"
        writer.do(f"ret i32 {writer.op(f'extractelement {whole}, i{width} {first}')}")
        writer.start(after)
