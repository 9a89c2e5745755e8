"""A position in a list of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.errors import PtxError

if TYPE_CHECKING:
    from simulated_cuda.ptx.lexer import Token

__all__ = ["Tokens"]


class Tokens:
    """The tokens from a position on; the parsers share one."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self.kind, self.text, self.line = tokens[0]

    def advance(self) -> Token:
        """Return the current token and step to the next one."""
        token = self._tokens[self._position]
        if token.kind != "end":
            self._position += 1
        self.kind, self.text, self.line = self._tokens[self._position]
        return token

    def peek(self) -> Token:
        """Return the token after the current one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def accept(self, text: str) -> Token | None:
        """Step over the current token if it has this text."""
        return self.advance() if self.text == text else None

    def expect(self, text: str) -> Token:
        """Step over a token that must have this text."""
        if self.text != text:
            raise PtxError(f"expected {text!r}, got {self.text!r}", self.line)
        return self.advance()

    def word(self) -> str:
        """Step over a word and return it."""
        if self.kind != "word":
            raise PtxError(f"expected a name, got {self.text!r}", self.line)
        return self.advance().text

    def skip_statement(self) -> None:
        """Step over everything up to a semicolon."""
        while self.text != ";":
            if self.kind == "end":
                raise PtxError("expected ';'", self.line)
            self.advance()
        self.advance()

    def skip_parentheses(self) -> None:
        """Step over a list in parentheses."""
        self.expect("(")
        while self.accept(")") is None:
            if self.kind == "end":
                raise PtxError("expected ')'", self.line)
            self.advance()

    def skip_section(self) -> None:
        """Step over ``.section name { ... }``: debug information."""
        while self.text != "{":
            if self.kind == "end":
                raise PtxError("expected '{'", self.line)
            self.advance()
        while self.accept("}") is None:
            if self.kind == "end":
                raise PtxError("expected '}'", self.line)
            self.advance()
