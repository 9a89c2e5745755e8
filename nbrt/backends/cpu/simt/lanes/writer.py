"""Writing LLVM text: fresh names, blocks, and small operations on scalars and vectors."""

from __future__ import annotations

import re

from nbrt.backends.cpu.simt.llvm.parse import split_type

__all__ = ["Writer"]

_NUMBER = re.compile(r"-?\d+$|-?\d[\d.]*e[-+]?\d+$|0x[0-9A-Fa-fHKLMR]+$|true$|false$")


class Writer:
    """Lines of one function that is being written, and declarations that it needs.

    Parameters
    ----------
    width : int
        Lanes of a vector.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines: list[str] = []
        self.stack: list[str] = []
        """Stack slots, to be put at the front of the function."""
        self.declarations: dict[str, str] = {}
        self.label = "%entry"
        """The block that is being written."""
        self._count = 0
        self._phi_at = 0

    def name(self, hint: str = "v") -> str:
        """Give a name that nothing else has."""
        self._count += 1
        return f"%{hint}.{self._count}"

    def do(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append(f"  {text}")

    def op(self, text: str) -> str:
        """Write an instruction and give its result."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def slot(self, kind: str, align: int = 64) -> str:
        """Reserve room on the stack for the whole function; gives its address."""
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

    def call(self, result: str, symbol: str, arguments: list[str], flags: str = "") -> str:
        """Call a function by its symbol; arguments are written with their types."""
        kinds = ", ".join(split_type(argument)[0] for argument in arguments)
        self.declarations[symbol] = f"declare {result} @{symbol}({kinds})"
        text = f"call {flags + ' ' if flags else ''}{result} @{symbol}({', '.join(arguments)})"
        if result == "void":
            self.do(text)
            return ""
        return self.op(text)

    def vector(self, kind: str) -> str:
        """Name the type of a vector."""
        return f"<{self.width} x {kind}>"

    def counting(self, kind: str, step: int) -> str:
        """Write the constant 0, step, 2 * step ... of an integer type."""
        if step == 0:
            return "zeroinitializer"
        bits = int(kind[1:])
        half, whole = 1 << (bits - 1), 1 << bits
        values = ((lane * step + half) % whole - half for lane in range(self.width))
        return f"<{', '.join(f'{kind} {value}' for value in values)}>"

    def splat(self, kind: str, text: str) -> str:
        """Write a vector with one value in all lanes."""
        if text in ("poison", "undef", "zeroinitializer"):
            return "poison" if text == "undef" else text
        if text == "null":
            return "zeroinitializer"
        if _NUMBER.match(text):
            return f"splat ({kind} {text})"
        vector = self.vector(kind)
        first = self.op(f"insertelement {vector} poison, {kind} {text}, i64 0")
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.op(f"shufflevector {vector} {first}, {vector} poison, {zeros}")

    def shuffle(self, kind: str, vector: str, lanes: list[int]) -> str:
        """Rearrange the lanes of a vector."""
        whole = self.vector(kind)
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.op(
            f"shufflevector {whole} {vector}, {whole} poison, <{len(lanes)} x i32> <{chosen}>"
        )

    def phi(self, kind: str, incoming: list[tuple[str, str]]) -> str:
        """Write a phi over (value, label), or give the value if there is but one."""
        if len({value for value, _ in incoming}) == 1 and not incoming[0][0].startswith("%"):
            return incoming[0][0]
        if len(incoming) == 1:
            return incoming[0][0]
        ways = ", ".join(f"[ {value}, {label} ]" for value, label in incoming)
        name = self.name()
        self.lines.insert(self._phi_at, f"  {name} = phi {kind} {ways}")
        self._phi_at += 1
        return name
