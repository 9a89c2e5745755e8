"""Check the vocabulary: retired names and phrases, docstring verbs and the width of Markdown lines.

Usage: ``python tools/prose_check.py PATH...``, with files or folders. Prints one line for each
finding, as ``path:line: message``, and exits with 1 if there is any. CONTRIBUTING.md has the rules.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["check_file", "main"]

MARKDOWN_WIDTH = 120
_EXCLUDED = frozenset({"results", "prose_check.py", "test_prose_check.py"})

_NAME_PARTS = re.compile(
    r"baton|books|lend(er)?|lent|mould|noters?|patience|road|seats?|tap(s|ped)?|telling|"
    r"tenan(cy|cies|ts?)|untold"
)
"""Parts of names that the project has replaced by standard terms."""

_NAMES = re.compile(r"^_?(MOST|LEAST)_|^_?(DeviceBooks|PoolCore|InlineQueue|Drawer|GammaFamily)$")

_PHRASES = re.compile(
    r"\b(whoever|nobody|somebody|has a go|for want of|the one road|the books|of (its|their) own|"
    r"tenants?|tenanc(y|ies)|moulds?|is told of|are told of|be told of|come back to)\b",
    re.IGNORECASE,
)
_DOCSTRING_STARTS = re.compile(r"(Gives?|What|Who|Whoever)\b")
_QUOTED_START = re.compile(rf"[\"'](\\\n)?\s*{_DOCSTRING_STARTS.pattern}")
_WORD = re.compile(r"[^\W\d]\w*")


def check_file(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the message of each finding in one file."""
    text = path.read_text(encoding="utf-8")
    # Few files have a finding, or code that looks like one: parsing all takes most of the time.
    if path.suffix == ".md":
        yield from _check_markdown(text)
        return
    if any(map(_is_retired, set(_WORD.findall(text)))) or _QUOTED_START.search(text):
        yield from _check_names(ast.parse(text))
    if _PHRASES.search(text):
        yield from _check_prose(text)


def _check_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        name = getattr(node, "name", None) or getattr(node, "arg", None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if isinstance(name, str) and _is_retired(name):
            yield getattr(node, "lineno", 1), f"retired name {name!r}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            start = _DOCSTRING_STARTS.match(ast.get_docstring(node) or "")
            if start:
                line = 1 if isinstance(node, ast.Module) else node.lineno
                yield line, f"docstring starts with {start[0]!r}; use an imperative verb or a noun"


@cache
def _is_retired(name: str) -> bool:
    parts = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_")
    return bool(_NAMES.match(name)) or any(map(_NAME_PARTS.fullmatch, parts))


def _check_prose(text: str) -> Iterator[tuple[int, str]]:
    """Look at comments and at strings: docstrings and error texts."""
    kinds = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            for found in _PHRASES.finditer(token.string):
                line = token.start[0] + token.string.count("\n", 0, found.start())
                yield line, f"retired phrase {found[0]!r}"


def _check_markdown(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        for found in _PHRASES.finditer(line):
            yield number, f"retired phrase {found[0]!r}"
        if len(line) > MARKDOWN_WIDTH and not line.startswith("|") and "](" not in line:
            yield number, f"line of {len(line)} characters, the limit is {MARKDOWN_WIDTH}"


def main(arguments: Sequence[str]) -> int:
    """Check the files named, and those in the folders named; return the exit status."""
    count = 0
    for root in map(Path, arguments):
        inside = sorted(root.rglob("*")) if root.is_dir() else [root]
        for path in inside:
            if path.suffix in (".py", ".md") and not _EXCLUDED.intersection(path.parts):
                for line, message in check_file(path):
                    print(f"{path}:{line}: {message}")
                    count += 1
    print(f"prose check: {count} findings")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
