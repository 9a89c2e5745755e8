"""Scripts on the command line: their arguments, and running them as ``python script`` does."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    import argparse
    from types import TracebackType

__all__ = ["add_script", "check_script", "run_script", "script_arguments", "status_of"]


def add_script(parser: argparse.ArgumentParser) -> None:
    """Add a script and its arguments to a parser."""
    parser.add_argument("script", help="a Python file")
    arguments = parser.add_argument("arguments", nargs="...", help="arguments of the script")
    arguments.required = False  # also in the message without a script


def script_arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments of the script, without a ``--`` before them."""
    arguments: list[str] = options.arguments
    return arguments[1:] if arguments[:1] == ["--"] else arguments


def check_script(script: str) -> None:
    """Raise ArgumentError if a script does not exist."""
    if not Path(script).is_file():
        raise ArgumentError(f"expected a script to run, got {script}")


def run_script(script: str, arguments: list[str]) -> None:
    """Run a script as ``__main__``, with the ``sys.argv`` and ``sys.path`` of ``python script``."""
    before = sys.argv, sys.path
    sys.argv, sys.path = [script, *arguments], [str(Path(script).resolve().parent), *sys.path]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path = before


def status_of(script: str, arguments: list[str]) -> int:
    """Run a script; print its exception; return its exit status."""
    try:
        run_script(script, arguments)
    except SystemExit as end:
        return _status(end.code)
    except BaseException as error:  # noqa: BLE001  # an interrupt ends the script alone
        own = _frames_of(error.__traceback__, script)
        traceback.print_exception(error.with_traceback(own))
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _status(code: Any) -> int:
    """Return the exit status of ``sys.exit(code)``."""
    if code is None or isinstance(code, int):
        return int(code or 0)
    print(code, file=sys.stderr)
    return 1


def _frames_of(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Return the part of a traceback that begins in the script."""
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename != script:
        start = start.tb_next
    return trace if start is None else start
