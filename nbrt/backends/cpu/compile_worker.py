"""Compilation of kernels for CPU devices in another process: the jobs, and their worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.by_value import dumps, loaded
from nbrt.backends.compile_jobs import CompileJob, NotStoredError, Worker, check_key
from nbrt.backends.cpu.launch import CpuProgram

if TYPE_CHECKING:
    from nbrt.typing import Dim3

__all__ = ["CpuWorker", "compile_jobs"]


def compile_jobs(
    program: CpuProgram, block: Dim3, args: tuple[Any, ...], *, stored: bool = False
) -> list[CompileJob]:
    """Return the job for the code of a kernel for a block shape and the types of arguments.

    Returns
    -------
    list of CompileJob
        Empty if the kernel cannot be stored, or without `stored` if the code is in the store.

    Raises
    ------
    ArgumentTypeError
        If the number or a type of the arguments does not fit.
    """
    entry = program.entry(block)
    if program.declared is not None:
        args = program.declared.converted(args)
    types = entry.types_of(args)
    key = entry.key(types)
    if key is None:
        return []
    is_stored = program.is_stored(key)
    if not stored and (is_stored or types in entry.overloads):
        return []
    named = ", ".join(map(str, types[1:]))
    label = f"{program.function.__name__}[{'x'.join(map(str, block))}]({named})"
    payload = b"" if is_stored else dumps(program.captures, key, block, types)
    return [CompileJob("cpu", key, label, payload, is_stored)]


class CpuWorker(Worker):
    """The SIMT compiler in a compile process."""

    preload = (
        "numba.cuda",
        "numba.core.inline_closurecall",
        "nbrt.backends.cpu.compile_worker",
        "nbrt.backends.cpu.simt.codegen.block_calls",
        "nbrt.backends.cpu.simt.codegen.entry",
        "nbrt.backends.cpu.simt.codegen.polled_library",
        "nbrt.backends.cpu.simt.frontend.pipeline",
        "nbrt.backends.cpu.simt.lanes.block",
    )

    def compile(self, payload: bytes) -> str:
        """Compile as a launch would, which puts the code into the code store."""
        key: str
        with loaded(payload) as (function, key, block, types):
            program = CpuProgram(function)
            entry = program.entry(block)
            check_key(entry.key(types), key)
            entry.prepare_types(types)
            check_key(entry.key(types), key)
        if not program.is_stored(key):
            message = "the code is not in the code store"
            raise NotStoredError(message)
        return key
