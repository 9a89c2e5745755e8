"""The block function: its regions in order, each a loop over the groups of threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.accesses.prefetch import Advances
from nbrt.backends.cpu.simt.lanes.accesses.private_copies import PrivateCopies
from nbrt.backends.cpu.simt.lanes.analysis.coalescing import slot_owners
from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING, Divergence, Stride
from nbrt.backends.cpu.simt.lanes.analysis.index_strides import IndexStrides
from nbrt.backends.cpu.simt.lanes.analysis.interchange import find_interchanges, iteration_name
from nbrt.backends.cpu.simt.lanes.analysis.irregular_loops import runs_irregular_loops
from nbrt.backends.cpu.simt.lanes.analysis.jammed_loops import JammedLoops
from nbrt.backends.cpu.simt.lanes.analysis.lane_layout import (
    choose_lane_count,
    choose_layout,
    uses_warps,
)
from nbrt.backends.cpu.simt.lanes.analysis.legality import (
    check_loops,
    check_spins,
    check_uniform,
    may_leave_iterations_apart,
    may_return_before_others,
    uses_local_arrays,
)
from nbrt.backends.cpu.simt.lanes.analysis.reaching_values import merge_reaching_values
from nbrt.backends.cpu.simt.lanes.analysis.reciprocals import multiply_by_reciprocals
from nbrt.backends.cpu.simt.lanes.analysis.regions import (
    BarrierRegion,
    alias_of,
    find_regions,
    keep_values,
    split_at_barriers,
)
from nbrt.backends.cpu.simt.lanes.analysis.row_strides import RowStrides
from nbrt.backends.cpu.simt.lanes.analysis.warp_sums import keep_warp_sums
from nbrt.backends.cpu.simt.lanes.block_strips import (
    STRIPS,
    block_index,
    continues_runs,
    fitting_strip,
    has_short_rows,
    strip_obstacle,
)
from nbrt.backends.cpu.simt.lanes.flow.control_flow import ControlFlow
from nbrt.backends.cpu.simt.lanes.flow.jammed_regions import JammedRegion
from nbrt.backends.cpu.simt.lanes.flow.region_exits import PartialError, RegionExits
from nbrt.backends.cpu.simt.lanes.instructions import Instructions
from nbrt.backends.cpu.simt.lanes.shared_arrays import SharedArrays
from nbrt.backends.cpu.simt.lanes.signatures import block_parameters, declared_symbols
from nbrt.backends.cpu.simt.lanes.spill_slots import SpillSlots
from nbrt.backends.cpu.simt.lanes.thread_indices import ThreadIndices
from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter
from nbrt.backends.cpu.simt.lanes.vectors.values import Mask, Value
from nbrt.backends.cpu.simt.llvm.model import (
    THREAD_PARAMETERS,
    CannotLowerError,
    ThreadIR,
    ThreadsAreFasterError,
)
from nbrt.backends.cpu.simt.llvm.parse import parse_function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.jammed_loops import JammedLoop, Registers
    from nbrt.backends.cpu.simt.llvm.model import Instruction

__all__ = ["lanes_block", "longest_strip", "one_lane_block"]


def one_lane_block(code: ThreadIR, registers: Registers, notes: list[str]) -> str:
    """Lower a thread to a block function that runs the threads of a region one after the other.

    The code of the thread may compute with vectors. Neighbouring threads may run a loop together.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    registers : Registers
        The vector registers of the processor.
    notes : list of str
        Receives the rules that applied.

    Returns
    -------
    str
        Text of a module that defines ``@<name>.lanes``.

    Raises
    ------
    CannotLowerError
        If the thread has warp operations, or some threads may return before others wait.
    """
    block = _BlockWriter(code, partial=False, only_diverging=False, one_lane=True)
    block.jam_loops(registers)
    text = block.text(f"{code.name}.lanes")
    notes += block.notes
    return text


def lanes_block(
    code: ThreadIR,
    symbol: str = "",
    *,
    only_diverging: bool = False,
    notes: list[str] | None = None,
    strip: int = 1,
) -> str:
    """Lower a thread to a block function of vector code.

    Parameters
    ----------
    code : ThreadIR
        One thread.
    symbol : str
        Name of the block function; ``<name>.lanes`` by default.
    only_diverging : bool
        Refuse code without a divergent loop.
    notes : list of str, optional
        Receives the rules that applied to accesses, and what stood in the way of others.
    strip : int
        Maximum number of neighbouring blocks along x that a call runs in step. If it is not 1, the
        block function has a last parameter, their number.

    Returns
    -------
    str
        Text of a module that defines the block function.

    Raises
    ------
    CannotLowerError
        If lanes cannot run the thread, or a strip of blocks, in step.
    """
    symbol = symbol or f"{code.name}.lanes"
    try:
        block = _BlockWriter(code, partial=False, only_diverging=only_diverging, strip=strip)
        if only_diverging and not block.has_divergent_loops:
            raise CannotLowerError("all threads leave every loop together")
        if only_diverging and block.has_irregular_loops:
            raise ThreadsAreFasterError(
                "each thread runs its loop alone: its length is data, and it loads neighbours"
            )
        text = block.text(symbol)
    except PartialError as error:
        if strip > 1:
            raise CannotLowerError("some threads may return before others wait") from error
        block = _BlockWriter(code, partial=True, only_diverging=only_diverging)
        text = block.text(symbol)
    if notes is not None:
        notes += block.notes
    return text


def longest_strip(code: ThreadIR) -> tuple[int, str]:
    """Find how many neighbouring blocks along x better run in step.

    Parameters
    ----------
    code : ThreadIR
        One thread.

    Returns
    -------
    strip : int
        Number of blocks.
    obstacle : str
        What stands in the way of strips that would give longer runs of memory; or empty.

    Raises
    ------
    CannotLowerError
        If lanes cannot run the thread in step.
    """
    if code.block[1:] == (1, 1) or placeholders.BARRIER not in code.module:
        return 1, ""
    return _BlockWriter(code, partial=False, only_diverging=False).longest_strip()


class _BlockWriter:
    """Writes one block function."""

    def __init__(
        self,
        code: ThreadIR,
        *,
        partial: bool,
        only_diverging: bool,
        one_lane: bool = False,
        strip: int = 1,
    ) -> None:
        function = parse_function(code.module, code.name)
        self._function, self._code, self._strip = function, code, strip
        has_warps = uses_warps(function)
        if one_lane and has_warps:
            raise CannotLowerError("one lane has no warp operations")
        lanes = 1 if one_lane else choose_lane_count(function, cooperates=not only_diverging)
        self._layout = choose_layout(code.block, lanes, warps=has_warps)
        self._thread = split_at_barriers(function)
        self._tids = [p.text for p in function.parameters[THREAD_PARAMETERS:][:3]]
        self._strides = IndexStrides(self._thread, self._layout, self._tids)
        width = self._layout.width
        keep_warp_sums(self._thread, self._layout, self._tids[0])
        multiplies = width > 1 and multiply_by_reciprocals(function, self._find_divergence)
        merge_reaching_values(self._thread)
        self._divergence = self._find_divergence()
        if only_diverging and uses_local_arrays(function, self._divergence):
            raise ThreadsAreFasterError(
                "a loop that threads leave at different times uses local arrays"
            )
        interchanged: list[str] = []
        if self._layout.groups > 1 and not one_lane:
            x, y, z = code.block
            interchanged = find_interchanges(self._thread, self._divergence, x * y * z)
        find_regions(self._thread, interchanged)
        self._divergence.refine(region.level for region in self._thread.regions)
        self._rows = self._row_strides()
        self._partial = partial or may_leave_iterations_apart(self._thread)
        self._check()
        keep_values(self._thread, self._divergence.definitions)
        self._add_aliases()
        self._writer = RowWriter(width, self._layout.rows)
        if multiplies:
            note = "divisions by a value of all lanes are products with its reciprocal (fastmath)"
            self._writer.notes[note] = None
        self._known: dict[str, Value] = {}
        used = self._used = {o.text for _, item in function.instructions() for o in item.operands}
        used |= {o.text for phi in self._thread.all_phis() for o in phi.operands}
        self._advances = Advances(self._thread, self._divergence, has_rows=code.block[1:] != (1, 1))
        self._instructions = Instructions(
            self._writer, self._divergence, used, self._advances, self._rows
        )
        self._values = self._instructions.values
        self._indices = ThreadIndices(self._writer, self._layout, code.block, self._tids)
        slots = self._layout.groups * strip
        self._slots = SpillSlots(self._writer, self._divergence, slots, self._rows)
        self._shared = SharedArrays(self._writer, self._slots.allocate, strip)
        self._exits = RegionExits(self._writer, self._slots, self._thread, partial=self._partial)
        self._copies = PrivateCopies(self._writer, self._slots.allocate, self._thread, used)
        self._instructions.use_copies(self._copies)
        self._jammed: JammedLoops | None = None
        self._first: dict[str, Value] = {}

    def jam_loops(self, registers: Registers) -> None:
        """Let neighbouring threads run loops together; groups have one lane."""
        width = self._code.block[0]
        self._jammed = JammedLoops(self._thread, width, self._tids[0], registers)

    @property
    def has_divergent_loops(self) -> bool:
        """Whether lanes may leave a loop at different times."""
        return bool(self._divergence.divergent_loops)

    @property
    def notes(self) -> list[str]:
        """The rules that applied to accesses, and what stood in the way of others."""
        notes = list(self._writer.notes)
        notes[:0] = [STRIPS.format(self._strip)] if self._strip > 1 else []
        if self._rows is not None:
            notes.insert(
                0, f"warps of {self._layout.rows} rows of the block: a vector for each row"
            )
        return notes

    @property
    def has_irregular_loops(self) -> bool:
        """Whether each thread better runs its loops alone."""
        return runs_irregular_loops(self._function, self._divergence)

    # -- analysis --------------------------------------------------------------------------------

    def _find_divergence(self) -> Divergence:
        width = self._layout.width
        return Divergence(self._function, self._strides.in_group(), {self._tids[0]: width}, width)

    def _row_strides(self) -> RowStrides | None:
        """Return the strides in the rows of a group if it has several."""
        if self._layout.rows == 1:
            return None
        strides = self._strides.in_row()
        return RowStrides(self._function, self._divergence, strides, self._code.block[0])

    def _check(self) -> None:
        check_loops(self._thread, self._divergence)
        check_spins(self._function, self._divergence)
        self._whole: Divergence | None = None
        if self._thread.barriers:
            whole = Divergence(self._function, self._strides.varying(), {}, 0)
            check_uniform(self._thread, whole)
            self._partial |= may_return_before_others(self._thread, whole)
            whole.refine(region.level for region in self._thread.regions)
            self._whole = whole
            if self._partial and self._layout.width == 1:
                raise CannotLowerError("some threads may return before others wait")
        for _, item in self._function.instructions():
            if item.detail == placeholders.GRID_SYNC:
                raise CannotLowerError("threads of all blocks wait for each other")

    def _add_aliases(self) -> None:
        """Add strides for aliases of values, and for the phis of interchanged loops."""
        aliases = [
            (alias, name)
            for region in self._thread.regions
            for names in region.aliases.values()
            for name, alias in names.items()
        ]
        aliases += [(iteration_name(phi.name), phi.name) for phi in self._interchanged_phis()]
        for alias, name in aliases:
            self._divergence.strides[alias] = self._divergence.strides[name]
            self._divergence.definitions[alias] = self._divergence.definitions[name]
            if self._rows is not None:
                self._rows.strides[alias] = self._rows.strides[name]

    def _interchanged_phis(self) -> list[Instruction]:
        headers = self._thread.interchanged.values()
        return [phi for header in headers for phi in self._function.blocks[header].phis]

    def longest_strip(self) -> tuple[int, str]:
        """Return the number of blocks that better run in step, and the reason if it is 1."""
        block, is_private = self._code.block, self._instructions.is_private
        is_short = has_short_rows(block, self._layout.width)
        if not (is_short and continues_runs(self._function, block[0], self._advances, is_private)):
            return 1, ""
        if obstacle := self._strip_obstacle():
            return 1, obstacle
        self._allocate()
        return fitting_strip(self._slots.size - self._shared.padding)

    def _strip_obstacle(self) -> str:
        if self._partial and not self._thread.interchanged:
            return "some threads may return before others wait"
        varying, is_private = self._strides.varying(), self._instructions.is_private
        return strip_obstacle(self._thread, varying, self._used, is_private)

    # -- the function ----------------------------------------------------------------------------

    def text(self, symbol: str) -> str:
        """Return the text of the module with the name of the block function."""
        writer, function = self._writer, self._function
        if self._strip > 1 and (obstacle := self._strip_obstacle()):
            raise CannotLowerError(obstacle)
        self._allocate()
        if self._layout.width > 1:
            self._copies.find(self._known)
        self._exits.begin()
        labels = {region.wait: writer.name("region") for region in self._thread.regions}
        writer.go(labels[""])
        for region in self._thread.regions:
            self._write_region(region, labels)
        head = f"define i32 @{symbol}({block_parameters(function, self._strip)}) {{\nentry:"
        declared = declared_symbols(function.outside)
        lines = [text for symbol, text in writer.declarations.items() if symbol not in declared]
        lines += [head, *writer.stack, *writer.lines]
        return "\n".join([function.outside, *lines, "}", *writer.nodes])

    def _allocate(self) -> None:
        """Allocate shared arrays, spill slots, and stack slots of threads."""
        for parameter in self._function.parameters:
            self._known[parameter.text] = Value(parameter.type, "scalar", parameter.text)
        for _, item in self._function.instructions():
            if item.opcode == "call" and item.detail.startswith(placeholders.SHARED):
                self._known[item.name] = self._shared.add(item)
            elif item.opcode == "alloca":
                self._slots.add_frame(item, kept=len(self._thread.regions) > 1)
        owners = slot_owners(self._thread) if self._layout.width == 1 else {}
        in_block = dict(self._strides_in_block())
        kept = sorted(self._thread.spilled)
        for phi in self._interchanged_phis():
            kept.append(name := iteration_name(phi.name))
            in_block[name] = in_block.get(phi.name, VARYING)
        self._slots.add_all(kept, owners, in_block)
        for wait in self._exits.masked:
            self._slots.add_mask(wait)

    def _strides_in_block(self) -> Mapping[str, Stride]:
        """Return strides in the whole block, for one slot for all groups, as far as it may be used.

        Groups that wait at several places could need values of several iterations.
        """
        is_single = self._strip > 1 or self._layout.groups == 1
        if is_single or (self._partial and self._layout.width > 1):
            return {}
        return self._strides.of_values_in_block(self._whole)

    # -- a region --------------------------------------------------------------------------------

    def _write_region(self, region: BarrierRegion, labels: dict[str, str]) -> None:
        writer = self._writer
        writer.start(labels[region.wait])
        self._exits.begin_region(region)
        self._copies.begin_region(region)
        names = [*region.loads, *(iteration_name(phi.name) for phi in self._started(region))]
        self._first = {
            name: self._slots.fetch_first(name) for name in names if self._slots.is_of_block(name)
        }
        if region.wait in self._thread.interchanged and not self._layout.tail:
            every, some, after = (writer.name(hint) for hint in ("every", "some", "iterated"))
            writer.choose(self._exits.take_every(region.wait), every, some)
            writer.start(every)
            self._write_groups(region, is_full=True)
            writer.go(after)
            writer.start(some)
            self._write_groups(region)
            writer.go(after)
            writer.start(after)
        else:
            self._write_groups(region)
        self._exits.end_region(labels)

    def _write_groups(self, region: BarrierRegion, *, is_full: bool = False) -> None:
        """Write the loop over the groups; with `is_full`, all their lanes start an iteration."""
        writer, groups = self._writer, self._layout.groups
        loop = self._jammed.find(region) if self._jammed is not None else None
        if loop is not None:
            groups //= loop.threads

        def write_group(group: str) -> None:
            if loop is not None:
                self._write_jammed(region, loop, group)
            elif self._strip == 1:
                self._slots.group = group
                self._write_group(region, group, is_full=is_full)
            else:
                first = writer.op(f"mul nuw nsw i64 {group}, {self._strip}")
                each = partial(self._write_part, region, group, first)
                writer.write_loop("part", "%nbrt.blocks", each)

        # Copies of an inner loop for each group would carry more values than registers hold.
        has_loops = bool(region.level.loops)
        writer.write_loop("group", str(groups), write_group, rolled=has_loops)

    def _write_part(self, region: BarrierRegion, group: str, first: str, part: str) -> None:
        """Write a region for a group of a part of a strip; `first` numbers the slots of part 0."""
        self._slots.group = self._writer.op(f"add nuw nsw i64 {first}, {part}")
        self._write_group(region, group, part, is_full=False)

    def _write_jammed(self, region: BarrierRegion, loop: JammedLoop, team: str) -> None:
        """Write a region for neighbouring threads that run its loop together."""
        writer = self._writer
        writer.notes[loop.note] = None
        first = writer.op(f"mul nuw nsw i64 {team}, {loop.threads}")
        part = JammedRegion(self._thread, region, loop, self._instructions, self._slots)
        for edges in part.write(first, lambda: self._set_values(region, self._slots.group)):
            self._exits.end_group(edges, None, [self._values[name] for name in self._tids])

    def _set_values(self, region: BarrierRegion, group: str, part: str = "0") -> Mask:
        """Set the values that a group knows at the start of a region; return its threads.

        `part` is the number of its block in a strip.
        """
        self._values.clear()
        self._values.update(self._known)
        if self._strip > 1:
            index = block_index(self._function)
            self._values.update(self._shared.of_block(self._known, index, part))
        mask = self._indices.set(self._values, group)
        self._values.update(self._slots.frames())
        self._values.update(self._exits.results())
        for item in region.recomputed:
            self._instructions.write(item, None)
        for name in region.loads:
            self._values[name] = self._values[alias_of(name)] = self._fetch(name)
        return mask

    def _fetch(self, name: str) -> Value:
        """Return a kept value of the current group."""
        if name in self._first:
            return self._slots.in_group(name, self._first[name])
        return self._slots.fetch(name)

    def _started(self, region: BarrierRegion) -> list[Instruction]:
        """Return the phis of the interchanged loop of which a region is an iteration."""
        wait = region.wait
        return self._thread.phis(wait) if wait in self._thread.interchanged else []

    def _write_group(
        self, region: BarrierRegion, group: str, part: str = "0", *, is_full: bool
    ) -> None:
        """Write a region for one group of a block, which may be a part of a strip."""
        mask = self._set_values(region, group, part)
        if not region.wait:
            self._slots.clear_masks()
        elif region.wait in self._exits.masked and not is_full:
            mask = self._slots.take_mask(region.wait)
        phis = {phi.name: self._fetch(iteration_name(phi.name)) for phi in self._started(region)}
        flow = ControlFlow(self._thread, region, self._instructions, self._slots)
        edges = flow.write(mask, phis)
        indices = [self._values[name] for name in self._tids]
        if is_full:
            self._exits.end_full_group(region.wait, edges, mask, indices)
        else:
            self._exits.end_group(edges, mask, indices)
