"""``nbrt warm``: compile, in parallel, all kernels that a script launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.cli.scripts import add_script, check_script, script_arguments, status_of

if TYPE_CHECKING:
    import argparse

__all__ = ["add_warm", "run_warm"]


def add_warm(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``nbrt warm`` to its parser."""
    parser.add_argument(
        "--targets",
        metavar="GPUS",
        default="",
        help="GPUs to compile for, such as H100,sm_80; default: the devices of this machine",
    )
    parser.add_argument("--device", help="the current device of the script; default: the default")
    parser.add_argument("--devices", type=int, help="number of GPUs; default: those of the machine")
    parser.add_argument(
        "--reads",
        choices=("error", "zeros"),
        default="error",
        help="the values that the script reads from a device (%(default)s)",
    )
    parser.add_argument("--workers", type=int, help="number of processes; default: of CPUs")
    add_script(parser)


def run_warm(options: argparse.Namespace) -> int:
    """Run ``nbrt warm``.

    Returns
    -------
    status : int
        That of the script, 1 if it raises; 1 also if a kernel does not compile.
    """
    # A late import: the other commands need neither NumPy nor a backend.
    from nbrt.planning.warm import collect_kernels, compile_collected

    check_script(options.script)
    arguments = script_arguments(options)
    targets = tuple(name.strip() for name in options.targets.split(",") if name.strip())
    with collect_kernels(
        targets=targets, device=options.device, devices=options.devices, reads=options.reads
    ) as found:
        status = status_of(options.script, arguments)
    result = compile_collected(found, workers=options.workers, loads=False)
    print(result)
    if status:
        print(f"The script ended with status {status}: the table covers the part that ran.")
    return status or (1 if result.failed else 0)
