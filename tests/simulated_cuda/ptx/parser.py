"""Parse the declarations of a PTX module; statements.py parses function bodies."""

from __future__ import annotations

import re

from simulated_cuda.ptx.declarations import parse_variable
from simulated_cuda.ptx.errors import PtxError
from simulated_cuda.ptx.lexer import read_number, tokenize
from simulated_cuda.ptx.statements import parse_body
from simulated_cuda.ptx.syntax import Function, Program, Scope, Variable
from simulated_cuda.ptx.tokens import Tokens

__all__ = ["parse"]

_LINKAGES = frozenset({".extern", ".visible", ".weak", ".common"})
_SPACES = frozenset({".global", ".const", ".shared"})
_LIMITS = frozenset(
    {".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".reqnctapercluster"}
    | {".maxclusterrank", ".explicitcluster", ".blocksareclusters", ".noreturn", ".unique"}
    | {".abi_preserve", ".abi_preserve_control"}
)


def parse(text: str) -> Program:
    """Return the syntax tree of PTX text.

    Parameters
    ----------
    text : str
        One module, or several one after the other, as a linker joins them.

    Returns
    -------
    Program

    Raises
    ------
    PtxError
        If the text is not PTX, or uses a directive that the translator does not know.
    """
    return _ModuleParser(Tokens(tokenize(text))).parse()


class _ModuleParser:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.program = Program()

    def parse(self) -> Program:
        tokens = self.tokens
        while tokens.kind != "end":
            if tokens.kind == "line":
                self.read_line(tokens.advance().text)
            elif tokens.text == ".section":
                tokens.skip_section()
            elif tokens.text == ".pragma":
                tokens.skip_statement()
            elif tokens.text == ".alias":
                tokens.advance()
                alias = tokens.word()
                tokens.expect(",")
                self.program.aliases[alias] = tokens.word()
                tokens.expect(";")
            elif tokens.accept(";") is None:
                self.parse_declaration()
        return self.program

    def read_line(self, text: str) -> None:
        if text.startswith(".target"):
            found = re.search(r"sm_(\d+)", text)
            self.program.target = max(self.program.target, int(found[1]) if found else 0)
        elif text.startswith(".address_size") and "64" not in text:
            raise PtxError("only .address_size 64 is supported", self.tokens.line)

    def parse_declaration(self) -> None:
        tokens = self.tokens
        linkage = ""
        while tokens.text in _LINKAGES:
            linkage = tokens.advance().text[1:]
        if tokens.text == ".attribute":
            tokens.advance()
            tokens.skip_parentheses()
        if tokens.text in (".entry", ".func"):
            self.parse_function(linkage, is_kernel=tokens.advance().text == ".entry")
        elif tokens.text in _SPACES:
            variable = parse_variable(tokens, linkage)
            tokens.expect(";")
            self.add_variable(variable)
        else:
            raise PtxError(f"unexpected {tokens.text!r}", tokens.line)

    def add_variable(self, variable: Variable) -> None:
        known = self.program.variables.get(variable.name)
        if known is not None and known.linkage != "extern":
            if variable.linkage in ("extern", "weak", "common"):
                return
            if known.linkage not in ("weak", "common"):
                raise PtxError(f"{variable.name} is defined twice", variable.line)
        variable.symbol = variable.name
        self.program.variables[variable.name] = variable

    def parse_function(self, linkage: str, *, is_kernel: bool) -> None:
        tokens = self.tokens
        if tokens.text == ".attribute":
            tokens.advance()
            tokens.skip_parentheses()
        returns = self.parse_parameters() if tokens.text == "(" else ()
        line = tokens.line
        name = tokens.word()
        parameters = self.parse_parameters() if tokens.text == "(" else ()
        function = Function(name, is_kernel, linkage, returns, parameters, line)
        while tokens.text not in ("{", ";"):
            self.parse_limit(function)
        if tokens.accept(";") is None:
            function.scope = Scope(None)
            for variable in (*returns, *parameters):
                function.scope.symbols[variable.name] = variable
            function.body = parse_body(tokens, function)
        known = self.program.functions.get(name)
        if known is not None and known.body is not None:
            if function.body is None or linkage == "weak":
                return
            if known.linkage != "weak":
                raise PtxError(f"{name} is defined twice", line)
        self.program.functions[name] = function

    def parse_limit(self, function: Function) -> None:
        tokens = self.tokens
        if tokens.kind == "line":
            tokens.advance()
            return
        if tokens.text == ".pragma":
            tokens.skip_statement()
            return
        if tokens.text not in _LIMITS:
            raise PtxError(f"unexpected {tokens.text!r}", tokens.line)
        directive = tokens.advance().text[1:]
        values = []
        while tokens.kind == "number":
            values.append(read_number(tokens.text, tokens.line)[1])
            tokens.advance()
            if tokens.accept(",") is None:
                break
        function.limits[directive] = tuple(values)

    def parse_parameters(self) -> tuple[Variable, ...]:
        tokens = self.tokens
        tokens.expect("(")
        found = []
        while tokens.accept(")") is None:
            found.append(parse_variable(tokens, ""))
            if tokens.text != ")":
                tokens.expect(",")
        return tuple(found)
