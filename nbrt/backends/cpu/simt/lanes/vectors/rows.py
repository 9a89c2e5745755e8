"""Groups of several rows of a block: values that are uniform or have a step in each row.

A warp of a block that is 16 threads wide is two rows. An index along y is uniform in each row, and
an address that depends on x and y has a step there, so it is one vector access for each row. Such a
value has the kind ``rows``: a scalar for each row, the value of its first lane.
"""

from __future__ import annotations

from nbrt.backends.cpu.simt.lanes.vectors.lane_sets import (
    compared_lanes,
    condition,
    constant,
    folded,
)
from nbrt.backends.cpu.simt.lanes.vectors.values import Lane, Mask, Value
from nbrt.backends.cpu.simt.lanes.vectors.writer import MIRRORED, LaneWriter

__all__ = ["RowWriter", "Rows"]


class Rows:
    """Writes values of groups of several rows.

    `count` is the number of rows of a group.
    """

    def __init__(self, writer: LaneWriter, count: int) -> None:
        self._writer = writer
        self.count = count
        self.width = writer.width // count
        """Lanes of a row."""

    def value(self, kind: str, texts: list[str], step: int) -> Value:
        """Return a value with a scalar for each row."""
        return Value(kind, "rows", "", step, texts=tuple(texts))

    def text(self, value: Value, row: int) -> str:
        """Return the scalar of one row; the value may be uniform."""
        return value.text if value.kind == "scalar" else value.texts[row]

    def vector(self, value: Value) -> str:
        """Return a value of the kind ``rows`` as a vector."""
        writer, kind = self._writer, value.type
        whole = writer.vector_type(kind)
        if all(constant(text) is not None for text in value.texts):
            lanes = (self._constant(value, lane) for lane in range(writer.width))
            return f"<{', '.join(f'{kind} {number}' for number in lanes)}>"
        if len(set(value.texts)) == 1:
            base = writer.splat(kind, value.texts[0])
        else:
            narrow, first = f"<{self.count} x {kind}>", "poison"
            for row, text in enumerate(value.texts):
                first = writer.op(f"insertelement {narrow} {first}, {kind} {text}, i64 {row}")
            chosen = ", ".join(f"i32 {lane // self.width}" for lane in range(writer.width))
            lanes_type = f"<{writer.width} x i32>"
            base = writer.op(
                f"shufflevector {narrow} {first}, {narrow} poison, {lanes_type} <{chosen}>"
            )
        if value.step == 0:
            return base
        if kind == "ptr":
            offsets = f"{writer.vector_type('i64')} {self._counting('i64', value.step)}"
            return writer.op(f"getelementptr i8, {whole} {base}, {offsets}")
        return writer.op(f"add {whole} {base}, {self._counting(kind, value.step)}")

    def _constant(self, value: Value, lane: int) -> str:
        offset = str(lane % self.width * value.step)
        found = folded("add", value.type, value.type, [value.texts[lane // self.width], offset])
        assert found is not None
        return found

    def _counting(self, kind: str, step: int) -> str:
        """Return the steps of all lanes, which begin again in each row."""
        row = Value(kind, "rows", "", step, texts=("0",) * self.count)
        return self.vector(row)

    def lane(self, value: Value, lane: int) -> str:
        """Return the value of one lane."""
        row = Value(value.type, "step", value.texts[lane // self.width], value.step)
        return self._writer.lane(row, lane % self.width)

    def each(self, value: Value, text: str) -> Value:
        """Write an operation on the scalar of each row; ``{}`` stands for it."""
        texts = [self._writer.op(text.format(own)) for own in value.texts]
        return self.value(value.type, texts, value.step)

    def both(self, opcode: str, left: Value, right: Value) -> Value:
        """Combine two conditions that are uniform in each row."""
        pairs = zip(left.texts, right.texts, strict=True)
        texts = [self._writer.op(f"{opcode} i1 {ours}, {theirs}") for ours, theirs in pairs]
        return self.value("i1", texts, 0)

    def reduced(self, opcode: str, mask: Value) -> str:
        """Combine the rows of a condition."""
        result = mask.texts[0]
        for text in mask.texts[1:]:
            result = self._writer.op(f"{opcode} i1 {result}, {text}")
        return result

    def mask(self, mask: Value, row: int) -> str:
        """Return the lanes of one row of a mask, as a vector of a row."""
        writer, narrow = self._writer, f"<{self.width} x i1>"
        if mask.kind == "rows":
            first = writer.op(f"insertelement {narrow} poison, i1 {mask.texts[row]}, i64 0")
            zeros = f"<{self.width} x i32> zeroinitializer"
            return writer.op(f"shufflevector {narrow} {first}, {narrow} poison, {zeros}")
        return self.part("i1", writer.vector(mask), row)

    def some(self, mask: Value, row: int) -> str:
        """Return whether a row of a mask has an active lane, as an ``i1``."""
        writer = self._writer
        if mask.kind == "rows":
            return mask.texts[row]
        bits = writer.op(f"bitcast <{self.width} x i1> {self.mask(mask, row)} to i{self.width}")
        return writer.op(f"icmp ne i{self.width} {bits}, 0")

    def part(self, kind: str, vector: str, row: int) -> str:
        """Return one row of a vector."""
        first = row * self.width
        return self._writer.shuffle(kind, vector, list(range(first, first + self.width)))

    def joined(self, kind: str, parts: list[str]) -> str:
        """Join vectors of one row each."""
        width = self.width
        while len(parts) > 1:
            narrow = f"<{width} x {kind}>"
            chosen = ", ".join(f"i32 {lane}" for lane in range(2 * width))
            parts = [
                self._writer.op(
                    f"shufflevector {narrow} {left}, {narrow} {right}, "
                    f"<{2 * width} x i32> <{chosen}>"
                )
                for left, right in zip(parts[::2], parts[1::2], strict=True)
            ]
            width *= 2
        return parts[0]


class RowWriter(LaneWriter):
    """Writes values of groups that may have several rows.

    Parameters
    ----------
    width : int
        Number of lanes.
    count : int
        Rows of a group.

    Attributes
    ----------
    rows : Rows
        Operations on single rows.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__(width)
        self.rows = Rows(self, count)

    def vector(self, value: Value) -> str:
        """Return a value as a vector."""
        return self.rows.vector(value) if value.kind == "rows" else super().vector(value)

    def lane(self, value: Value, lane: Lane) -> str:
        """Return the value of one lane."""
        if value.kind == "rows" and isinstance(lane, int):
            return self.rows.lane(value, lane)
        return super().lane(value, lane)

    def any(self, mask: Mask) -> str:
        """Return whether a mask has an active lane, as an ``i1``."""
        if mask is not None and mask.kind == "rows":
            return self.rows.reduced("or", mask)
        return super().any(mask)

    def all(self, mask: Mask) -> str:
        """Return whether all lanes of a mask are active, as an ``i1``."""
        if mask is not None and mask.kind == "rows":
            return self.rows.reduced("and", mask)
        return super().all(mask)

    def both(self, mask: Mask, other: Mask) -> Mask:
        """Return the intersection of two masks."""
        if mask is not None and other is not None and mask.kind == other.kind == "rows":
            return self.rows.both("and", mask, other)
        return super().both(mask, other)

    def either(self, mask: Mask, other: Mask) -> Mask:
        """Return the union of two masks."""
        if mask is not None and other is not None and mask.kind == other.kind == "rows":
            return self.rows.both("or", mask, other)
        return super().either(mask, other)

    def inverse(self, mask: Value) -> Value:
        """Return the complement of a mask."""
        if mask.kind == "rows":
            return self.rows.each(mask, "xor i1 {}, true")
        return super().inverse(mask)

    def compare(self, predicate: str, left: Value, right: Value, *, positive: bool) -> Value | None:
        """Compare a value with a step and a uniform one; return None for other values."""
        if "rows" in (left.kind, right.kind):
            return self._compare_rows(predicate, left, right, positive=positive)
        return super().compare(predicate, left, right, positive=positive)

    def _compare_rows(
        self, predicate: str, left: Value, right: Value, *, positive: bool
    ) -> Value | None:
        """Compare a value with a step in each row and one that is uniform there."""
        rows, unsigned = self.rows, predicate[0] == "u"
        relation = predicate if predicate in ("eq", "ne") else predicate[1:]
        if left.step == 0:
            left, right, relation = right, left, MIRRORED[relation]
        if left.kind != "rows" or right.kind not in ("rows", "scalar") or right.step:
            return None
        pairs = [
            (
                Value(left.type, "step", rows.text(left, r), left.step),
                Value(left.type, "scalar", rows.text(right, r)),
            )
            for r in range(rows.count)
        ]
        known = [(constant(a.text), constant(b.text)) for a, b in pairs]
        exact = predicate if relation in ("eq", "ne") else predicate[0] + relation
        lanes = 0
        for row, (first, limit) in enumerate(known):
            if first is None or limit is None:
                break
            found = compared_lanes(exact, left.type, first, left.step, limit, rows.width)
            lanes |= found << (row * rows.width)
        else:
            return condition(lanes, self.width)
        if left.step != 1 or left.type not in ("i32", "i64") or (unsigned and not positive):
            return None
        numbers: dict[tuple[str, str], str] = {}
        form = "one"
        for a, b in pairs:
            if (a.text, b.text) not in numbers:
                form, number = self.lanes_until(relation, unsigned, a, b, rows.width)
                numbers[a.text, b.text] = self.lane_number(form, number, rows.width)
        limits = rows.value("i8", [numbers[a.text, b.text] for a, b in pairs], 0)
        counting = rows.vector(rows.value("i8", ["0"] * rows.count, 1))
        test = {"below": "ult", "from": "uge", "one": "eq"}[form]
        text = self.op(f"icmp {test} {self.vector_type('i8')} {counting}, {self.vector(limits)}")
        result = Value("i1", "vector", text)
        return self.inverse(result) if relation == "ne" else result
