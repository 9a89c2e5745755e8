"""``nbrt audit``: record the draws of a script, show a recording, compare two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.cli.scripts import check_script, run_script

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
        check_script(options.script)
        with audit.record(options.recording, digests=options.digests):
            run_script(options.script, options.arguments)
        return 0
    if options.action == "show":
        for draw in audit.load(options.recording).draws:
            print(draw, *draw.stack, sep="\n    ")
        return 0
    first, second = audit.load(options.first), audit.load(options.second)
    difference = audit.compare(first, second, names=(options.first, options.second))
    print(difference or f"no difference: {len(first.draws)} draws")
    return int(difference is not None)
