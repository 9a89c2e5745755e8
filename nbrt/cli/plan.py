"""``nbrt plan``: run a script on fake devices, and print which memory it needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nbrt.cli.scripts import add_script, check_script, script_arguments, status_of
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    import argparse

    from nbrt.planning.plan import MemoryPlan

__all__ = ["add_plan", "run_plan"]


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``nbrt plan`` to its parser."""
    parser.add_argument("--gpu", help="a GPU such as H100 or L4; default: H100 SXM")
    parser.add_argument("--device", default="cuda", help="kind of device (%(default)s)")
    parser.add_argument("--devices", type=int, help="number of devices; default: 1")
    parser.add_argument(
        "--reads",
        choices=("error", "zeros"),
        default="error",
        help="the values that the script reads from a device (%(default)s)",
    )
    parser.add_argument("--compile", action="store_true", help="compile kernels for the GPU")
    parser.add_argument("--html", metavar="FILE", help="write the plan as a page")
    parser.add_argument("--json", metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--snapshot", metavar="FILE", help="write a snapshot for torch's viewer")
    parser.add_argument(
        "--fits",
        action="store_true",
        help="print all known GPUs; exit with status 3 if the script does not fit the GPU",
    )
    add_script(parser)


def run_plan(options: argparse.Namespace) -> int:
    """Run ``nbrt plan``.

    Returns
    -------
    status : int
        That of the script, 1 if it raises; with ``--fits`` 3 if it succeeds but does not fit.
    """
    # A late import: the other commands need neither NumPy nor a backend.
    from nbrt.planning.fake_mode import fake

    check_script(options.script)
    for name in ("html", "json", "snapshot"):
        setattr(options, name, _checked_output(name, getattr(options, name)))
    arguments = script_arguments(options)
    mode = fake(
        options.device,
        gpu=options.gpu,
        devices=options.devices,
        reads=options.reads,
        compile=options.compile,
    )
    with mode as plan:
        status = status_of(options.script, arguments)
    print(plan)
    if status:
        print(f"The script ended with status {status}: the plan covers the part that ran.")
    if options.fits:
        print(plan.table())
    _write(plan, options)
    return status or (3 if options.fits and not plan.fits() else 0)


def _checked_output(name: str, path: str | None) -> Path | None:
    """Return the absolute path of a file to write, because the script may change the folder.

    Raises
    ------
    ArgumentError
        If it cannot be written.
    """
    if path is None:
        return None
    file = Path(path).absolute()
    reason = None
    if not file.parent.is_dir():
        reason = "its folder does not exist"
    elif file.is_dir():
        reason = "it is a folder"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        reason = "it is not writable"
    if reason is not None:
        raise ArgumentError(f"expected a file to write for --{name}, got {path}: {reason}")
    return file


def _write(plan: MemoryPlan, options: argparse.Namespace) -> None:
    import pickle

    if options.html:
        from nbrt.planning.html import plan_page

        options.html.write_text(plan_page(plan), encoding="utf-8")
    if options.json:
        options.json.write_text(plan.to_json(), encoding="utf-8")
    if options.snapshot:
        # Version 4 is the newest that torch's page reads.
        options.snapshot.write_bytes(pickle.dumps(plan.snapshot(), protocol=4))
