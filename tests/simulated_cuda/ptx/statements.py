"""Parse the body of a function: declarations, labels, scopes and instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.declarations import parse_variable
from simulated_cuda.ptx.errors import PtxError
from simulated_cuda.ptx.lexer import read_number
from simulated_cuda.ptx.syntax import (
    Address,
    BranchTargets,
    Immediate,
    Instruction,
    Label,
    Name,
    Negation,
    Pair,
    Parentheses,
    Prototype,
    Register,
    Scope,
    Vector,
)
from simulated_cuda.ptx.types import BITS

if TYPE_CHECKING:
    from simulated_cuda.ptx.syntax import Function, Operand, Variable
    from simulated_cuda.ptx.tokens import Tokens

__all__ = ["parse_body"]

_VARIABLE_SPACES = frozenset({".local", ".shared", ".param", ".global", ".const"})


def parse_body(tokens: Tokens, function: Function) -> list[Instruction | Label]:
    """Parse from the opening brace of a function to its closing brace.

    Variables go to `function.variables`; names go to the scopes of the instructions.
    """
    return _BodyParser(tokens, function).parse()


class _BodyParser:
    def __init__(self, tokens: Tokens, function: Function) -> None:
        self.tokens = tokens
        self.function = function
        self.scope = function.scope
        self.body: list[Instruction | Label] = []
        self.counter = 0

    def parse(self) -> list[Instruction | Label]:
        tokens = self.tokens
        tokens.expect("{")
        depth = 1
        while depth:
            kind, text = tokens.kind, tokens.text
            if kind == "word":
                if tokens.peek().text == ":":
                    self.parse_label()
                else:
                    self.body.append(self.parse_instruction(None, True))
            elif text == "@":
                self.parse_guarded()
            elif text == "{":
                tokens.advance()
                depth += 1
                self.scope = Scope(self.scope)
            elif text == "}":
                tokens.advance()
                depth -= 1
                self.scope = self.scope.parent or self.scope
            elif kind == "directive":
                self.parse_directive()
            elif kind == "line" or text == ";":
                tokens.advance()
            else:
                raise PtxError(f"unexpected {text!r}", tokens.line)
        return self.body

    def declare(self, name: str, symbol: object, line: int) -> None:
        if name in self.scope.symbols:
            raise PtxError(f"{name} is declared twice", line)
        self.scope.symbols[name] = symbol  # type: ignore[assignment]

    # ---- directives and labels ----------------------------------------------------------------

    def parse_directive(self) -> None:
        tokens = self.tokens
        text = tokens.text
        if text == ".reg":
            self.parse_registers()
        elif text in _VARIABLE_SPACES:
            variable = parse_variable(tokens, "")
            tokens.expect(";")
            self.declare(variable.name, variable, variable.line)
            self.function.variables.append(variable)
        elif text == ".pragma":
            tokens.skip_statement()
        elif text == ".section":
            tokens.skip_section()
        else:
            raise PtxError(f"unexpected {text!r}", tokens.line)

    def parse_registers(self) -> None:
        tokens = self.tokens
        line = tokens.advance().line
        kind = tokens.advance().text[1:]
        if kind not in BITS:
            raise PtxError(f"registers of type .{kind} are not supported", line)
        while True:
            name = tokens.word()
            if tokens.accept("<") is not None:
                count = read_number(tokens.advance().text, line)[1]
                tokens.expect(">")
                self.scope.ranges[name] = count, kind
            else:
                self.counter += 1
                self.declare(name, Register(name, kind, BITS[kind], self.counter), line)
            if tokens.accept(",") is None:
                break
        tokens.expect(";")

    def parse_label(self) -> None:
        tokens = self.tokens
        name, line = tokens.text, tokens.line
        tokens.advance()
        tokens.advance()
        if tokens.text == ".callprototype":
            self.declare(name, self.parse_prototype(), line)
        elif tokens.text == ".branchtargets":
            self.declare(name, BranchTargets(self.parse_names()), line)
        elif tokens.text == ".calltargets":
            self.parse_names()
        else:
            self.counter += 1
            label = Label(name, self.counter)
            self.declare(name, label, line)
            self.body.append(label)

    def parse_names(self) -> tuple[str, ...]:
        tokens = self.tokens
        tokens.advance()
        names = [tokens.word()]
        while tokens.accept(",") is not None:
            names.append(tokens.word())
        tokens.expect(";")
        return tuple(names)

    def parse_prototype(self) -> Prototype:
        tokens = self.tokens
        tokens.advance()
        returns = self.parse_parameters() if tokens.text == "(" else ()
        tokens.word()
        parameters = self.parse_parameters() if tokens.text == "(" else ()
        tokens.skip_statement()
        return Prototype(returns, parameters)

    def parse_parameters(self) -> tuple[Variable, ...]:
        tokens = self.tokens
        tokens.expect("(")
        found = []
        while tokens.accept(")") is None:
            found.append(parse_variable(tokens, ""))
            if tokens.text != ")":
                tokens.expect(",")
        return tuple(found)

    # ---- instructions ---------------------------------------------------------------------------

    def parse_guarded(self) -> None:
        tokens = self.tokens
        tokens.advance()
        value = tokens.accept("!") is None
        guard = Name(tokens.word())
        self.body.append(self.parse_instruction(guard, value))

    def parse_instruction(self, guard: Name | None, guard_value: bool) -> Instruction:
        tokens = self.tokens
        line = tokens.line
        opcode = tokens.word()
        modifiers = []
        while tokens.kind == "directive":
            modifiers.append(tokens.advance().text[1:])
        operands = []
        if tokens.text != ";":
            operands.append(self.parse_operand())
            while tokens.text == ",":
                tokens.advance()
                operands.append(self.parse_operand())
        tokens.expect(";")
        return Instruction(opcode, tuple(modifiers), operands, self.scope, line, guard, guard_value)

    def parse_operand(self) -> Operand:
        tokens = self.tokens
        kind, text = tokens.kind, tokens.text
        if kind == "word":
            first: Operand = self.parse_name()
            if tokens.text == "|":
                tokens.advance()
                return Pair(first, self.parse_operand())
            return first
        if kind == "number" or text == "-":
            return self.parse_immediate()
        if text == "[":
            return self.parse_address()
        if text == "{":
            return Vector(self.parse_list("}"))
        if text == "(":
            return Parentheses(self.parse_list(")"))
        if text == "!":
            tokens.advance()
            return Negation(Name(tokens.word()))
        raise PtxError(f"unexpected {text!r} in an instruction", tokens.line)

    def parse_list(self, end: str) -> tuple[Operand, ...]:
        tokens = self.tokens
        tokens.advance()
        found: list[Operand] = []
        while tokens.accept(end) is None:
            found.append(self.parse_operand())
            if tokens.text != end:
                tokens.expect(",")
        return tuple(found)

    def parse_name(self) -> Name:
        tokens = self.tokens
        text = tokens.advance().text
        if tokens.kind == "directive":
            text += tokens.advance().text
        offset = self.parse_offset() if tokens.text in ("+", "-") else 0
        return Name(text, offset)

    def parse_offset(self) -> int:
        tokens = self.tokens
        offset = 0
        while tokens.text in ("+", "-"):
            sign = -1 if tokens.advance().text == "-" else 1
            if tokens.accept("-") is not None:
                sign = -sign
            offset += sign * read_number(tokens.text, tokens.line)[1]
            tokens.advance()
        return offset

    def parse_immediate(self) -> Immediate:
        tokens = self.tokens
        is_negative = tokens.accept("-") is not None
        line = tokens.line
        if tokens.kind != "number":
            raise PtxError(f"expected a number, got {tokens.text!r}", line)
        kind, value = read_number(tokens.advance().text, line)
        if is_negative:
            value = -value if kind == "int" else value ^ 1 << (31 if kind == "f32" else 63)
        return Immediate(kind, value)

    def parse_address(self) -> Address:
        tokens = self.tokens
        tokens.advance()
        if tokens.kind == "word":
            name = self.parse_name()
            address = Address(Name(name.text), name.offset)
        else:
            address = Address(None, self.parse_immediate().value)
        if tokens.text != "]":
            raise PtxError("operands of textures and tensors are not supported", tokens.line)
        tokens.advance()
        return address
