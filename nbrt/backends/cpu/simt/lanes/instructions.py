"""Instructions of a thread, written for all lanes of a group."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.accesses.memory import Memory
from nbrt.backends.cpu.simt.lanes.accesses.patterns import Patterns
from nbrt.backends.cpu.simt.lanes.accesses.prefetch import Prefetches
from nbrt.backends.cpu.simt.lanes.accesses.scalarize import IGNORED_CALLS, Scalarizer
from nbrt.backends.cpu.simt.lanes.accesses.streaming import StreamedStores
from nbrt.backends.cpu.simt.lanes.accesses.wrapped_indices import (
    element_address,
    linear_address,
    linear_choice,
    linear_sum,
)
from nbrt.backends.cpu.simt.lanes.vectors.lane_sets import folded
from nbrt.backends.cpu.simt.lanes.vectors.values import Mask, Value
from nbrt.backends.cpu.simt.lanes.warp import WarpOperations
from nbrt.backends.cpu.simt.lanes.warp_sums import WarpSums
from nbrt.backends.cpu.simt.llvm.model import (
    BINARY,
    CASTS,
    CannotLowerError,
    Instruction,
    Operand,
    renamed,
)
from nbrt.backends.cpu.simt.llvm.types import is_integer, is_scalar
from nbrt.backends.cpu.simt.math_functions import INTRINSICS, PURE_FUNCTIONS

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.accesses.prefetch import Advances
    from nbrt.backends.cpu.simt.lanes.accesses.private_copies import PrivateCopies
    from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
    from nbrt.backends.cpu.simt.lanes.analysis.row_strides import RowStrides
    from nbrt.backends.cpu.simt.lanes.vectors.rows import RowWriter
    from nbrt.backends.cpu.simt.lanes.vectors.values import Lane

__all__ = ["Instructions", "fast_flags", "is_elementwise"]

_DIVISIONS = frozenset(("udiv", "sdiv", "urem", "srem"))
_FAST = ("fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc")
_ELEMENTWISE = frozenset(
    (
        *("fabs", "sqrt", "fma", "fmuladd", "floor", "ceil", "trunc", "rint", "nearbyint"),
        *("round", "roundeven", "copysign", "minnum", "maxnum", "minimum", "maximum"),
        *("exp", "exp2", "log", "log2", "log10", "pow", "sin", "cos", "is.fpclass"),
        *("smin", "smax", "umin", "umax", "abs", "ctpop", "ctlz", "cttz", "bswap", "bitreverse"),
        *("fshl", "fshr", "sadd.sat", "uadd.sat", "ssub.sat", "usub.sat"),
    )
)
"""LLVM intrinsics with a vector form, overloaded on the type of the first operand only."""

_SCALAR_LAST = frozenset(("abs", "ctlz", "cttz", "is.fpclass"))
"""Intrinsics whose last operand is a scalar constant."""


class Instructions:
    """Writes instructions other than phis and terminators.

    `used` are the names of values with uses; `rows` are the strides in the rows of groups of
    several rows.

    Attributes
    ----------
    values : dict
        Values that are known at the current place, by name.
    loaded : dict
        Results of loads that are written already.
    """

    def __init__(
        self,
        writer: RowWriter,
        divergence: Divergence,
        used: set[str],
        advances: Advances,
        rows: RowStrides | None,
    ) -> None:
        self.writer = self._writer = writer
        self.divergence = self._divergence = divergence
        self._rows = rows
        self.values = self._values = dict[str, Value]()
        self.loaded = dict[str, Value]()
        self._scalarizer = Scalarizer(writer, used)
        self._prefetches = Prefetches(writer, advances, divergence.definitions, self.values)
        streamed = StreamedStores(writer, advances)
        self._memory = Memory(
            writer, self._scalarizer, divergence.definitions, self._prefetches, streamed
        )
        self._warp = WarpOperations(writer)
        self._sums = WarpSums(writer)
        self._patterns = Patterns(writer, divergence)

    def use_copies(self, copies: PrivateCopies) -> None:
        """Add to copies of shared arrays."""
        self._memory.copies = copies

    def value(self, operand: Operand) -> Value:
        """Return the value of an operand."""
        if operand.is_local:
            return self._values[operand.text]
        return Value(operand.type, "scalar", operand.text)

    def row_addresses(self, base: Operand, item: Instruction, index: Value, mask: Mask) -> str:
        """Return the addresses of the elements with an index in the rows of a load's lanes."""
        rows = f"{self._writer.vector_type('ptr')} {self._writer.vector(self.value(base))}"
        at = self._writer.op(f"getelementptr {item.type}, {rows}, i64 {index.text}")
        return self._memory.safe_pointers(Value("ptr", "vector", at), mask)

    def is_private(self, name: str) -> bool:
        """Return whether a pointer is always to memory that is private to the block."""
        return self._memory.is_private(name)

    def note_writes(self) -> None:
        """Record that code of single lanes may have written to memory."""
        self._memory.note_writes()

    def prefetch(self, item: Instruction, at: str) -> None:
        """Prefetch what a load or a store of one lane will use next."""
        self._memory.prefetch(item, Value("ptr", "scalar", at))

    def write(self, item: Instruction, mask: Mask) -> None:
        """Write an instruction for the lanes of a mask, at least one of which is active."""
        operands = [self.value(operand) for operand in item.operands]
        result = self._written(item, operands, mask)
        if item.name:
            assert result is not None, item
            self._values[item.name] = result

    def is_written_in_runs(self, store: Instruction) -> bool:
        """Return whether a store writes runs of shared memory, under any mask."""
        pointer = self._values.get(store.operands[1].text)
        return pointer is not None and self._memory.is_written_in_runs(store, pointer)

    def _written(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        opcode = item.opcode
        if self._writer.width == 1 and opcode != "alloca":
            return self._of_one_lane(item, operands)
        if self._rows is not None and self._rows.has_rows(item.name):
            return self._of_rows(item, operands, self._rows)
        if opcode == "call":
            return self._call(item, operands, mask)
        if item.name in self.loaded:
            return self.loaded[item.name]
        if opcode in ("load", "store", "atomicrmw", "cmpxchg"):
            return self._memory.write(item, operands, mask)
        if opcode == "alloca":
            return self._values[item.name]  # allocated at the start of the group
        if opcode == "fence":
            self._writer.do(item.text)
            return None
        if opcode == "extractvalue" and operands[0].kind == "members":
            return self._memory.member(operands[0], item)
        if all(value.kind == "scalar" for value in operands) and self._keeps_flags(item):
            constant = self._patterns.folded(item, operands)
            if constant is not None:
                return constant
            result = Value(item.type, "scalar", self._writer.op(self._copied(item, operands)))
            return self._patterns.noted(item, operands, result)
        if self._divergence.strides.get(item.name) is not None:
            return self._patterns.noted(item, operands, self._of_first_lane(item, operands))
        if opcode == "icmp":
            compared = self._patterns.compare(item, operands) or self._compared(item, operands)
        else:
            compared = self._patterns.write(item, operands)
        return compared or self._elementwise(item, operands, mask)

    def _keeps_flags(self, item: Instruction) -> bool:
        return all(self._divergence[operand] == 0 for operand in item.operands)

    def _copied(self, item: Instruction, operands: list[Value]) -> str:
        names = {
            operand.text: value.text
            for operand, value in zip(item.operands, operands, strict=True)
            if operand.is_local
        }
        return renamed(item.text, names)

    def _of_one_lane(self, item: Instruction, operands: list[Value]) -> Value | None:
        """Copy an instruction, which may compute with vectors, for a group of one lane."""
        if item.opcode == "call":
            if item.detail.startswith(IGNORED_CALLS):
                return None
            if placeholders.is_marker(item.detail):
                return self._marker(item, operands, None)
            self._scalarizer.check(item)
        if item.opcode == "load":
            self._prefetches.write_run(item, operands[0])
        text = self._copied(item, operands)
        if item.name:
            return Value(item.type, "scalar", self._writer.op(text))
        if item.detail.startswith("llvm.masked.store."):
            self._write_masked_store(item, operands, text)
        else:
            self._writer.do(text)
        return None

    def _write_masked_store(self, item: Instruction, operands: list[Value], masked: str) -> None:
        """Write a store of a vector, and a masked one for masks that are not full.

        Masked stores are slow on some processors: Zen runs one of AVX2 in 40 operations.
        """
        writer, (stored, at, mask) = self._writer, operands
        full, part, after = writer.name("full"), writer.name("part"), writer.name("join")
        bits = f"i{mask.type[1:].partition(' ')[0]}"
        number = writer.op(f"bitcast {mask.type} {mask.text} to {bits}")
        writer.choose(writer.op(f"icmp eq {bits} {number}, -1"), full, part)
        writer.start(full)
        align = re.search(r"align (\d+)", item.text)
        aligned = f", align {align[1]}" if align else ", align 1"
        writer.do(f"store {stored.type} {stored.text}, ptr {at.text}{aligned}")
        writer.go(after)
        writer.start(part)
        writer.do(masked)
        writer.go(after)
        writer.start(after)

    # -- strided values ----------------------------------------------------------------------

    def _of_first_lane(self, item: Instruction, operands: list[Value]) -> Value:
        """Compute the value of lane 0 without flags such as ``nsw``.

        Lane 0 may be inactive, so the flags may not hold.
        """
        step = self._divergence.strides[item.name]
        assert step is not None
        text = self._scalar(item, [value.text for value in operands], step)
        return Value(item.type, "step" if step else "scalar", text, step)

    def _of_rows(self, item: Instruction, operands: list[Value], strides: RowStrides) -> Value:
        """Compute the value of the first lane of each row."""
        rows, step = self._writer.rows, strides.strides[item.name]
        assert step is not None
        known: dict[tuple[str, ...], str] = {}
        texts = []
        for row in range(rows.count):
            parts = tuple(rows.text(value, row) for value in operands)
            if parts not in known:
                known[parts] = self._scalar(item, list(parts), step)
            texts.append(known[parts])
        return rows.value(item.type, texts, step)

    def _scalar(self, item: Instruction, texts: list[str], step: int) -> str:
        """Write an operation for the first of several lanes, and return the result."""
        if item.opcode == "call":
            arguments = [f"{o.type} {t}" for o, t in zip(item.operands, texts, strict=True)]
            return self._writer.call(item.type, item.detail, arguments)
        if step:
            # An operand with a step has its flags in active lanes only: the sum of disjoint bits is
            # their union, and the extended value is not negative.
            opcode = {"or": "add", "zext": "sext"}.get(item.opcode, item.opcode)
            item = replace(item, opcode=opcode)
        number = folded(item.opcode, item.operands[0].type, item.type, texts)
        return self._writer.op(item.without_flags(texts)) if number is None else number

    def _compared(self, item: Instruction, operands: list[Value]) -> Value | None:
        predicate, writer = item.detail, self._writer
        if "samesign" in item.flags and predicate[0] == "u":
            predicate = "s" + predicate[1:]
        positive = all(
            self._is_positive(operand, 6) for operand in item.operands if operand.is_local
        )
        left, right = operands
        for operand, value in zip(item.operands, operands, strict=True):
            is_found_late = value.kind == "step" and self._divergence[operand] is None
            if is_found_late and self._patterns.low_bits(operand, value).aligned < writer.width:
                return None  # a step of a version, which could wrap between lanes
            if (
                value.kind == "step"
                and value.type == "i32"
                and not self._divergence.is_exact(operand)
            ):
                return None
        return writer.compare(predicate, left, right, positive=positive)

    def _is_positive(self, operand: Operand, depth: int) -> bool:
        """Return whether no lane, active or not, has a negative value."""
        if not operand.is_local:
            return not operand.text.startswith("-")
        item = self._divergence.definitions.get(operand.text)
        if self._divergence[operand] == 0:
            return True  # uniform: its sign does not differ between lanes
        if item is None:
            return True  # a thread index
        if depth == 0 or item.opcode not in ("add", "zext", "sext", "or", "shl", "and", "trunc"):
            return False
        if item.opcode == "zext":
            return True
        if item.opcode == "and":
            return any(self._is_positive(inner, depth - 1) for inner in item.operands)
        if item.opcode == "add" and "nuw" not in item.flags:
            return False
        return all(self._is_positive(inner, depth - 1) for inner in item.operands)

    # -- vectors -------------------------------------------------------------------------------

    def _elementwise(self, item: Instruction, operands: list[Value], mask: Mask) -> Value:
        writer, opcode = self._writer, item.opcode
        if opcode == "select":
            return self._selected(item, operands, mask)
        if not is_scalar(item.type) and item.type:
            raise CannotLowerError(f"{opcode} of the type {item.type}")
        if opcode == "getelementptr":
            return self._address(item, operands)
        vectors = [writer.vector(value) for value in operands]
        flags = f"{item.flags} " if item.flags else ""
        kind = writer.vector_type(item.operands[0].type)
        if opcode in BINARY:
            if opcode in _DIVISIONS and mask is not None and operands[1].kind != "scalar":
                # Inactive lanes may hold a zero, and the processor would trap.
                vectors[1] = writer.blend(item.type, mask, vectors[1], f"splat ({item.type} 1)")
            text = f"{opcode} {flags}{kind} {vectors[0]}, {vectors[1]}"
        elif opcode in ("icmp", "fcmp"):
            text = f"{opcode} {flags}{item.detail} {kind} {vectors[0]}, {vectors[1]}"
        elif opcode in CASTS:
            text = f"{opcode} {flags}{kind} {vectors[0]} to {writer.vector_type(item.type)}"
        elif opcode in ("fneg", "freeze"):
            text = f"{opcode} {flags}{kind} {vectors[0]}"
        else:
            raise CannotLowerError(f"the instruction {opcode} has no form for lanes")
        write_lane = None
        if opcode in CASTS and operands[0].write_lane is not None:
            source, target = operands[0], item.type

            def write_lane(lane: Lane) -> str:
                part = f"{source.type} {writer.lane(source, lane)}"
                return writer.op(f"{opcode} {flags}{part} to {target}")

        linear = linear_sum(writer, item, operands) if opcode in ("add", "sub") else None
        result = Value(item.type, "vector", writer.op(text), write_lane=write_lane, linear=linear)
        if opcode in ("sext", "zext"):
            return replace(result, extended=(opcode, operands[0]))
        return result

    def _selected(self, item: Instruction, operands: list[Value], mask: Mask) -> Value:
        writer = self._writer
        condition, yes, no = operands
        if not is_scalar(item.type):
            raise CannotLowerError(f"a choice between values of the type {item.type}")
        kind = writer.vector_type(item.type)
        first, second = writer.vector(yes), writer.vector(no)
        if condition.kind == "scalar":
            test = f"i1 {condition.text}"
        else:
            test = f"{writer.vector_type('i1')} {writer.vector(condition)}"
        text = writer.op(f"select {test}, {kind} {first}, {kind} {second}")
        return Value(item.type, "vector", text, linear=linear_choice(writer, item, operands, mask))

    def _address(self, item: Instruction, operands: list[Value]) -> Value:
        writer = self._writer
        parts = []
        for operand, value in zip(item.operands, operands, strict=True):
            if value.kind == "scalar":
                parts.append(f"{operand.type} {value.text}")
            else:
                parts.append(f"{writer.vector_type(operand.type)} {writer.vector(value)}")
        text = f"getelementptr {item.detail}, {', '.join(parts)}"

        def write_lane(lane: Lane) -> str:
            values = [f"{v.type} {writer.lane(v, lane)}" for v in operands]
            return writer.op(f"getelementptr {item.detail}, {', '.join(values)}")

        cheap = all(value.kind != "vector" or value.write_lane is not None for value in operands)
        linear = linear_address(writer, item, operands)
        element = element_address(item, operands)
        own = write_lane if cheap else None
        text = writer.op(text)
        return Value("ptr", "vector", text, write_lane=own, linear=linear, element=element)

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        name = item.detail
        if name.startswith(IGNORED_CALLS):
            return None
        if placeholders.is_marker(name):
            return self._marker(item, operands, mask)
        intrinsic = INTRINSICS.get(name, name)
        if intrinsic.startswith("llvm.") or name in PURE_FUNCTIONS:
            base = intrinsic.removeprefix("llvm.").rpartition(".")[0]
            if all(value.kind == "scalar" for value in operands) and item.type != "void":
                return Value(item.type, "scalar", self._writer.op(self._copied(item, operands)))
            if base in _ELEMENTWISE:
                return self._intrinsic(base, item, operands)
        self._memory.note_writes()
        return self._scalarizer.call(item, operands, mask)

    def _intrinsic(self, base: str, item: Instruction, operands: list[Value]) -> Value:
        writer = self._writer
        count = len(operands) - (base in _SCALAR_LAST)
        arguments = [f"{writer.vector_type(v.type)} {writer.vector(v)}" for v in operands[:count]]
        arguments += [f"{value.type} {value.text}" for value in operands[count:]]
        kind = operands[0].type
        suffix = kind if is_integer(kind) else {"float": "f32", "double": "f64"}.get(kind, "f16")
        flags = fast_flags(item)
        symbol = f"llvm.{base}.v{writer.width}{suffix}"
        result = writer.call(writer.vector_type(item.type), symbol, arguments, flags)
        return Value(item.type, "vector", result)

    def _marker(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        if item.detail.startswith(placeholders.SHARED):
            return self._values[item.name]  # allocated at the start of the function
        if item.detail == placeholders.WARP_SYNC:
            return None
        if item.detail.startswith(placeholders.SUMS):
            return self._sums.write(item, operands, mask)
        return self._warp.write(item, operands, mask)


def fast_flags(item: Instruction) -> str:
    """Return the flags of a call that allow other results than IEEE 754."""
    return " ".join(flag for flag in item.flags.split() if flag in _FAST)


def is_elementwise(symbol: str) -> bool:
    """Return whether a symbol is an intrinsic that computes a value of its operands."""
    return symbol.removeprefix("llvm.").rpartition(".")[0] in _ELEMENTWISE
