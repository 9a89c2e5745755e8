"""Split PTX text into tokens."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from simulated_cuda.ptx.errors import PtxError

__all__ = ["Token", "read_number", "tokenize"]

_TOKEN = re.compile(
    r"""[ \t\r\f\v\0]*(?:
      (?P<word>[%_$A-Za-z][\w$]*)
    | (?P<newline>\n)
    | (?P<skip>//[^\n]* | @@DWARF[^\n]* | \Z)
    | (?P<comment>/\*.*?\*/)
    | (?P<line>\.(?:loc|file|version|target|address_size)\b[^\n;]*;?)
    | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    | (?P<number>0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b | 0[xX][0-9a-fA-F]+U?
        | 0[bB][01]+U? | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+U?)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<dotted>\.\d\w*)
    | (?P<mark>[{}()\[\],;:=+\-<>!@|*/])
    )""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A token: `kind` is word, directive, line, number, string, mark or end."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a module.

    Parameters
    ----------
    text : str
        PTX text; NUL bytes count as spaces.

    Returns
    -------
    list of Token
        The last one has the kind ``end``.

    Raises
    ------
    PtxError
        At a character that starts no token.
    """
    tokens: list[Token] = []
    append = tokens.append
    make = Token._make
    line, position = 1, 0
    for found in iter(_TOKEN.scanner(text).match, None):
        kind = found.lastgroup
        position = found.end()
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += found[kind].count("\n")
        elif kind == "skip":
            if position == len(text):
                break
        elif kind == "dotted":  # modifiers such as .1d, and .64B
            append(make(("directive", found[kind], line)))
        else:
            append(make((kind, found[kind], line)))  # type: ignore[index]
    if position < len(text):
        raise PtxError(f"unexpected character {text[position:].lstrip()[:1]!r}", line)
    append(Token("end", "end of text", line))
    return tokens


def read_number(text: str, line: int) -> tuple[str, int]:
    """Return the kind (int, f32 or f64) and the value, or the bits, of a number.

    Decimal floating-point literals are double precision, as the ISA says.
    """
    mark = text[:2].lower()
    if mark in ("0f", "0d"):
        return ("f32" if mark == "0f" else "f64"), int(text[2:], 16)
    if any(c in text for c in ".eE") and mark != "0x":
        return "f64", int.from_bytes(struct.pack("<d", float(text)), "little")
    digits = text.rstrip("U")
    try:
        if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
            return "int", int(digits, 8)
        return "int", int(digits, 0)
    except ValueError as error:
        raise PtxError(f"invalid number {text!r}", line) from error
