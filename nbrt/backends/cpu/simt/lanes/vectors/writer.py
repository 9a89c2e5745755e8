"""Writer of LLVM text for a group of lanes: values, masks, and the operations on them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.vectors.lane_sets import (
    compared_lanes,
    condition,
    constant,
    known_lanes,
)
from nbrt.backends.cpu.simt.lanes.vectors.values import (
    FULL,
    UNKNOWN,
    Element,
    Lane,
    Linear,
    LowBits,
    Mask,
    Value,
)
from nbrt.backends.cpu.simt.llvm.parse import split_type
from nbrt.backends.cpu.simt.llvm.types import width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "FULL",
    "MIRRORED",
    "UNKNOWN",
    "Element",
    "LaneWriter",
    "Linear",
    "LowBits",
    "Mask",
    "Value",
]

_NUMBER = re.compile(r"-?\d+$|-?\d[\d.]*e[-+]?\d+$|0x[0-9A-Fa-fHKLMR]+$|true$|false$")
_FIRST_NODE = 1 << 20
"""Number of the first metadata of the function; the module's own begin at 0."""
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


class LaneWriter:
    """The lines of one function, and the declarations that it needs.

    `width` is the number of lanes.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines: list[str] = []
        self.stack: list[str] = []
        """Stack slots: the first lines of the function."""
        self.nodes: list[str] = []
        """Metadata of the function: the last lines of the module."""
        self.declarations: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        """Rules that applied, and what stood in the way of others, each once."""
        self._limits: dict[str, tuple[str, str, str]] = {}
        """By numbers of lanes k with base + k < limit: the sign of the comparison, base, limit."""
        self.label = "%entry"
        """Label of the current block."""
        self._count = 0
        self._phi_at = 0
        self._bits = f"i{width}"
        self._mask_type = self.vector_type("i1")

    # -- text --------------------------------------------------------------------------------

    def name(self, hint: str = "v") -> str:
        """Return a unique name."""
        self._count += 1
        return f"%{hint}.{self._count}"

    def do(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append(f"  {text}")

    def op(self, text: str) -> str:
        """Write an instruction and return its result."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def slot(self, kind: str, align: int = 64) -> str:
        """Allocate a stack slot of the function, and return its address."""
        name = self.name("slot")
        self.stack.append(f"  {name} = alloca {kind}, align {align}")
        return name

    def start(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label[1:]}:")
        self.label = label
        self._phi_at = len(self.lines)

    def go(self, label: str) -> None:
        """End the block with a jump."""
        self.do(f"br label {label}")

    def choose(self, condition: str, yes: str, no: str) -> None:
        """End the block with a branch on an ``i1``."""
        self.do(f"br i1 {condition}, label {yes}, label {no}")

    def keep_rolled(self) -> None:
        """Forbid LLVM to unroll the loop whose last branch was just written.

        Its values fill the registers of the processor; those of a second copy would not fit.
        """
        disabled = self.node('!{!"llvm.loop.unroll.disable"}')
        node = f"!{_FIRST_NODE + len(self.nodes)}"
        self.nodes.append(f"{node} = distinct !{{{node}, {disabled}}}")
        self.lines[-1] += f", !llvm.loop {node}"

    def node(self, content: str) -> str:
        """Return the name of a node of metadata with a content, which nodes may share."""
        for number, line in enumerate(self.nodes):
            if line.endswith(f" = {content}"):
                return f"!{_FIRST_NODE + number}"
        name = f"!{_FIRST_NODE + len(self.nodes)}"
        self.nodes.append(f"{name} = {content}")
        return name

    def call(self, result: str, symbol: str, arguments: list[str], flags: str = "") -> str:
        """Write a call of a symbol; each argument begins with its type."""
        kinds = ", ".join(split_type(argument)[0] for argument in arguments)
        self.declarations[symbol] = f"declare {result} @{symbol}({kinds})"
        text = f"call {flags + ' ' if flags else ''}{result} @{symbol}({', '.join(arguments)})"
        if result == "void":
            self.do(text)
            return ""
        return self.op(text)

    def vector_type(self, kind: str) -> str:
        """Return the type of a vector."""
        return f"<{self.width} x {kind}>"

    def counting(self, kind: str, step: int) -> str:
        """Return the constant vector 0, step, 2 * step, ... of an integer type."""
        if step == 0:
            return "zeroinitializer"
        return self.constants(kind, [lane * step for lane in range(self.width)])

    def constants(self, kind: str, numbers: Sequence[int]) -> str:
        """Return a constant vector of an integer type, which numbers wrap around."""
        bits = int(kind[1:])
        half, whole = 1 << (bits - 1), 1 << bits
        values = ((number + half) % whole - half for number in numbers)
        return f"<{', '.join(f'{kind} {value}' for value in values)}>"

    def splat(self, kind: str, text: str) -> str:
        """Return a vector with one value in all lanes."""
        if text in ("poison", "undef", "zeroinitializer"):
            return "poison" if text == "undef" else text
        if text == "null":
            return "zeroinitializer"
        if _NUMBER.match(text):
            return f"splat ({kind} {text})"
        vector = self.vector_type(kind)
        first = self.op(f"insertelement {vector} poison, {kind} {text}, i64 0")
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.op(f"shufflevector {vector} {first}, {vector} poison, {zeros}")

    def shuffle(self, kind: str, vector: str, lanes: list[int]) -> str:
        """Write a shuffle of one vector."""
        whole = self.vector_type(kind)
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.op(
            f"shufflevector {whole} {vector}, {whole} poison, <{len(lanes)} x i32> <{chosen}>"
        )

    def with_part(self, kind: str, vector: str, part: str, first: int, width: int) -> str:
        """Write a vector with the lanes from `first` on replaced by a vector of fewer lanes."""
        inside = range(first, first + width)
        lanes = [f"i32 {n - first}" if n in inside else "i32 poison" for n in range(self.width)]
        chosen = f"<{self.width} x i32> <{', '.join(lanes)}>"
        fewer, whole = f"<{width} x {kind}>", self.vector_type(kind)
        wide = self.op(f"shufflevector {fewer} {part}, {fewer} poison, {chosen}")
        lanes = [f"i32 {n + self.width * (n in inside)}" for n in range(self.width)]
        chosen = f"<{self.width} x i32> <{', '.join(lanes)}>"
        return self.op(f"shufflevector {whole} {vector}, {whole} {wide}, {chosen}")

    def phi(self, kind: str, incoming: list[tuple[str, str]]) -> str:
        """Write a phi of (value, label) pairs, or return the value if there is only one."""
        if len({value for value, _ in incoming}) == 1 and not incoming[0][0].startswith("%"):
            return incoming[0][0]
        if len(incoming) == 1:
            return incoming[0][0]
        pairs = ", ".join(f"[ {value}, {label} ]" for value, label in incoming)
        name = self.name()
        self.lines.insert(self._phi_at, f"  {name} = phi {kind} {pairs}")
        self._phi_at += 1
        return name

    def write_loop(
        self, name: str, count: str, write: Callable[[str], None], *, rolled: bool = False
    ) -> None:
        """Write a loop, with at least one iteration; `write` writes the one with a number.

        LLVM does not unroll a loop that is to stay `rolled`.
        """
        before, head, after = self.label, self.name(name), self.name(f"{name}s.end")
        self.go(head)
        self.start(head)
        number, at = self.name(name[0]), len(self.lines)
        write(number)
        following = self.op(f"add nuw nsw i64 {number}, 1")
        phi = f"phi i64 [ 0, {before} ], [ {following}, {self.label} ]"
        self.lines.insert(at, f"  {number} = {phi}")
        more = self.op(f"icmp ult i64 {following}, {count}")
        self.choose(more, head, after)
        if rolled:
            self.keep_rolled()
        self.start(after)

    # -- values ------------------------------------------------------------------------------

    def vector(self, value: Value) -> str:
        """Return a value as a vector."""
        if value.kind == "vector":
            return value.text
        if value.kind == "scalar":
            return self.splat(value.type, value.text)
        if value.kind in ("step", "pattern"):
            return self._counted(value)
        if value.kind == "parts":
            return self._joined(value)
        if value.kind == "bits":
            return self.op(f"bitcast {self._bits} {value.text} to {self._mask_type}")
        numbers = self.vector_type("i8")
        lanes = self.counting("i8", 1)
        if value.kind == "one":
            limit, predicate = self.lane_number(value.kind, value.text, self.width), "eq"
        else:
            limit = self.lane_number(value.kind, value.text, self.width)
            predicate = "ult" if value.kind == "below" else "uge"
        return self.op(f"icmp {predicate} {numbers} {lanes}, {self.splat('i8', limit)}")

    def _counted(self, value: Value) -> str:
        kind = "i64" if value.type == "ptr" else value.type
        steps = self.counting(kind, value.step)
        if value.kind == "pattern":
            steps = self.constants(kind, value.offsets)
        if value.type == "ptr":
            offsets = f"{self.vector_type('i64')} {steps}"
            return self.op(f"getelementptr i8, ptr {value.text}, {offsets}")
        base = self.splat(value.type, value.text)
        return self.op(f"add {self.vector_type(value.type)} {base}, {steps}")

    def _joined(self, value: Value) -> str:
        high, low = value.text.split(" ")
        whole = self.vector_type(value.type)
        wide = self.op(f"zext {self.vector_type('i8')} {low} to {whole}")
        return self.op(f"add {whole} {wide}, {self.splat(value.type, high)}")

    def lane(self, value: Value, lane: Lane) -> str:
        """Return the value of one lane."""
        if value.kind == "scalar":
            return value.text
        if isinstance(lane, str):
            return self._moving_lane(value, lane)
        if value.kind in ("step", "pattern"):
            offset = value.offsets[lane] if value.offsets else lane * value.step
            if offset == 0:
                return value.text
            if value.type == "ptr":
                return self.op(f"getelementptr i8, ptr {value.text}, i64 {offset}")
            wrapped = offset & ((1 << width_of(value.type)) - 1)
            return self.op(f"add {value.type} {value.text}, {wrapped}")
        if value.write_lane is not None:
            return value.write_lane(lane)
        vector = self.vector(value)
        return self.op(f"extractelement {self.vector_type(value.type)} {vector}, i64 {lane}")

    def _moving_lane(self, value: Value, lane: str) -> str:
        """Return a value in a lane known only at run time."""
        if value.write_lane is not None:
            return value.write_lane(lane)
        if value.kind != "step":
            vector = self.vector(value)
            return self.op(f"extractelement {self.vector_type(value.type)} {vector}, i64 {lane}")
        offset = self.op(f"mul i64 {lane}, {value.step}")
        if value.type == "ptr":
            return self.op(f"getelementptr i8, ptr {value.text}, i64 {offset}")
        if value.type != "i64":
            kind = "sext" if width_of(value.type) > 64 else "trunc"
            offset = self.op(f"{kind} i64 {offset} to {value.type}")
        return self.op(f"add {value.type} {value.text}, {offset}")

    # -- masks -------------------------------------------------------------------------------

    def any(self, mask: Mask) -> str:
        """Return whether a mask has an active lane, as an ``i1``."""
        if mask is None:
            return "true"
        lanes = known_lanes(mask, self.width)
        if lanes is not None:
            return "true" if lanes else "false"
        if mask.kind == "scalar":
            return mask.text
        if mask.kind == "below":
            if mask.text not in self._limits:
                return self.op(f"icmp ne i64 {mask.text}, 0")
            sign, base, limit = self._limits[mask.text]
            return self.op(f"icmp {sign}lt i64 {base}, {limit}")
        if mask.kind == "from":
            return self.op(f"icmp ne i64 {mask.text}, {self.width}")
        if mask.kind == "one":
            return self.op(f"icmp ult i64 {mask.text}, {self.width}")
        return self.op(f"icmp ne {self._bits} {self.bits(mask)}, 0")

    def all(self, mask: Mask) -> str:
        """Return whether all lanes of a mask are active, as an ``i1``."""
        if mask is None:
            return "true"
        lanes = known_lanes(mask, self.width)
        if lanes is not None:
            return "true" if lanes + 1 == 1 << self.width else "false"
        if mask.kind == "scalar":
            return mask.text
        if mask.kind == "below":
            return self._is_full(mask.text)
        if mask.kind == "from":
            return self.op(f"icmp eq i64 {mask.text}, 0")
        return self.op(f"icmp eq {self._bits} {self.bits(mask)}, -1")

    def has_limit(self, mask: Mask) -> bool:
        """Return whether a comparison of scalars tells if a mask is full or empty."""
        return mask is None or (mask.kind == "below" and mask.text in self._limits)

    def _is_full(self, number: str) -> str:
        """Return whether a number of lanes is that of all lanes, as an ``i1``."""
        if number not in self._limits:
            return self.op(f"icmp eq i64 {number}, {self.width}")
        # base + width - 1 < limit. The limit is often that of a loop, and the difference moves out
        # of it. If it saturates at the least number, no base is below it.
        sign, base, limit = self._limits[number]
        arguments = [f"i64 {limit}", f"i64 {self.width - 1}"]
        last = self.call("i64", f"llvm.{sign}sub.sat.i64", arguments)
        return self.op(f"icmp {sign}lt i64 {base}, {last}")

    def bits(self, mask: Mask) -> str:
        """Return a mask as an integer with one bit for each lane."""
        if mask is None:
            return "-1"
        if mask.kind == "bits":
            return mask.text
        if mask.kind in ("below", "from"):
            ones = self.op(f"shl i64 -1, {mask.text}")
            if mask.kind == "below":
                ones = self.op(f"xor i64 {ones}, -1")
            return self.op(f"trunc i64 {ones} to {self._bits}")
        if mask.kind == "one":
            inside = self.op(f"icmp ult i64 {mask.text}, {self.width}")
            chosen = self.op(f"select i1 {inside}, i64 {mask.text}, i64 63")
            one = self.op(f"shl i64 1, {chosen}")
            return self.op(f"trunc i64 {one} to {self._bits}")
        return self.op(f"bitcast {self._mask_type} {self.vector(mask)} to {self._bits}")

    def mask(self, mask: Mask) -> str:
        """Return a mask as a vector."""
        return "splat (i1 true)" if mask is None else self.vector(mask)

    def from_bits(self, bits: str) -> Value:
        """Return the mask with the bits of an integer."""
        return Value("i1", "bits", bits)

    def both(self, mask: Mask, other: Mask) -> Mask:
        """Return the intersection of two masks."""
        if mask is None or other is None:
            return other if mask is None else mask
        ours, theirs = known_lanes(mask, self.width), known_lanes(other, self.width)
        if ours is not None and theirs is not None:
            return condition(ours & theirs, self.width)
        for kind, pick in (("below", "umin"), ("from", "umax")):
            if mask.kind == other.kind == kind:
                arguments = [f"i64 {mask.text}", f"i64 {other.text}"]
                return Value("i1", kind, self.call("i64", f"llvm.{pick}.i64", arguments))
        return self._combined("and", mask, other)

    def either(self, mask: Mask, other: Mask) -> Mask:
        """Return the union of two masks."""
        if mask is None or other is None:
            return None
        ours, theirs = known_lanes(mask, self.width), known_lanes(other, self.width)
        if ours is not None and theirs is not None:
            return condition(ours | theirs, self.width)
        return self._combined("or", mask, other)

    def _combined(self, opcode: str, mask: Value, other: Value) -> Value:
        first, second = self.vector(mask), self.vector(other)
        return Value("i1", "vector", self.op(f"{opcode} {self._mask_type} {first}, {second}"))

    def inverse(self, mask: Value) -> Value:
        """Return the complement of a mask."""
        opposite = {"below": "from", "from": "below"}.get(mask.kind)
        if opposite is not None:
            return Value("i1", opposite, mask.text)
        lanes = known_lanes(mask, self.width)
        if lanes is not None:
            return condition(lanes ^ ((1 << self.width) - 1), self.width)
        if mask.kind == "scalar":
            return Value("i1", "scalar", self.op(f"xor i1 {mask.text}, true"))
        text = self.op(f"xor {self._mask_type} {self.vector(mask)}, splat (i1 true)")
        return Value("i1", "vector", text)

    def blend(self, kind: str, mask: Mask, chosen: str, other: str) -> str:
        """Return a vector with the lanes of a mask from `chosen`, and the rest from `other`."""
        if mask is None or other == "poison" or chosen == other:
            return chosen
        vector = self.vector_type(kind)
        return self.op(
            f"select {self._mask_type} {self.mask(mask)}, {vector} {chosen}, {vector} {other}"
        )

    def frozen(self, kind: str, before: str) -> str:
        """Return a vector from memory that is blended with another and stored back.

        LLVM turns a load, a select and a store at one address into a masked store. On processors
        with AVX2 only it is several times as slow; it does not match through ``freeze``.
        """
        return self.op(f"freeze {self.vector_type(kind)} {before}")

    # -- comparisons -------------------------------------------------------------------------

    def compare(self, predicate: str, left: Value, right: Value, *, positive: bool) -> Value | None:
        """Compare a value with step 1 and a scalar without a vector; return None for other values.

        Lane ``k`` holds ``base + k``, so ``base + k < n`` is true below lane ``n - base``. The
        difference saturates: results that overflow are beyond all lanes.

        `predicate` is that of an ``icmp``. If `positive` is true, the value with step 1 is not
        negative in any lane, so unsigned comparisons do not wrap between lanes.
        """
        unsigned = predicate[0] == "u"
        relation = predicate if predicate in ("eq", "ne") else predicate[1:]
        if right.kind == "step" and left.kind == "scalar":
            left, right, relation = right, left, MIRRORED[relation]
        if left.kind != "step" or right.kind != "scalar":
            return None
        first, limit_value = constant(left.text), constant(right.text)
        if first is not None and limit_value is not None:
            exact = predicate if relation in ("eq", "ne") else predicate[0] + relation
            lanes = compared_lanes(exact, left.type, first, left.step, limit_value, self.width)
            return condition(lanes, self.width)
        if left.step != 1:
            return None
        if left.type not in ("i32", "i64") or (unsigned and not positive):
            return None
        form, number = self.lanes_until(relation, unsigned, left, right, self.width)
        here = Value("i1", form, number)
        return self.inverse(here) if relation == "ne" else here

    def lane_number(self, form: str, number: str, width: int) -> str:
        """Return the number of a condition as an ``i8``."""
        if form == "one":
            inside = self.op(f"icmp ult i64 {number}, {width}")
            number = self.op(f"select i1 {inside}, i64 {number}, i64 127")
        return self.op(f"trunc i64 {number} to i8")

    def lanes_until(
        self, relation: str, unsigned: bool, left: Value, right: Value, width: int
    ) -> tuple[str, str]:
        """Return the form and the number of a condition: ``below``, ``from``, or ``one``."""
        base, limit = (
            v.text
            if left.type == "i64"
            else self.op(f"{'zext' if unsigned else 'sext'} i32 {v.text} to i64")
            for v in (left, right)
        )
        if relation in ("eq", "ne"):
            return "one", self.op(f"sub i64 {limit}, {base}")
        sign = "u" if unsigned else "s"
        number = self.call("i64", f"llvm.{sign}sub.sat.i64", [f"i64 {limit}", f"i64 {base}"])
        if relation in ("le", "gt"):
            # base + k <= n is base + k < n + 1, where n + 1 could overflow before the subtraction.
            number = self._successor(number, limit, base, sign)
        if not unsigned:
            number = self.call("i64", "llvm.smax.i64", [f"i64 {number}", "i64 0"])
        number = self.call("i64", "llvm.umin.i64", [f"i64 {number}", f"i64 {width}"])
        if relation == "lt" and width == self.width:
            self._limits[number] = sign, base, limit
        return "below" if relation in ("lt", "le") else "from", number

    def _successor(self, number: str, limit: str, base: str, sign: str) -> str:
        """Return a saturated difference plus 1."""
        result = self.call("i64", f"llvm.{sign}add.sat.i64", [f"i64 {number}", "i64 1"])
        if sign == "s":
            return result
        # An unsigned difference that is saturated at 0 stays 0.
        reached = self.op(f"icmp uge i64 {limit}, {base}")
        return self.op(f"select i1 {reached}, i64 {result}, i64 0")
