"""Check the sizes of Python files and functions.

Usage: ``python tools/size_check.py PATH...``, with files or folders. Prints one line for each file
or function that is over its limit, as ``path:line: message``, and exits with 1 if there is any.
Blank lines, comments and decorators count. The docstring of a function does not, so that no limit
shortens documentation.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["check_file", "main", "python_files"]

FILE_LIMIT = 500
FUNCTION_LIMIT = 60


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files among `paths` and below them, in a stable order.

    Parameters
    ----------
    paths : iterable of Path
        Files and folders.

    Yields
    ------
    Path
        A file whose name ends in ``.py``, outside hidden folders.

    Raises
    ------
    FileNotFoundError
        If a path does not exist: a check without files must not pass.
    """
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir():
            for file in sorted(path.rglob("*.py")):
                if not any(part.startswith(".") for part in file.relative_to(path).parts):
                    yield file
        else:
            raise FileNotFoundError(f"expected a file or a folder, got {str(path)!r}")


def check_file(path: Path) -> list[str]:
    """Return the findings in one file.

    Parameters
    ----------
    path : Path
        A Python source file.

    Returns
    -------
    list of str
        A line ``path:line: message`` for the file and for each function over its limit.
    """
    source = path.read_text(encoding="utf-8")
    findings = []
    lines = len(source.splitlines())
    if lines > FILE_LIMIT:
        findings.append(f"{path}:1: file has {lines} lines, the limit is {FILE_LIMIT}")
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _length(node)
            if length > FUNCTION_LIMIT:
                findings.append(
                    f"{path}:{node.lineno}: function {node.name} has {length} lines, "
                    f"the limit is {FUNCTION_LIMIT}"
                )
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the given files and folders, print the findings and return the exit status."""
    parser = argparse.ArgumentParser(description="check the length of files and functions")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    paths = parser.parse_args(arguments).paths
    files = list(python_files(paths))
    findings = [finding for file in files for finding in check_file(file)]
    for finding in findings:
        print(finding)
    print(f"size check: {len(files)} files, {len(findings)} over the limit")
    return 1 if findings else 0


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    last = node.lineno if node.end_lineno is None else node.end_lineno
    text = node.body[0]
    is_docstring = ast.get_docstring(node, clean=False) is not None
    documented = (text.end_lineno or text.lineno) - text.lineno + 1 if is_docstring else 0
    return last - first + 1 - documented


if __name__ == "__main__":
    sys.exit(main())
