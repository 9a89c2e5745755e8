"""Running a script as ``python script`` does."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from nbrt.errors import ArgumentError

__all__ = ["check_script", "run_script"]


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
