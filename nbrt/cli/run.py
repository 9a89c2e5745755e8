"""``nbrt run``: run a program for ``numba.cuda`` as ``python`` does, without a GPU."""

from __future__ import annotations

import argparse
import builtins
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from nbrt.errors import ArgumentError

__all__ = ["add_run", "run_program"]


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``nbrt run`` to its parser."""
    parser.usage = "nbrt run [-h] (script | -m module) ..."
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        help="a module, and its arguments",
    )
    parser.add_argument("script", nargs="?", help="a Python file, or a folder with __main__.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")


def run_program(options: argparse.Namespace) -> int:
    """Run ``nbrt run``: the program, with programs for ``numba.cuda`` on nbrt.

    What the program raises is shown by ``sys.excepthook``, without the frames of nbrt.

    Returns
    -------
    status : int
        That of the program, if it ends.

    Raises
    ------
    SystemExit, KeyboardInterrupt
        As the program does: the interpreter gives them their exit status.
    """
    from nbrt.compat.numba_cuda import install_at_import

    _check(options)
    install_at_import()
    try:
        if options.module is not None:
            _run_module(*options.module)
        else:
            _run_script(options.script, options.arguments)
    except Exception as error:  # noqa: BLE001  # the program's, which its hook shows
        trace = error.__traceback__
        while trace is not None and _is_of_runner(trace.tb_frame.f_code):
            trace = trace.tb_next
        sys.excepthook(type(error), error, error.with_traceback(trace).__traceback__)
        return 1
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.module is not None:
        if not options.module:
            raise ArgumentError("expected a module behind -m, got none")
    elif options.script is None:
        raise ArgumentError("expected a script, or -m and a module, got neither")
    elif not Path(options.script).exists():
        raise ArgumentError(f"expected a script to run, got {options.script}")


def _run_module(name: str, *arguments: str) -> None:
    sys.argv = [name, *arguments]
    _set_first_path(str(Path.cwd()))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    if _has_main_module(script):
        _set_first_path(script)
        runpy.run_path(script, run_name="__main__")
        return
    path = Path(script)
    _set_first_path(str(path.resolve().parent))
    # Unlike that of `runpy`, the module outlives the script: threads, functions of `atexit` and
    # child processes look for it.
    module = ModuleType("__main__")
    module.__loader__ = SourceFileLoader("__main__", script)
    module.__file__ = script
    vars(module)["__builtins__"] = builtins
    sys.modules["__main__"] = module
    code = compile(path.read_bytes(), script, "exec", dont_inherit=True)
    exec(code, vars(module))


def _has_main_module(script: str) -> bool:
    """Return whether a script is a folder or an archive with ``__main__.py``."""
    from zipfile import is_zipfile

    return Path(script).is_dir() or is_zipfile(script)


def _set_first_path(folder: str) -> None:
    """Replace the folder of nbrt's command, unless Python adds none (``python -P``)."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _is_of_runner(code: CodeType) -> bool:
    """Return whether a frame is one of this module, `runpy` or the import system."""
    name = code.co_filename
    return name in (__file__, runpy.__file__) or name.startswith("<frozen ")
