"""The ``nbrt`` command."""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import TYPE_CHECKING

from nbrt._version import __version__
from nbrt.cli.audit import add_audit, run_audit
from nbrt.cli.cache import add_cache, run_cache
from nbrt.cli.plan import add_plan, run_plan
from nbrt.cli.run import add_run, run_program
from nbrt.cli.warm import add_warm, run_warm
from nbrt.errors import NbrtError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_DEMO_DEVICES = "4"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; return the exit status."""
    options = _parser().parse_args(arguments)
    # Kernels have names that ASCII does not have. The output of a program is that of the program.
    if isinstance(sys.stdout, io.TextIOWrapper) and options.command != "run":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if options.command == "info":
            from nbrt.cli.info import info_lines

            print("\n".join(info_lines()))
            return 0
        if options.command == "audit":
            return run_audit(options)
        if options.command == "cache":
            return run_cache(options)
        if options.command == "plan":
            return run_plan(options)
        if options.command == "run":
            return run_program(options)
        if options.command == "warm":
            return run_warm(options)
        return _demo(options)
    except NbrtError as error:
        print(f"nbrt: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nbrt", description="Prototype GPU kernels on CUDA devices or native CPU devices."
    )
    parser.add_argument("--version", action="version", version=f"nbrt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("info", help="show devices, backends, and why one is unavailable")
    add_audit(commands.add_parser("audit", help="record random draws, and compare two runs"))
    add_cache(commands.add_parser("cache", help="list, clear, bundle and load compiled kernels"))
    add_plan(commands.add_parser("plan", help="plan the memory of a script, without its GPU"))
    add_run(commands.add_parser("run", help="run a program for numba.cuda without a GPU"))
    add_warm(commands.add_parser("warm", help="compile all kernels of a script, in parallel"))
    demo = commands.add_parser("demo", help="denoise a photograph on two streams; check every step")
    demo.add_argument("image", nargs="?", help="a picture; by default the photograph in matplotlib")
    demo.add_argument("--device", help="where to run, such as cpu or cuda:0; default: the default")
    demo.add_argument(
        "--output", default="demo-output", help="folder for the pictures (%(default)s)"
    )
    demo.add_argument("--seed", type=int, default=2026, help="seed of the noise (%(default)s)")
    demo.add_argument(
        "--sigma", type=float, default=0.08, help="standard deviation of the noise (%(default)s)"
    )
    return parser


def _demo(options: argparse.Namespace) -> int:
    # The demo draws noise on four virtual devices. The backend reads the number when it starts.
    os.environ.setdefault("NBRT_CPU_DEVICES", _DEMO_DEVICES)
    try:
        from nbrt.cli.demo.command import show_demo
    except ImportError as error:
        missing = error.name or str(error)
        if missing.partition(".")[0] not in {"matplotlib", "rich", "PIL"}:
            raise
        print(
            f"nbrt: expected packages for plots and tables, {missing} is missing; install them "
            f"with: pip install 'nbrt[viz]'",
            file=sys.stderr,
        )
        return 1
    return show_demo(
        image=options.image,
        device=options.device,
        output=options.output,
        seed=options.seed,
        sigma=options.sigma,
    )


if __name__ == "__main__":
    sys.exit(main())
