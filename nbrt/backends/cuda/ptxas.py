"""ptxas, NVIDIA's assembler: registers, memory and spills of a kernel, without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from nbrt.backends.inspection import Resources
from nbrt.errors import BackendUnavailableError, CompileError

__all__ = ["find_ptxas", "resources_of"]

_SECONDS = 120
_INSTALL = (
    'pip install "nbrt[ptxas]", or the wheel nvidia-cuda-nvcc (for CUDA 12: nvidia-cuda-nvcc-cu12) '
    "in the version of nvidia-nvvm"
)
_ENTRY = re.compile(r"^\s*(?:\.visible|\.weak)?\s*\.entry\s+([\w$]+)", re.M)
_EXTERNAL = re.compile(r"\.extern (\.func\s[^;{}]*);")
"""Declarations of functions that the linker adds, such as those of CUDA's device runtime."""

_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = {
    "registers": re.compile(r"Used (\d+) registers"),
    "static_shared": re.compile(r"(\d+) bytes smem"),
    "constant": re.compile(r"(\d+) bytes cmem\[\d+\]"),
    "barriers": re.compile(r"used (\d+) barriers"),
}


def find_ptxas() -> str:
    """Return the path of ptxas: NVIDIA's wheel, a conda environment, ``CUDA_HOME`` or ``PATH``.

    Raises
    ------
    BackendUnavailableError
        If there is none; names the package to install.
    """
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        path = None
    else:
        path = find_nvidia_binary_utility("ptxas")
    path = path or shutil.which("ptxas")
    if path is None:
        raise BackendUnavailableError(
            f"expected NVIDIA's assembler ptxas, which counts registers, got none; {_INSTALL}"
        )
    return str(path)


def resources_of(
    ptx: str, capability: tuple[int, int], max_registers: int | None = None
) -> Resources:
    """Assemble PTX and return the resources of its kernel, without those of external functions.

    Parameters
    ----------
    ptx : str
        A module with one kernel.
    capability : tuple of int
        The target.
    max_registers : int, optional
        The limit of registers of a thread.

    Raises
    ------
    BackendUnavailableError
        If ptxas is missing, or too old for the PTX or the capability.
    CompileError
        If it does not assemble.
    """
    closed, external = _EXTERNAL.subn(r"\1 {\n\tret;\n}", ptx)
    found = _assembled(closed, capability, max_registers)
    if not external:
        return found
    # With empty bodies in their place, nothing is kept across calls, but memory is known.
    calling = _assembled(ptx, capability, max_registers, "--compile-only")
    return replace(calling, static_shared=found.static_shared, barriers=found.barriers)


def _assembled(
    ptx: str, capability: tuple[int, int], max_registers: int | None, *options: str
) -> Resources:
    ptxas = find_ptxas()
    target = f"sm_{capability[0]}{capability[1]}"
    with tempfile.TemporaryDirectory(prefix="nbrt-ptxas-") as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        output = str(source.with_suffix(".cubin"))
        command = [ptxas, "-v", f"-arch={target}", "-o", output, *options]
        if max_registers:
            command.append(f"-maxrregcount={max_registers}")
        try:
            done = subprocess.run(
                [*command, str(source)],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendUnavailableError(
                f"expected {ptxas} to run, got {error}; {_INSTALL}"
            ) from error
    report = done.stdout + done.stderr
    if done.returncode:
        raise _failure(report.strip(), ptxas, target)
    return _parsed(report, _ENTRY.findall(ptx))


def _failure(report: str, ptxas: str, target: str) -> Exception:
    if "Unsupported .version" in report or "is not defined for option" in report:
        return BackendUnavailableError(
            f"expected a ptxas that accepts this PTX for {target}, got {ptxas} of another "
            f"CUDA version: {report}; {_INSTALL}"
        )
    return CompileError(f"expected the PTX to assemble for {target}, got from {ptxas}: {report}")


def _parsed(report: str, entries: list[str]) -> Resources:
    """Parse the part of a report about the kernel; its callees have other parts."""
    part = report
    for entry in entries:
        at = report.find(f"Compiling entry function '{entry}'")
        if at >= 0:
            part = report[at:]
    used = {name: sum(map(int, each.findall(part))) for name, each in _USED.items()}
    frame = _FRAME.search(part)
    stack, stores, loads = map(int, frame.groups()) if frame else (0, 0, 0)
    return Resources(stack=stack, spill_stores=stores, spill_loads=loads, **used)
