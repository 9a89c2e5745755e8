"""``nbrt audit``: record the draws of a script, show a recording, compare two."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    import argparse

__all__ = ["add_audit", "run_audit"]


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``nbrt audit`` to its parser."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    record = actions.add_parser("record", help="run a script and record its random draws")
    record.add_argument("--digests", action="store_true", help="hash the bits as well")
    record.add_argument("recording", help="the file to write")
    record.add_argument("script", help="a Python file")
    record.add_argument("arguments", nargs="...", help="arguments of the script")
    show = actions.add_parser("show", help="list the draws of a recording")
    show.add_argument("recording")
    compare = actions.add_parser("compare", help="show the first draw that differs, and why")
    compare.add_argument("first")
    compare.add_argument("second")


def run_audit(options: argparse.Namespace) -> int:
    """Run ``nbrt audit``; return the exit status: 1 if two recordings differ."""
    # A late import: the other commands do not need NumPy.
    from nbrt.random import audit

    if options.action == "record":
        if not Path(options.script).is_file():
            raise ArgumentError(f"expected a script to run, got {options.script}")
        with audit.record(options.recording, digests=options.digests):
            _run_script(options.script, options.arguments)
        return 0
    if options.action == "show":
        for draw in audit.load(options.recording).draws:
            print(draw, *draw.stack, sep="\n    ")
        return 0
    first, second = audit.load(options.first), audit.load(options.second)
    difference = audit.compare(first, second, names=(options.first, options.second))
    print(difference or f"no difference: {len(first.draws)} draws")
    return int(difference is not None)


def _run_script(script: str, arguments: list[str]) -> None:
    before = sys.argv, sys.path
    # The same values as for `python script`.
    sys.argv, sys.path = [script, *arguments], [str(Path(script).resolve().parent), *sys.path]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path = before
