"""First calls in a fresh process: a launch, draws, and a launch with a new block size.

Every figure is the CPU time of a new process after its imports: for nbrt after ``import
numba.cuda``, so that the import of nbrt is counted. Cold processes find an empty folder of compiled
code; the others find the code that a cold process left.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass

from benchmarks.environment import ROOT, last_line, version_of
from benchmarks.harness import Measurement
from benchmarks.report import Report, Table, Target, run

_KERNEL = """
def saxpy(out, a, x, y):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = a * x[i] + y[i]
"""

_LAUNCH = f"""
from numba import cuda
start = process_time()
import nbrt, numpy as np
{_KERNEL}
with nbrt.device("cpu:0"):
    x, y, out = (nbrt.zeros(10_000, np.float32) for _ in range(3))
    kernel = nbrt.kernel(saxpy)
    kernel[40, 256](out, 2.0, x, y)
    {{then}}
"""

_NEW_BLOCK = "start = process_time(); kernel[79, 128](out, 2.0, x, y)"

_DRAW = """
import numba.cuda
start = process_time()
import nbrt
nbrt.Generator(0, device="cpu:0").{call}
"""

_NJIT = """
import numba, numpy as np
start = process_time()
@numba.njit
def saxpy(out, a, x, y):
    for i in range(out.shape[0]):
        out[i] = a * x[i] + y[i]
x, y, out = (np.zeros(10_000, np.float32) for _ in range(3))
saxpy(out, 2.0, x, y)
"""

_SIMULATOR = f"""
from numba import cuda
import numpy as np
start = process_time()
{_KERNEL}
x, y, out = (np.zeros(10_000, np.float32) for _ in range(3))
cuda.jit(saxpy)[40, 256](out, 2.0, x, y)
"""

_WARP = """
import os, warp as wp, numpy as np
wp.config.quiet = True
wp.config.kernel_cache_dir = os.environ["NBRT_CACHE_DIR"]
start = process_time()
exec(compile(open({path!r}).read(), {path!r}, "exec"))
kernel, n = _saxpy(wp, 10_000)
x, y, out = (wp.zeros(n, dtype=wp.float32, device="cpu") for _ in range(3))
wp.launch(kernel, dim=n, inputs=[out, 2.0, x, y], device="cpu")
"""


@dataclass(frozen=True, slots=True)
class _Case:
    """A program that sets ``start`` after its imports."""

    name: str
    code: str
    limit: float | None = None
    environment: tuple[tuple[str, str], ...] = ()
    package: str | None = None


_CASES = (
    _Case("first launch", _LAUNCH.format(then=""), 0.35),
    _Case("new block size", _LAUNCH.format(then=_NEW_BLOCK)),
    _Case("first random", _DRAW.format(call="random(1000)")),
    _Case("first standard_normal", _DRAW.format(call="standard_normal(1000)"), 0.4),
    _Case("first standard_gamma", _DRAW.format(call="standard_gamma(2.0, 1000)"), 0.8),
    _Case("first poisson", _DRAW.format(call="poisson(100.0, 1000)"), 0.8),
    _Case("first beta", _DRAW.format(call="beta(0.5, 2.0, 1000)"), 0.8),
)

_PEERS = (
    _Case("numba.njit", _NJIT, package="numba"),
    _Case("simulator of numba.cuda", _SIMULATOR, None, (("NUMBA_ENABLE_CUDASIM", "1"),)),
    _Case(
        "Warp",
        _WARP.format(path=str(ROOT / "benchmarks" / "simt_warp.py")),
        package="warp-lang",
    ),
)


def _seconds(case: _Case, folder: str) -> float:
    """Return the CPU time of one process, or raise RuntimeError with its last line."""
    code = f"from time import process_time\n{case.code}\nprint(process_time() - start)"
    return float(last_line(["-c", code], {"NBRT_CACHE_DIR": folder, **dict(case.environment)}))


def _measured(
    report: Report, cases: tuple[_Case, ...], passes: int
) -> tuple[list[Measurement], list[Measurement]]:
    """Return the rows of all cases, cold and from disk, measured in interleaved passes."""
    cold: dict[str, list[float]] = {case.name: [] for case in cases}
    warm: dict[str, list[float]] = {case.name: [] for case in cases}
    notes: dict[str, str] = {}
    longest = 0.0
    for turn in range(passes):
        if turn and not report.has_time_for(longest):
            break
        begin = time.monotonic()
        for case in cases:
            if case.name in notes:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    cold[case.name].append(_seconds(case, folder))
                    warm[case.name].append(_seconds(case, folder))
                except RuntimeError as error:
                    notes[case.name] = str(error)
        longest = max(longest, time.monotonic() - begin)
    cold_rows, warm_rows = (
        [
            Measurement(name, tuple(seconds), len(seconds), notes.get(name, ""))
            for name, seconds in found.items()
        ]
        for found in (cold, warm)
    )
    return cold_rows, warm_rows


def fill(report: Report, quick: bool) -> None:
    present = [case for case in _PEERS if case.package is None or version_of(case.package)]
    cold, warm = _measured(report, (*_CASES, *present), 1 if quick else 7)
    for case, row in zip(_CASES, cold, strict=False):
        if case.limit is not None:
            found = row.median if row.seconds else None
            text = f"{case.name}, compiled: at most {case.limit} s"
            report.targets.append(Target(text, found, case.limit, "s"))
    for heading, rows in (("Compiled: CPU seconds", cold), ("From disk: CPU seconds", warm)):
        report.tables.append(Table(heading, rows, "first launch"))
    report.notes.append(
        "Warp compiles C++ with Clang and keeps the code on disk; numba.njit keeps nothing on disk "
        "here, as by default; the simulator interprets."
    )


if __name__ == "__main__":
    run("first_call", "First calls in a fresh process", fill)
