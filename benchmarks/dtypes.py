"""Kernels with large local arrays, 64-bit indices and other dtypes than float32, beside Numba.

All systems of a row run interleaved in one process on one core. Numba's form is a parallel loop;
for float16 and bfloat16, which it has no arithmetic for, NumPy's (with `ml_dtypes`) is the peer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba import cuda, prange

from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, absent, each, measure
from benchmarks.peers import find
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT = 1.2
_BLOCK = 256
_NEIGHBOURS = 25
_BINS = 64


@dataclass(frozen=True, slots=True)
class Work:
    """A row: the kernel, Numba's form or None, and NumPy's, on the same arguments."""

    name: str
    kernel: Callable[..., None]
    numba: Callable[..., None] | None
    numpy: Callable[..., None]
    arguments: tuple[Any, ...]
    tolerance: float = 1e-6


def _median(out: Any, x: Any) -> None:
    """Find the median of 25 neighbours by insertion into a local array."""
    i = cuda.grid(1)
    if i < out.size:
        window = cuda.local.array(_NEIGHBOURS, numba.float32)
        for k in range(_NEIGHBOURS):
            value = x[i + k]
            place = k
            while place > 0 and window[place - 1] > value:
                window[place] = window[place - 1]
                place -= 1
            window[place] = value
        out[i] = window[_NEIGHBOURS // 2]


def _numba_median(out: Any, x: Any) -> None:
    for i in prange(out.size):
        window = np.empty(_NEIGHBOURS, np.float32)
        for k in range(_NEIGHBOURS):
            value = x[i + k]
            place = k
            while place > 0 and window[place - 1] > value:
                window[place] = window[place - 1]
                place -= 1
            window[place] = value
        out[i] = window[_NEIGHBOURS // 2]


def _numpy_median(out: Any, x: Any) -> None:
    out[:] = np.median(np.lib.stride_tricks.sliding_window_view(x, _NEIGHBOURS), axis=1)


def _bins(out: Any, x: Any) -> None:
    """Count 64 values a thread in a local array of 64 bins; find the largest bin."""
    i = cuda.grid(1)
    if i < out.size:
        counts = cuda.local.array(_BINS, numba.int32)
        for k in range(_BINS):
            counts[k] = 0
        for k in range(x.shape[1]):
            counts[x[i, k]] += 1
        most = 0
        for k in range(_BINS):
            most = max(most, counts[k])
        out[i] = most


def _numba_bins(out: Any, x: Any) -> None:
    for i in prange(out.size):
        counts = np.zeros(_BINS, np.int32)
        for k in range(x.shape[1]):
            counts[x[i, k]] += 1
        most = 0
        for k in range(_BINS):
            most = max(most, counts[k])
        out[i] = most


def _numpy_bins(out: Any, x: Any) -> None:
    for i in range(out.size):
        out[i] = np.bincount(x[i], minlength=_BINS).max()


def _gather(out: Any, x: Any, index: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[index[i]]


def _numba_gather(out: Any, x: Any, index: Any) -> None:
    for i in prange(out.size):
        out[i] = x[index[i]]


def _numpy_gather(out: Any, x: Any, index: Any) -> None:
    np.take(x, index, out=out, mode="wrap")


def _axpy(out: Any, a: Any, x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def _numba_axpy(out: Any, a: Any, x: Any, y: Any) -> None:
    for i in prange(out.size):
        out[i] = a * x[i] + y[i]


def _numpy_axpy(out: Any, a: Any, x: Any, y: Any) -> None:
    np.multiply(x, a, out=out)
    np.add(out, y, out=out)


def _multiply_add(out: Any, x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * y[i] + x[i]


def _numpy_multiply_add(out: Any, x: Any, y: Any) -> None:
    np.multiply(x, y, out=out)
    np.add(out, x, out=out)


def _wave(out: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = math.exp(-x[i]) * math.sqrt(x[i] + 1.0) + x[i] / (x[i] + 2.0)


def _numba_wave(out: Any, x: Any) -> None:
    for i in prange(out.size):
        out[i] = math.exp(-x[i]) * math.sqrt(x[i] + 1.0) + x[i] / (x[i] + 2.0)


def _numpy_wave(out: Any, x: Any) -> None:
    out[:] = np.exp(-x) * np.sqrt(x + 1.0) + x / (x + 2.0)


def _block_sums(out: Any, x: Any) -> None:
    parts = cuda.shared.array(_BLOCK, numba.float64)
    t = cuda.threadIdx.x
    parts[t] = x[cuda.grid(1)]
    half = _BLOCK // 2
    cuda.syncthreads()
    while half > 0:
        if t < half:
            parts[t] += parts[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = parts[0]


def _numba_block_sums(out: Any, x: Any) -> None:
    for block in prange(out.size):
        total = 0.0
        for i in range(block * _BLOCK, (block + 1) * _BLOCK):
            total += x[i]
        out[block] = total


def _numpy_block_sums(out: Any, x: Any) -> None:
    np.sum(x.reshape(-1, _BLOCK), axis=1, out=out)


def _julia(out: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        z = x[i]
        for _ in range(8):
            z = z * z + x[i]
        out[i] = z


def _numba_julia(out: Any, x: Any) -> None:
    for i in prange(out.size):
        z = x[i]
        for _ in range(8):
            z = z * z + x[i]
        out[i] = z


def _numpy_julia(out: Any, x: Any) -> None:
    out[:] = x
    for _ in range(8):
        out *= out
        out += x


def _works(quick: bool) -> list[Work]:
    n = 1 << (16 if quick else 20)
    generator = np.random.default_rng(1)
    floats = generator.random(n + _NEIGHBOURS, np.float32)
    doubles = generator.random(n)
    index = generator.permutation(n)
    small = generator.integers(0, _BINS, (n >> 6, 64))
    points = (generator.random(n) + 1j * generator.random(n)) * 0.3
    single, halves = points.astype(np.complex64), floats[:n].astype(np.float16)
    found = [
        Work("local array of 25, median", _median, _numba_median, _numpy_median,
             (np.zeros(n >> 4, np.float32), floats[: (n >> 4) + _NEIGHBOURS - 1])),
        Work("local array of 64, histogram", _bins, _numba_bins, _numpy_bins,
             (np.zeros(n >> 6, np.int32), small)),
        Work("int64 indices, gather", _gather, _numba_gather, _numpy_gather,
             (np.zeros(n, np.float32), floats[:n], index)),
        Work("float64, axpy", _axpy, _numba_axpy, _numpy_axpy,
             (np.zeros(n), 2.5, doubles, doubles[::-1].copy())),
        Work("float64, exp, sqrt and division", _wave, _numba_wave, _numpy_wave,
             (np.zeros(n), doubles)),
        Work("float64, block sums", _block_sums, _numba_block_sums, _numpy_block_sums,
             (np.zeros(n // _BLOCK), doubles)),
        Work("complex64, z * z + c", _julia, _numba_julia, _numpy_julia,
             (np.zeros_like(single), single), 1e-4),
        Work("complex128, z * z + c", _julia, _numba_julia, _numpy_julia,
             (np.zeros_like(points), points)),
        Work("float16, multiply and add", _multiply_add, None, _numpy_multiply_add,
             (np.zeros_like(halves), halves, halves[::-1].copy()), 2e-3),
    ]  # fmt: skip
    types, _ = find("ml_dtypes")
    if types is not None:
        brains = floats[:n].astype(types.bfloat16)
        found.append(
            Work("bfloat16, multiply and add", _multiply_add, None, _numpy_multiply_add,
                 (np.zeros_like(brains), brains, brains[::-1].copy()), 2e-2)
        )  # fmt: skip
    return found


def worker(cores: int, quick: bool, *names: str) -> dict[str, list[Measurement]]:
    """Measure every row in this process, which is pinned already."""
    import nbrt

    options = Options(passes=7 if quick else 25)
    numba.set_num_threads(1)
    found = {}
    for work in _works(quick):
        if names and work.name not in names:
            continue
        out, *rest = work.arguments
        work.numpy(out, *rest)
        expected = out.astype(np.complex128)
        with nbrt.device("cpu:0"):
            launch = nbrt.kernel(work.kernel)[-(-_threads(work) // _BLOCK), _BLOCK]
        calls = {"nbrt": launch, "NumPy": work.numpy}
        if work.numba is not None:
            calls["Numba prange"] = numba.njit(parallel=True)(work.numba)
        rows = []
        for name, call in calls.items():
            try:
                out[...] = 0
                call(out, *rest)
                error = np.abs(out.astype(np.complex128) - expected).max()
                assert error <= work.tolerance * max(1.0, np.abs(expected).max()), error
            except Exception as error:  # noqa: BLE001  # the other rows must still run
                rows.append(absent(name, f"{type(error).__name__}: {error}"[:80]))
                continue
            rows.append(Contender(name, each(lambda c=call, o=out, r=rest: c(o, *r))))
        found[work.name] = measure(rows, options, time.process_time)
    return found


def _threads(work: Work) -> int:
    is_sum = work.kernel is _block_sums
    return int(work.arguments[1].size if is_sum else work.arguments[0].size)


def fill(report: Report, quick: bool) -> None:
    """Add a table and a target for each row."""
    found = run_pinned("benchmarks.dtypes", 1, *(["--quick"] if quick else []))
    for name, group in found.items():
        rows = [Measurement.from_json(row) for row in group]
        table = Table(name, rows)
        report.tables.append(table)
        peer = table.row("Numba prange") or table.row("NumPy")
        ours = table.row("nbrt")
        ratio = ours.least / peer.least if ours and peer else None
        text = f"{name}, over {peer.name if peer else 'Numba'}: at most {_LIMIT} (least)"
        report.targets.append(Target(text, ratio, _LIMIT, "x"))
    report.notes.append("CPU time of a process on one core.")


if __name__ == "__main__":
    run("dtypes", "Other dtypes, 64-bit indices and large local arrays", fill)
