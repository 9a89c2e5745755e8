"""One instruction of a thread, written for all lanes of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders
from nbrt.backends.cpu.simt.lanes.compare import compare_counting
from nbrt.backends.cpu.simt.lanes.memory import Memory
from nbrt.backends.cpu.simt.lanes.scalarize import Serial
from nbrt.backends.cpu.simt.lanes.values import Lanes, Mask, Value
from nbrt.backends.cpu.simt.lanes.warp import WarpOperations
from nbrt.backends.cpu.simt.llvm.errors import CannotLowerError
from nbrt.backends.cpu.simt.llvm.model import BINARY, CASTS, Instruction, Operand, renamed
from nbrt.backends.cpu.simt.llvm.types import is_integer, is_scalar

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.divergence import Shapes
    from nbrt.backends.cpu.simt.lanes.writer import Writer

__all__ = ["Instructions"]

_DIVISIONS = frozenset(("udiv", "sdiv", "urem", "srem"))
_FAST = ("fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc")
_ELEMENTWISE = frozenset(
    [
        "fabs",
        "sqrt",
        "fma",
        "fmuladd",
        "floor",
        "ceil",
        "trunc",
        "rint",
        "nearbyint",
        "round",
        "roundeven",
        "copysign",
        "minnum",
        "maxnum",
        "minimum",
        "maximum",
        "smin",
        "smax",
        "umin",
        "umax",
        "abs",
        "ctpop",
        "ctlz",
        "cttz",
        "bswap",
        "bitreverse",
        "exp",
        "exp2",
        "log",
        "log2",
        "log10",
        "pow",
        "sin",
        "cos",
        "fshl",
        "fshr",
        "sadd.sat",
        "uadd.sat",
        "ssub.sat",
        "usub.sat",
        "is.fpclass",
    ]
)
"""LLVM's intrinsics that exist for vectors, overloaded on the type of their first operand alone."""

_ONE_FOR_ALL = frozenset(("abs", "ctlz", "cttz", "is.fpclass"))
"""Those whose last operand is a constant that stays a scalar."""

_IGNORED = ("llvm.assume", "llvm.lifetime.", "llvm.experimental.noalias", "llvm.dbg.")


