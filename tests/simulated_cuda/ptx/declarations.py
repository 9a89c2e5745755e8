"""Parse declarations of variables and parameters with their initialisers."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from simulated_cuda.ptx.errors import PtxError
from simulated_cuda.ptx.lexer import read_number
from simulated_cuda.ptx.syntax import Initialiser, Variable
from simulated_cuda.ptx.types import BITS, SPACES

if TYPE_CHECKING:
    from simulated_cuda.ptx.tokens import Tokens

__all__ = ["parse_variable"]

_VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}


def parse_variable(tokens: Tokens, linkage: str) -> Variable:
    """Parse a declaration from its state space on, without the semicolon.

    Parameters
    ----------
    tokens : Tokens
        The current token is the state space.
    linkage : str
        ``extern``, ``visible``, ``weak``, ``common`` or empty.

    Returns
    -------
    Variable
    """
    line = tokens.line
    space = tokens.advance().text[1:]
    if space not in SPACES:
        raise PtxError(f"state space .{space} of a variable is not supported", line)
    alignment, elements, kind = _parse_type(tokens)
    width = BITS[kind] // 8
    alignment = alignment or width * elements
    name = tokens.word()
    counts, is_unsized = _parse_dimensions(tokens)
    values: tuple[Initialiser, ...] = ()
    if tokens.accept("=") is not None:
        values = tuple(_parse_values(tokens))
    count = len(values) if is_unsized and values else prod(counts)
    is_unsized = is_unsized and not values
    return Variable(
        space=space,
        name=name,
        type=kind,
        size=0 if is_unsized else count * elements * width,
        alignment=alignment,
        linkage=linkage,
        is_unsized=is_unsized,
        values=values,
        line=line,
    )


def _parse_type(tokens: Tokens) -> tuple[int, int, str]:
    """Return alignment (or 0), elements of a vector, and the type."""
    alignment, elements = 0, 1
    while True:
        if tokens.kind != "directive":
            raise PtxError(f"expected a type, got {tokens.text!r}", tokens.line)
        text = tokens.advance().text
        if text == ".align":
            alignment = read_number(tokens.advance().text, tokens.line)[1]
        elif text in _VECTORS:
            elements = _VECTORS[text]
        elif text == ".attribute":
            tokens.skip_parentheses()
        elif text[1:] in BITS:
            break
        elif text not in (".ptr", ".managed"):
            raise PtxError(f"type {text} of a variable is not supported", tokens.line)
    kind = text[1:]
    if tokens.text == ".ptr":  # the space and alignment of what a parameter points to
        while tokens.kind == "directive":
            if tokens.advance().text == ".align":
                tokens.advance()
    return alignment, elements, kind


def _parse_dimensions(tokens: Tokens) -> tuple[list[int], bool]:
    counts, is_unsized = [], False
    while tokens.accept("[") is not None:
        if tokens.accept("]") is not None:
            is_unsized = True
            continue
        counts.append(read_number(tokens.advance().text, tokens.line)[1])
        tokens.expect("]")
    return counts, is_unsized


def _parse_values(tokens: Tokens) -> list[Initialiser]:
    if tokens.accept("{") is None:
        return [_parse_value(tokens)]
    values: list[Initialiser] = []
    while tokens.accept("}") is None:
        values += _parse_values(tokens)
        if tokens.text != "}":
            tokens.expect(",")
    return values


def _parse_value(tokens: Tokens) -> Initialiser:
    line = tokens.line
    sign = -1 if tokens.accept("-") is not None else 1
    mask = 0
    if tokens.kind == "number":
        kind, value = read_number(tokens.advance().text, line)
        if tokens.accept("(") is None:
            if sign < 0 and kind != "int":
                value ^= 1 << (31 if kind == "f32" else 63)
                sign = 1
            return Initialiser(sign * value, kind=kind)
        mask = value
        result = _parse_address(tokens)
        tokens.expect(")")
        return result._replace(mask=mask)
    return _parse_address(tokens)


def _parse_address(tokens: Tokens) -> Initialiser:
    name = tokens.word()
    if name == "generic" and tokens.accept("(") is not None:
        inner = _parse_address(tokens)
        tokens.expect(")")
        name, offset = inner.symbol, inner.value
    else:
        offset = 0
    while tokens.text in ("+", "-"):
        sign = -1 if tokens.advance().text == "-" else 1
        if tokens.accept("-") is not None:
            sign = -sign
        offset += sign * read_number(tokens.advance().text, tokens.line)[1]
    return Initialiser(offset, name)
