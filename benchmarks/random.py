"""Random numbers: nbrt's Philox beside the generators of NumPy, randomgen, torch and JAX.

``python -m benchmarks.random --device cuda`` measures a CUDA device instead.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, absent, measure
from benchmarks.instruction_sets import instruction_set
from benchmarks.peers import find
from benchmarks.random_peers import APART, FILLS, LAYOUTS, SAMPLERS, row
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_WORKS = {"fills": FILLS, "samplers": SAMPLERS, "layouts": LAYOUTS}

_SETTLE_SECONDS = 0.5
_SHARD_SECONDS = 0.01
_WIDTH = 4096
_COLUMNS = (1024, 512, 64, 33, 7)
_COLUMN_LIMITS = {1024: 1.3, 64: 1.3, 33: 1.5, 7: 2.5}
_SMALL = 16


@dataclass(frozen=True, slots=True)
class Floor(Target):
    """A ratio that must reach the limit."""

    @property
    def verdict(self) -> str:
        """Met, missed, or not measured."""
        if self.found is None:
            return "not measured"
        return "met" if self.found >= self.limit else "missed"


# -- in a pinned process ---------------------------------------------------------------------------


def worker(cores: int, quick: bool, *groups: str) -> dict[str, list[Measurement]]:
    """Measure in this process, which is pinned already."""
    options = Options(passes=3 if quick else 7, sample_seconds=0.0)
    # One draw of few columns takes less than the caches and Python need to become warm.
    repeated = replace(options, sample_seconds=_SHARD_SECONDS)
    found: dict[str, list[Measurement]] = {}
    for work in (work for group in groups for work in _WORKS.get(group, ())):
        out = nbrt.empty(work.quick_n if quick else work.n, work.dtype, device="cpu:0")
        contenders = work.contenders(out)
        together = measure([one for one in contenders if one.name != APART], options)
        found[work.name] = together + measure(
            [one for one in contenders if one.name == APART], options
        )
        time.sleep(_SETTLE_SECONDS)
    if "shards" in groups:
        found["shards"] = _shards(_WIDTH // 8 if quick else _WIDTH, repeated)
    if "threads" in groups:
        for name, method in (("uniform", "random"), ("normal", "standard_normal")):
            rows = _threads(method, 1 << (20 if quick else 24))
            found[f"threads: {name} float32"] = measure(rows, options)
    if "small" in groups:
        found["small"] = measure(_small(), Options.quick() if quick else Options())
    return found


def _shards(rows: int, options: Options) -> list[Measurement]:
    """Return seconds per element of parts of one draw of shape (rows, 4096)."""
    parts: list[tuple[str, Any]] = [
        ("dense", slice(None)),
        ("rows", slice(rows // 4, rows // 4 + rows // 8)),
    ]
    # Columns from an odd place: a run starts within a Philox block.
    parts += [(f"{n} columns", (slice(None), slice(1001, 1001 + n))) for n in _COLUMNS]
    contenders, sizes = [], []
    for name, part in parts:
        shape = np.broadcast_to(0, (rows, _WIDTH))[part].shape
        draw = partial(_shard, (rows, _WIDTH), part, nbrt.empty(shape, device="cpu:0"))
        contenders.append(row(name, draw, f"{shape} of {(rows, _WIDTH)}"))
        sizes.append(math.prod(shape))
    return [
        replace(found, seconds=tuple(seconds / size for seconds in found.seconds))
        for found, size in zip(measure(contenders, options), sizes, strict=True)
    ]


def _shard(whole: tuple[int, int], part: Any, out: Any) -> Callable[[], object]:
    generator = nbrt.Generator(1, device="cpu:0").shard(whole, part)
    return partial(generator.random, dtype=out.dtype, out=out)


def _threads(method: str, n: int) -> list[Contender]:
    """Return a draw on one thread and on two, and NumPy's draw on two cores."""
    from nbrt.backends.cpu.block_scheduler import set_num_threads

    out = nbrt.empty(n, np.float32, device="cpu:0")
    draw = getattr(nbrt.Generator(1, device="cpu:0"), method)

    def on(threads: int) -> None:
        set_num_threads(threads)
        draw(n, np.float32, out)

    pool = ThreadPoolExecutor(2)
    peers = [np.random.Generator(np.random.Philox(seed)) for seed in range(2)]
    halves = [
        partial(getattr(peer, method), n // 2, np.float32, half)
        for peer, half in zip(peers, np.split(out, 2), strict=True)
    ]

    def one_after_the_other() -> None:
        for half in halves:
            pool.submit(half).result()

    def side_by_side() -> None:
        for future in [pool.submit(half) for half in halves]:
            future.result()

    return [
        row("nbrt, one thread", lambda: partial(on, 1)),
        row("nbrt, two threads", lambda: partial(on, 2)),
        row("NumPy Philox, one thread", lambda: one_after_the_other),
        row("NumPy Philox, two threads", lambda: side_by_side, "half each"),
    ]


def _small() -> list[Contender]:
    out = nbrt.empty(_SMALL, np.float32, device="cpu:0")
    draw = nbrt.Generator(1, device="cpu:0").random
    numpy = np.random.Generator(np.random.Philox(1)).random
    rows = [
        row("nbrt, out=", lambda: partial(draw, _SMALL, np.float32, out)),
        row("nbrt", lambda: partial(draw, _SMALL, np.float32)),
        row("NumPy, out=", lambda: partial(numpy, _SMALL, np.float32, out)),
        row("NumPy", lambda: partial(numpy, _SMALL, np.float32)),
    ]
    torch, reason = find("torch")
    if torch is None:
        return [*rows, absent("torch", reason)]
    return [
        *rows,
        row("torch, uniform_", lambda: torch.from_numpy(out).uniform_),
        row("torch", lambda: partial(torch.rand, _SMALL)),
    ]


# -- the report ------------------------------------------------------------------------------------


def fill(report: Report, quick: bool) -> None:
    flags = ["--quick"] if quick else []
    wide = _note_processor(report)
    groups = ["fills", "samplers", "layouts", "shards", "small"]
    one = _tables(run_pinned("benchmarks.random", 1, *groups, *flags), quick, "1 thread")
    report.tables += one.values()
    report.targets += _fill_targets(one, wide)
    report.targets += _sampler_targets(one)
    report.targets += _shape_targets(one)
    if len(os.sched_getaffinity(0)) < 2:
        report.notes.append("Two threads were not measured: the process may use one core.")
    else:
        groups = ["threads"] if quick else ["threads", "fills"]
        two = _tables(run_pinned("benchmarks.random", 2, *groups, *flags), quick, "2 threads")
        report.tables += two.values()
        report.targets += _thread_targets(two)
    report.notes += [
        "GB/s counts the bytes of the result; x fill is the time over that of `out.fill(1)`.",
        "Who draws into a given array does so into the same one.",
        f"A figure of shards is the mean of draws that take {_SHARD_SECONDS * 1e3:g} ms together.",
    ]
    if quick:
        report.notes.append("A quick run: short draws and 3 passes; figures are a glance.")


def _note_processor(report: Report) -> bool:
    """Note the target of compilation; return whether it has AVX-512."""
    from nbrt.backends.cpu.simt.processor import processor

    wide = instruction_set() == "avx512"
    report.environment |= {"compiled_for": processor().name, "avx512": wide}
    target = f"{report.environment['compiled_for']}, {'with' if wide else 'without'} AVX-512"
    report.notes.append(
        f"Compiled for {target}; without it, targets of 8 and 4 GB/s are 6 and 2.2 GB/s."
    )
    return wide


def _tables(found: dict[str, Any], quick: bool, threads: str) -> dict[str, Table]:
    """Return the tables of a worker's measurements, by name."""
    works = {work.name: work for group in _WORKS.values() for work in group}
    long = 1 << (20 if quick else 24)
    tables = {}
    for name, plain in found.items():
        rows = _with_fill([Measurement.from_json(row) for row in plain])
        if name == "small":
            heading = f"{_SMALL} uniform float32 from Python"
            tables[name] = Table(heading, rows, "nbrt, out=")
        elif name == "shards":
            heading = "Shards of one draw of uniform float32, time per element"
            tables[name] = Table(heading, rows, "dense", items=1, nbytes=4)
        elif name in works:
            work = works[name]
            n = work.quick_n if quick else work.n
            reference = "element" if work in LAYOUTS else "nbrt"
            heading = f"{name}, {n} elements, {threads}"
            tables[name] = Table(heading, rows, reference, n, n * work.dtype.itemsize)
        else:
            heading = f"{name}, {long} elements"
            tables[name] = Table(heading, rows, "nbrt, one thread", long, 4 * long)
    return tables


def _with_fill(rows: list[Measurement]) -> list[Measurement]:
    """Note the time of each row relative to plain writes, where these were measured."""
    fill = next((row for row in rows if row.name == "fill" and row.seconds), None)
    if fill is None:
        return rows
    return [
        replace(row, note=f"{row.ratio_to(fill):.3g} x fill; {row.note}".rstrip("; "))
        if row.seconds and row is not fill
        else row
        for row in rows
    ]


def _fill_targets(tables: dict[str, Table], wide: bool) -> list[Target]:
    fast, normal = (8.0, 4.0) if wide else (6.0, 2.2)
    rates = {
        "uniform float32": fast,
        "uniform float64": fast,
        "integers int32": fast,
        "integers int64": fast,
        "normal float32": normal,
    }
    times = [
        ("uniform float32", "NumPy", 3.5),
        ("normal float32", "torch CPU", 3.0),
        ("normal float32", "NumPy", 6.0),
        ("exponential float32", "torch CPU", 5.0),
        ("bernoulli(0.5) float32", "torch CPU", 5.0),
        ("dropout(0.1) float32", "torch CPU", 5.0),
    ]
    found: list[Target] = []
    for name, limit in rates.items():
        row, nbytes = tables[name].row("nbrt"), tables[name].nbytes
        rate = None if row is None or nbytes is None else nbytes / row.median / 1e9
        found.append(Floor(f"{name}: at least {limit:g} GB/s", rate, limit, " GB/s"))
    for name, peer, limit in times:
        text = f"{name}, times as fast as {peer}: at least {limit:g}"
        found.append(Floor(text, _times_as_fast(tables[name], peer), limit, "x"))
    return found


def _sampler_targets(tables: dict[str, Table]) -> list[Target]:
    names = ("Poisson(100) int64", "gamma(2.5) float64", "beta(0.5, 2) float64")
    return [
        Floor(
            f"{name}, times as fast as NumPy's fastest generator: at least 2",
            _times_as_fast(tables[name], "NumPy"),
            2.0,
            "x",
        )
        for name in names
    ]


def _times_as_fast(table: Table, peer: str) -> float | None:
    """Return the time of the best row whose name starts with `peer` over nbrt's."""
    nbrt_row = table.row("nbrt")
    peers = [row for row in table.rows if row.seconds and row.name.startswith(peer)]
    if nbrt_row is None or not peers:
        return None
    return min(peers, key=lambda row: row.median).ratio_to(nbrt_row)


def _ratio(table: Table, name: str, to: str) -> float | None:
    row, other = table.row(name), table.row(to)
    return None if row is None or other is None else row.ratio_to(other)


def _shape_targets(tables: dict[str, Table]) -> list[Target]:
    shards, small = tables["shards"], tables["small"].row("nbrt, out=")
    limits = {"rows": 1.3, **{f"{n} columns": limit for n, limit in _COLUMN_LIMITS.items()}}
    found = [
        Target(
            f"a shard of {name} over dense, an element: at most {limit}",
            _ratio(shards, name, "dense"),
            limit,
            "x",
        )
        for name, limit in limits.items()
    ]
    text = f"{_SMALL} elements from Python into a given array: at most 3 µs"
    return [*found, Target(text, None if small is None else small.median, 3e-6, "s")]


def _thread_targets(tables: dict[str, Table]) -> list[Target]:
    found = []
    for name, table in tables.items():
        if not name.startswith("threads: "):
            continue
        ours = _ratio(table, "nbrt, two threads", "nbrt, one thread")
        theirs = _ratio(table, "NumPy Philox, two threads", "NumPy Philox, one thread")
        what = f"{name.removeprefix('threads: ')}, two threads over one"
        found.append(Target(f"{what}: at most 0.55 (0.5 is linear)", ours, 0.55, "x"))
        over = None if ours is None or theirs is None else ours / theirs
        found.append(Target(f"{what}, over what NumPy's two reach: at most 1.1", over, 1.1, "x"))
    return found


def fill_on_cuda(report: Report, quick: bool) -> None:
    """Measure float32 draws on the first CUDA device."""
    if not nbrt.is_available("cuda"):
        report.notes.append("Not measured: no CUDA device works here.")
        return
    from benchmarks.random_cuda import contenders

    n = 1 << (24 if quick else 28)
    for name, method in (("uniform", "random"), ("normal", "standard_normal")):
        rows = measure(contenders(method, n), Options(report.options.passes, 0.02))
        table = Table(f"{name} float32, {n} elements", _with_fill(rows), "nbrt", n, 4 * n)
        report.tables.append(table)
        if name == "uniform":
            bandwidth = _ratio(table, "fill", "nbrt")
            text = "uniform float32, share of the bandwidth of bare writes: at least 0.9"
            report.targets.append(Floor(text, bandwidth, 0.9))
        for peer in ("torch", "CuPy", "cuRAND"):
            text = f"{name} float32, times as fast as {peer}: at least 1"
            report.targets.append(Floor(text, _times_as_fast(table, peer), 1.0, "x"))
    report.notes.append(f"Device: {nbrt.get_device_name('cuda:0')}. GB/s counts the result.")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    chosen, rest = parser.parse_known_args()
    if chosen.device == "cuda":
        run("random_cuda", "Random numbers on a CUDA device", fill_on_cuda, rest)
    else:
        run("random", "Random numbers", fill, rest)


if __name__ == "__main__":
    main()