class Instructions:
    """Writes instructions other than phis and terminators.

    Parameters
    ----------
    writer, lanes, shapes : Writer, Lanes, Shapes
        Where the code goes, operations on values, what is known of them.
    values : dict
        Values that are known where the code is being written; results are added.
    used : set of str
        Names that anything uses.
    """

    def __init__(
        self,
        writer: Writer,
        lanes: Lanes,
        shapes: Shapes,
        values: dict[str, Value],
        used: set[str],
    ) -> None:
        self._writer = writer
        self._lanes = lanes
        self._shapes = shapes
        self._values = values
        self._serial = Serial(writer, lanes, used)
        self._memory = Memory(writer, lanes, self._serial, shapes.definitions)
        self._warp = WarpOperations(writer, lanes)

    def value(self, operand: Operand) -> Value:
        """Give an operand as it is kept here."""
        if operand.is_local:
            return self._values[operand.text]
        return Value(operand.type, "scalar", operand.text)

    def write(self, item: Instruction, mask: Mask) -> None:
        """Write an instruction for the lanes of a mask, of which there is at least one."""
        operands = [self.value(operand) for operand in item.operands]
        result = self._written(item, operands, mask)
        if item.name:
            assert result is not None, item
            self._values[item.name] = result

    def _written(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        opcode = item.opcode
        if opcode == "call":
            return self._call(item, operands, mask)
        if opcode in ("load", "store", "atomicrmw", "cmpxchg"):
            return self._memory.write(item, operands, mask)
        if opcode == "alloca":
            return self._values[item.name]  # the group's own, known before
        if opcode == "fence":
            self._writer.do(item.text)
            return None
        if opcode == "extractvalue" and operands[0].kind == "members":
            return self._memory.member(operands[0], item)
        if all(value.kind == "scalar" for value in operands) and self._keeps_flags(item):
            return Value(item.type, "scalar", self._writer.op(self._copied(item, operands)))
        if item.name in self._shapes.of and self._shapes.of[item.name] is not None:
            return self._of_first_lane(item, operands)
        if opcode == "icmp":
            found = self._compared(item, operands)
            if found is not None:
                return found
        return self._elementwise(item, operands, mask)

    def _keeps_flags(self, item: Instruction) -> bool:
        return all(self._shapes[operand] == 0 for operand in item.operands)

    def _copied(self, item: Instruction, operands: list[Value]) -> str:
        names = {
            operand.text: value.text
            for operand, value in zip(item.operands, operands, strict=True)
            if operand.is_local
        }
        return renamed(item.text, names)

    # -- values that count up ------------------------------------------------------------------

    def _of_first_lane(self, item: Instruction, operands: list[Value]) -> Value:
        """Compute lane 0's value, which may be no value that the thread would ever compute.

        So without the promises that LLVM made of it, such as that it does not overflow.
        """
        step = self._shapes.of[item.name]
        assert step is not None
        texts = [value.text for value in operands]
        opcode = item.opcode
        if opcode == "getelementptr":
            indices = [f"{o.type} {t}" for o, t in zip(item.operands, texts, strict=True)]
            text = f"getelementptr {item.detail}, {', '.join(indices)}"
        elif opcode in BINARY:
            opcode = "add" if opcode == "or" else opcode
            text = f"{opcode} {item.type} {texts[0]}, {texts[1]}"
        elif opcode in CASTS:
            opcode = "sext" if opcode == "zext" else opcode
            text = f"{opcode} {item.operands[0].type} {texts[0]} to {item.type}"
        elif opcode == "select":
            kind = item.type
            text = f"select i1 {texts[0]}, {kind} {texts[1]}, {kind} {texts[2]}"
        else:
            text = f"{opcode} {item.type} {texts[0]}"
        return Value(item.type, "step" if step else "scalar", self._writer.op(text), step)

    def _compared(self, item: Instruction, operands: list[Value]) -> Value | None:
        predicate = item.detail
        if "samesign" in item.flags and predicate[0] == "u":
            predicate = "s" + predicate[1:]
        positive = all(
            self._is_positive(operand, 6) for operand in item.operands if operand.is_local
        )
        left, right = operands
        return compare_counting(
            self._writer, self._lanes, predicate, left, right, positive=positive
        )

    def _is_positive(self, operand: Operand, depth: int) -> bool:
        """Whether no lane holds a negative number, taking part or not."""
        if not operand.is_local:
            return not operand.text.startswith("-")
        item = self._shapes.definitions.get(operand.text)
        if self._shapes[operand] == 0:
            return True  # the same in every lane, so its sign moves no lane against another
        if item is None:
            return True  # a position in the block
        if depth == 0 or item.opcode not in ("add", "zext", "sext", "or", "shl", "and", "trunc"):
            return False
        if item.opcode == "zext":
            return True
        if item.opcode == "and":
            return any(self._is_positive(inner, depth - 1) for inner in item.operands)
        if item.opcode == "add" and "nuw" not in item.flags:
            return False
        return all(
            self._is_positive(inner, depth - 1) and self._is_small(inner) for inner in item.operands
        )

    def _is_small(self, operand: Operand) -> bool:
        return operand.is_local or not operand.text.startswith("-")

    # -- vectors -------------------------------------------------------------------------------

    def _elementwise(self, item: Instruction, operands: list[Value], mask: Mask) -> Value:
        writer, lanes, opcode = self._writer, self._lanes, item.opcode
        if opcode == "select":
            return self._selected(item, operands)
        if not is_scalar(item.type) and item.type:
            raise CannotLowerError(f"{opcode} of the type {item.type}")
        if opcode == "getelementptr":
            return self._address(item, operands)
        vectors = [lanes.vector(value) for value in operands]
        flags = f"{item.flags} " if item.flags else ""
        kind = writer.vector(item.operands[0].type)
        if opcode in BINARY:
            if opcode in _DIVISIONS and mask is not None and operands[1].kind != "scalar":
                # Lanes that take no part may hold a zero, which the processor objects to.
                vectors[1] = lanes.blend(item.type, mask, vectors[1], f"splat ({item.type} 1)")
            text = f"{opcode} {flags}{kind} {vectors[0]}, {vectors[1]}"
        elif opcode in ("icmp", "fcmp"):
            text = f"{opcode} {flags}{item.detail} {kind} {vectors[0]}, {vectors[1]}"
        elif opcode in CASTS:
            text = f"{opcode} {flags}{kind} {vectors[0]} to {writer.vector(item.type)}"
        elif opcode in ("fneg", "freeze"):
            text = f"{opcode} {flags}{kind} {vectors[0]}"
        else:
            raise CannotLowerError(f"the instruction {opcode} has no form for lanes")
        one = None
        if opcode in CASTS and operands[0].one is not None:
            source, target = operands[0], item.type

            def one(lane: int) -> str:
                part = f"{source.type} {lanes.lane(source, lane)}"
                return writer.op(f"{opcode} {flags}{part} to {target}")

        return Value(item.type, "vector", writer.op(text), one=one)

    def _selected(self, item: Instruction, operands: list[Value]) -> Value:
        writer, lanes = self._writer, self._lanes
        condition, yes, no = operands
        if not is_scalar(item.type):
            raise CannotLowerError(f"a choice between values of the type {item.type}")
        kind = writer.vector(item.type)
        first, second = lanes.vector(yes), lanes.vector(no)
        if condition.kind == "scalar":
            test = f"i1 {condition.text}"
        else:
            test = f"{writer.vector('i1')} {lanes.vector(condition)}"
        return Value(
            item.type, "vector", writer.op(f"select {test}, {kind} {first}, {kind} {second}")
        )

    def _address(self, item: Instruction, operands: list[Value]) -> Value:
        writer, lanes = self._writer, self._lanes
        parts = []
        for operand, value in zip(item.operands, operands, strict=True):
            if value.kind == "scalar":
                parts.append(f"{operand.type} {value.text}")
            else:
                parts.append(f"{writer.vector(operand.type)} {lanes.vector(value)}")
        text = f"getelementptr {item.detail}, {', '.join(parts)}"

        def one(lane: int) -> str:
            values = [f"{v.type} {lanes.lane(v, lane)}" for v in operands]
            return writer.op(f"getelementptr {item.detail}, {', '.join(values)}")

        cheap = all(value.kind != "vector" or value.one is not None for value in operands)
        return Value("ptr", "vector", writer.op(text), one=one if cheap else None)

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        name = item.detail
        if name.startswith(_IGNORED):
            return None
        if placeholders.is_marker(name):
            return self._marker(item, operands, mask)
        if name.startswith("llvm."):
            base = name.removeprefix("llvm.").rpartition(".")[0]
            if all(value.kind == "scalar" for value in operands) and item.type != "void":
                return Value(item.type, "scalar", self._declared(item, operands))
            if base in _ELEMENTWISE:
                return self._intrinsic(base, item, operands)
        self._memory.note_writes()
        return self._serial.call(item, operands, mask)

    def _declared(self, item: Instruction, operands: list[Value]) -> str:
        return self._writer.op(self._copied(item, operands))

    def _intrinsic(self, base: str, item: Instruction, operands: list[Value]) -> Value:
        writer, lanes = self._writer, self._lanes
        count = len(operands) - (base in _ONE_FOR_ALL)
        arguments = [f"{writer.vector(v.type)} {lanes.vector(v)}" for v in operands[:count]]
        arguments += [f"{value.type} {value.text}" for value in operands[count:]]
        kind = operands[0].type
        suffix = kind if is_integer(kind) else {"float": "f32", "double": "f64"}.get(kind, "f16")
        flags = " ".join(flag for flag in item.flags.split() if flag in _FAST)
        symbol = f"llvm.{base}.v{writer.width}{suffix}"
        result = writer.call(writer.vector(item.type), symbol, arguments, flags)
        return Value(item.type, "vector", result)

    def _marker(self, item: Instruction, operands: list[Value], mask: Mask) -> Value | None:
        if item.detail.startswith(placeholders.SHARED):
            return self._values[item.name]  # where memory is, which was said before
        if item.detail == placeholders.WARP_SYNC:
            return None
        return self._warp.write(item, operands, mask)
