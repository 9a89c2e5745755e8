"""The block function: regions one after the other, in each a loop over groups of threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.divergence import VARYING, Shape, Shapes
from nbrt.backends.cpu.simt.lanes.flow import Flow
from nbrt.backends.cpu.simt.lanes.instructions import Instructions
from nbrt.backends.cpu.simt.lanes.interchange import find_turns, turn_of
from nbrt.backends.cpu.simt.lanes.lane_layout import choose_geometry, widest
from nbrt.backends.cpu.simt.lanes.region_exits import GroupExits, PartialError
from nbrt.backends.cpu.simt.lanes.regions import (
    Region,
    alias_of,
    check_loops,
    check_uniform,
    cut,
    find_regions,
    keep_values,
    with_aliases,
)
from nbrt.backends.cpu.simt.lanes.spill_slots import Slots
from nbrt.backends.cpu.simt.lanes.spin_loops import check_spins
from nbrt.backends.cpu.simt.lanes.values import Lanes, Mask, Value
from nbrt.backends.cpu.simt.lanes.writer import Writer
from nbrt.backends.cpu.simt.llvm.code import THREAD_PARAMETERS, ThreadIR
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.parse import parse_function

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.model import Function, Instruction

__all__ = ["lanes_block"]

_PADDING = 64 * placeholders.WARP_SIZE
"""Bytes around shared arrays: vectors of lanes that take part in part reach past their ends."""


def lanes_block(code: ThreadIR, *, only_diverging: bool = False) -> str:
    """Lower a thread to a block function of vector code.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    only_diverging : bool
        Refuse code without a loop that lanes may leave at different times.

    Returns
    -------
    str
        Text of a module that defines ``@<name>.block``.

    Raises
    ------
    CannotLowerError
        If the thread has something that lanes cannot do in step.
    """
    function = parse_function(code.module, code.name)
    try:
        block = _BlockWriter(function, code, partial=False, only_diverging=only_diverging)
        if only_diverging and not block.diverges():
            raise CannotLowerError("all threads leave every loop together")
        return block.text()
    except PartialError:
        function = parse_function(code.module, code.name)
        return _BlockWriter(function, code, partial=True, only_diverging=only_diverging).text()


def _uses_warps(function: Function) -> bool:
    return any(
        item.opcode == "call"
        and item.detail.startswith((*placeholders.WARP_OPERATIONS, placeholders.WARP_SYNC))
        for _, item in function.instructions()
    )


class _BlockWriter:
    """Writes one block function."""

    def __init__(
        self, function: Function, code: ThreadIR, *, partial: bool, only_diverging: bool
    ) -> None:
        self._function = function
        self._code = code
        width = widest(function, cooperates=not only_diverging)
        self._geometry = choose_geometry(code.block, width, warps=_uses_warps(function))
        self._made = cut(function)
        self._tids = [p.text for p in function.parameters[THREAD_PARAMETERS:][:3]]
        lanes = self._geometry.width
        self._shapes = Shapes(function, self._positions(), {self._tids[0]: lanes}, lanes)
        turns = find_turns(self._made, self._shapes, self._threads)
        find_regions(self._made, turns if self._geometry.groups > 1 else [])
        self._shapes.refine(region.level for region in self._made.regions)
        self._partial = partial or bool(self._made.turns)
        self._check()
        keep_values(self._made, self._shapes.definitions)
        for region in self._made.regions:
            for names in region.aliases.values():
                for name, alias in names.items():
                    self._shapes.of[alias] = self._shapes.of[name]
                    self._shapes.definitions[alias] = self._shapes.definitions[name]
        for header in self._made.turns.values():
            for phi in function.blocks[header].phis:
                self._shapes.of[turn_of(phi.name)] = self._shapes.of[phi.name]
                self._shapes.definitions[turn_of(phi.name)] = phi
        self._writer = Writer(self._geometry.width)
        self._lanes = Lanes(self._writer)
        self._known: dict[str, Value] = {}
        self._values: dict[str, Value] = {}
        used = {o.text for _, item in function.instructions() for o in item.operands}
        used |= {o.text for phis in self._made.outside.values() for p in phis for o in p.operands}
        self._instructions = Instructions(
            self._writer, self._lanes, self._shapes, self._values, used
        )
        self._slots = Slots(self._writer, self._lanes, self._shapes, self._geometry.groups)
        self._ends = GroupExits(
            self._writer, self._lanes, self._slots, self._made, partial=self._partial
        )

    def diverges(self) -> bool:
        """Whether lanes may leave a loop at different times."""
        return bool(self._shapes.parting)

    @property
    def _threads(self) -> int:
        width, height, depth = self._code.block
        return width * height * depth

    # -- before writing --------------------------------------------------------------------------

    def _found_out(self) -> dict[str, Shape]:
        """Give what barriers find out, which is the same for all threads."""
        return {barrier.result: 0 for barrier in self._made.barriers.values() if barrier.result}

    def _positions(self) -> dict[str, Shape]:
        found = self._found_out()
        for axis, name in enumerate(self._tids):
            if self._code.block[axis] == 1:
                found[name] = 0
            elif self._geometry.by_rows:
                found[name] = 1 if axis == 0 else 0
            else:
                found[name] = VARYING
        return found

    def _check(self) -> None:
        check_loops(self._made, self._shapes)
        check_spins(self._function, self._shapes)
        varying = self._found_out()
        for axis, name in enumerate(self._tids):
            if self._code.block[axis] > 1:
                varying[name] = VARYING
        if self._made.barriers:
            check_uniform(self._made, Shapes(self._function, varying, {}, 0))
        for _, item in self._function.instructions():
            if item.detail == placeholders.GRID_SYNC:
                raise CannotLowerError("threads of all blocks wait for each other")

    # -- the function ----------------------------------------------------------------------------

    def text(self) -> str:
        """Write the module."""
        writer, function = self._writer, self._function
        self._reserve()
        self._ends.begin()
        labels = {region.wait: writer.name("region") for region in self._made.regions}
        writer.go(labels[""])
        for region in self._made.regions:
            self._write_region(region, labels)
        parameters = ", ".join(f"{p.type} {p.text}" for p in function.parameters)
        shared = f"ptr %{placeholders.SHARED}at, i64 %{placeholders.SHARED}bytes"
        extra = f"{shared}, ptr %nbrt.stop, ptr %nbrt.where"
        head = f"define i32 @{function.name}.block({parameters}, {extra}) {{\nentry:"
        declared = _declared(function.outside)
        lines = [text for symbol, text in writer.declarations.items() if symbol not in declared]
        body = [*writer.stack, *writer.lines]
        return "\n".join([function.outside, *lines, head, *body, "}"])

    def _reserve(self) -> None:
        """Make room for shared arrays, for what is kept, and for stack slots of threads."""
        for parameter in self._function.parameters:
            self._known[parameter.text] = Value(parameter.type, "scalar", parameter.text)
        arrays: dict[str, str] = {}
        for _, item in self._function.instructions():
            if item.opcode == "call" and item.detail.startswith(placeholders.SHARED):
                self._known[item.name] = self._shared(item, arrays)
            elif item.opcode == "alloca":
                self._slots.add_frame(item, kept=len(self._made.regions) > 1)
        for name in sorted(self._made.slots):
            self._slots.add(name)
        for header in self._made.turns.values():
            for phi in self._function.blocks[header].phis:
                self._slots.add(turn_of(phi.name))
        if self._partial:
            for wait in (*self._made.turns, *self._made.barriers):
                self._slots.add_mask(wait)

    def _shared(self, item: Instruction, arrays: dict[str, str]) -> Value:
        writer = self._writer
        if item.detail == placeholders.SHARED_DYNAMIC:
            return Value("ptr", "scalar", f"%{placeholders.SHARED}at")
        if item.detail == placeholders.SHARED_BYTES:
            return Value("i64", "scalar", f"%{placeholders.SHARED}bytes")
        if item.detail not in arrays:
            size, _ = placeholders.shared_extent(item.detail)  # the stack's alignment is wider
            room = self._slots.room(size + 2 * _PADDING, "i8")
            place = writer.op(f"getelementptr i8, ptr {room}, i64 {_PADDING}")
            arrays[item.detail] = place
        return Value("ptr", "scalar", arrays[item.detail])

    # -- a region --------------------------------------------------------------------------------

    def _write_region(self, region: Region, labels: dict[str, str]) -> None:
        writer, groups = self._writer, self._geometry.groups
        writer.start(labels[region.wait])
        self._ends.begin_region(region.wait, self._targets_of(region))
        before, head, after = writer.label, writer.name("group"), writer.name("groups.end")
        writer.go(head)
        writer.start(head)
        group, at = writer.name("g"), len(writer.lines)
        self._slots.group = group
        self._write_group(region)
        following = writer.op(f"add nuw nsw i64 {group}, 1")
        phi = f"phi i64 [ 0, {before} ], [ {following}, {writer.label} ]"
        writer.lines.insert(at, f"  {group} = {phi}")
        more = writer.op(f"icmp ult i64 {following}, {groups}")
        writer.choose(more, head, after)
        writer.start(after)
        self._ends.end_region(labels)

    def _targets_of(self, region: Region) -> list[str]:
        level = region.level
        inside = level.blocks
        return list(
            dict.fromkeys(
                t for b in sorted(inside) for t in self._made.successors(b) if t not in inside
            )
        )

    def _write_group(self, region: Region) -> None:
        """Write what one group does in a region."""
        self._values.clear()
        self._values.update(self._known)
        mask = self._place()
        self._values.update(self._slots.frames())
        self._values.update(self._ends.results())
        for item in region.remade:
            self._instructions.write(item, None)
        for name in region.loads:
            self._values[name] = self._values[alias_of(name)] = self._slots.fetch(name)
        if self._partial and region.wait:
            mask = self._slots.take_mask(region.wait)
        elif self._partial:
            self._slots.clear_masks()
        phis = {}
        if region.wait in self._made.turns:
            for phi in self._made.phis(region.wait):
                phis[phi.name] = self._slots.fetch(turn_of(phi.name))
        blocks = {
            label: with_aliases(self._function.blocks[label], region.aliases.get(label, {}))
            for label in region.level.blocks
        }
        flow = Flow(
            self._writer,
            self._lanes,
            self._shapes,
            self._instructions,
            self._values,
            blocks,
            self._made.phis,
            self._made.successors,
            region.aliases,
            lambda name, mask: self._slots.keep(name, self._values[name], mask),
        )
        level = region.level
        arrivals = flow.guarded(level, level.root, set(level.order), mask, phis, None)
        self._ends.end_group(arrivals, mask, [self._values[name] for name in self._tids])

    def _place(self) -> Mask:
        """Say where the threads of the group are; gives which lanes are threads at all."""
        writer, geometry, group = self._writer, self._geometry, self._slots.group
        width, height, _ = self._code.block
        x, y, z = self._tids
        for name in self._tids:
            self._values[name] = Value("i32", "scalar", "0")
        if not geometry.by_rows:
            return self._linear_place()
        row, part = "0", group
        if geometry.groups != geometry.per_row:
            row = writer.op(f"udiv i64 {group}, {geometry.per_row}")
            part = writer.op(f"urem i64 {group}, {geometry.per_row}")
            low, high = (
                writer.op(f"urem i64 {row}, {height}"),
                writer.op(f"udiv i64 {row}, {height}"),
            )
            for name, value, extent in ((y, low, height), (z, high, self._code.block[2])):
                if extent > 1:
                    narrow = writer.op(f"trunc nuw nsw i64 {value} to i32")
                    self._values[name] = Value("i32", "scalar", narrow)
        if width > 1:
            first = writer.op(f"mul nuw nsw i64 {part}, {geometry.width}")
            narrow = writer.op(f"trunc nuw nsw i64 {first} to i32")
            self._values[x] = Value("i32", "step", narrow, 1)
        if not geometry.tail:
            return None
        return self._tail(part, geometry.per_row)

    def _tail(self, part: str, count: int) -> Mask:
        writer, geometry = self._writer, self._geometry
        if count == 1:
            return Value("i1", "below", str(geometry.tail))
        last = writer.op(f"icmp eq i64 {part}, {count - 1}")
        return Value(
            "i1",
            "below",
            writer.op(f"select i1 {last}, i64 {geometry.tail}, i64 {geometry.width}"),
        )

    def _linear_place(self) -> Mask:
        """Lanes are consecutive threads of the whole block, over the ends of rows."""
        writer, geometry = self._writer, self._geometry
        width, height, depth = self._code.block
        first = writer.op(f"mul nuw nsw i64 {self._slots.group}, {geometry.width}")
        narrow = writer.op(f"trunc nuw nsw i64 {first} to i32")
        whole = writer.vector("i32")
        rank = self._lanes.vector(Value("i32", "step", narrow, 1))
        row = writer.op(f"udiv {whole} {rank}, splat (i32 {width})")
        parts = (
            (f"urem {whole} {rank}, splat (i32 {width})", width),
            (f"urem {whole} {row}, splat (i32 {height})", height),
            (f"udiv {whole} {row}, splat (i32 {height})", depth),
        )
        for name, (text, extent) in zip(self._tids, parts, strict=True):
            if extent > 1:
                self._values[name] = Value("i32", "vector", writer.op(text))
        return self._tail(self._slots.group, geometry.groups) if geometry.tail else None


def _declared(outside: str) -> set[str]:
    """Give the symbols that the rest of the module knows."""
    return set(
        re.findall(r'^(?:declare|define)[^@\n]*@"?([-a-zA-Z$._0-9]+)', outside, re.MULTILINE)
    )
