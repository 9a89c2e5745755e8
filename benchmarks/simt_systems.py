"""How each system runs the works of `benchmarks.simt`: one function per system.

Each gives, for a work, what to call and the array to look at; or the reason why it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import absent, wait_for_other_threads
from benchmarks.peers import find, find_taichi, opencl_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.simt_works import Problem, Work

__all__ = ["SYSTEMS", "Form"]


@dataclass(frozen=True, slots=True)
class Form:
    """A work in one system.

    Attributes
    ----------
    name : str
        Who.
    call : callable
        Does the work once and waits for it.
    out : array
        Where the result is found afterwards.
    note : str
        What a reader must know of this row.
    settle : callable or None
        Called off the clock, before the next row is measured.
    """

    name: str
    call: Callable[[], object]
    out: Any
    note: str = ""
    settle: Callable[[], object] | None = None


Forms = "Iterator[Form | Contender]"

# Fast-math, but with infinities and NaN.
_FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}


def numpy_forms(work: Work, problem: Problem, cores: int) -> Forms:
    arguments = problem.arguments
    note = "BLAS" if work.name == "matmul" else ""
    settle = wait_for_other_threads if cores > 1 else None
    yield Form("NumPy", lambda: problem.numpy(*arguments), arguments[0], note, settle)


def nbrt_forms(work: Work, problem: Problem, cores: int) -> Forms:
    import nbrt

    arguments = problem.arguments
    for name, fast in (("nbrt", False), ("nbrt, fast", True)):
        with nbrt.device("cpu:0"):
            launch = nbrt.kernel(work.kernel, fastmath=fast)[problem.grid, problem.block]
        yield Form(name, lambda launch=launch: launch(*arguments), arguments[0])


def numba_forms(work: Work, problem: Problem, cores: int) -> Forms:
    import numba

    from benchmarks import simt_library_numba, simt_numba

    plain = (simt_numba.FORMS | simt_library_numba.FORMS)[work.name]
    numba.set_num_threads(min(cores, numba.config.NUMBA_NUM_THREADS))
    arguments = problem.arguments
    for name, fast in (("Numba prange", False), ("Numba prange, fast", _FAST)):
        # Numba's cache on disk does not tell the flags of fast-math apart.
        function = numba.njit(parallel=True, fastmath=fast, cache=not fast)(plain)
        yield Form(name, lambda function=function: function(*arguments), arguments[0])


def opencl_forms(family: str) -> Callable[..., Forms]:
    """Return the forms on the devices of which the name begins with `family`."""

    def forms(work: Work, problem: Problem, cores: int) -> Forms:
        from benchmarks.simt_opencl import SOURCES

        devices, reason = opencl_devices()
        devices = [device for device in devices if device.name.startswith(family)]
        if not devices:
            yield absent(family, reason)
        for device in devices:
            try:
                kernel = device.kernel(SOURCES[work.name], work.name)
            except Exception as error:  # noqa: BLE001  # the error is the result
                yield absent(device.name, _brief(error))
                continue
            values = [
                device.over(value) if isinstance(value, np.ndarray) else np.asarray(value)
                for value in problem.arguments
            ]
            if work.name == "histogram":
                values.append(np.uint32(problem.arguments[1].size))
            values = [_narrow(value) for value in values]
            call = device.launcher(kernel, problem.grid, problem.block, tuple(values))
            yield Form(device.name, call, problem.arguments[0], "the kernel in OpenCL C")

    return forms


def _narrow(value: Any) -> Any:
    """Pass an integer as the 32 bits that OpenCL's ``int`` has."""
    if isinstance(value, np.ndarray):
        return np.int32(value) if value.dtype.kind == "i" else value[()]
    return value


def _brief(error: Exception) -> str:
    """Return the first error in a compiler's log, without the file it is in."""
    lines = [line for line in str(error).splitlines() if "error: " in line]
    return (lines or [type(error).__name__])[0].rpartition(": ")[2][:80]


def warp_forms(work: Work, problem: Problem, cores: int) -> Forms:
    warp, reason = find("warp", "warp-lang")
    if warp is None:
        yield absent("Warp", reason)
        return
    from benchmarks.simt_warp import FORMS

    warp.config.quiet = True
    warp.init()
    kernel, threads = FORMS[work.name](warp, work.size)
    inputs = [
        warp.from_numpy(value, warp.dtype_from_numpy(value.dtype), device="cpu")
        if isinstance(value, np.ndarray)
        else value
        for value in problem.arguments
    ]
    command = warp.launch(kernel, dim=threads, inputs=inputs, device="cpu", record_cmd=True)
    yield Form("Warp", command.launch, inputs[0].numpy(), "own form, recorded, one thread")


def taichi_forms(work: Work, problem: Problem, cores: int) -> Forms:
    taichi, name = find_taichi()
    if taichi is None:
        yield absent("Quadrants, Taichi", name)
        return
    from benchmarks.simt_taichi import FORMS

    taichi.init(arch=taichi.cpu, cpu_max_num_threads=cores, log_level=taichi.ERROR)
    kernel = FORMS[work.name](taichi)
    yield Form(name, lambda: kernel(*problem.arguments), problem.arguments[0], "own form")


#: Each runs in separate processes, together with NumPy.
SYSTEMS: dict[str, Callable[..., Forms]] = {
    "nbrt": nbrt_forms,
    "numba": numba_forms,
    "pocl": opencl_forms("PoCL"),
    "intel": opencl_forms("Intel"),
    "warp": warp_forms,
    "taichi": taichi_forms,
}
