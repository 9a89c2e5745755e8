"""Random fills of 2**24 float32: nbrt's Philox beside NumPy's and torch's generators."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

import nbrt
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, absent, each, measure
from benchmarks.peers import find
from benchmarks.report import Report, Table, run

if TYPE_CHECKING:
    from collections.abc import Callable

_N = 1 << 24
_QUICK_N = 1 << 20


def worker(cores: int, quick: bool) -> dict[str, list[Measurement]]:
    """Measure in this process, which is pinned already."""
    n = _QUICK_N if quick else _N
    options = Options(passes=5, sample_seconds=0.0)
    return {
        "uniform": measure(_uniform(n, cores), options),
        "normal": measure(_normal(n, cores), options),
        "integers": measure(_integers(n, cores), options),
    }


def _row(name: str, call: Callable[[], object], note: str = "") -> Contender:
    return Contender(name, each(call), note=note)


def _numpy(name: str, method: str, n: int) -> Contender:
    generator = np.random.Generator(getattr(np.random, name)(1))
    out = np.zeros(n, np.float32)
    draw = getattr(generator, method)
    return _row(f"NumPy {name}", lambda: draw(n, np.float32, out), "one thread")


def _uniform(n: int, cores: int) -> list[Contender]:
    generator = nbrt.Generator(1, device="cpu:0")
    out = nbrt.empty(n, device="cpu:0")
    rows = [
        _row("nbrt", lambda: generator.random(n, np.float32, out), "Philox4x32-10, into out"),
        _numpy("Philox", "random", n),
        _numpy("PCG64", "random", n),
        _numpy("SFC64", "random", n),
    ]
    torch, reason = find("torch")
    if torch is None:
        return [*rows, absent("torch", reason)]
    torch.set_num_threads(cores)
    tensor = torch.zeros(n)
    return [*rows, _row("torch", tensor.uniform_, "mt19937")]


def _normal(n: int, cores: int) -> list[Contender]:
    generator = nbrt.Generator(1, device="cpu:0")
    out = nbrt.empty(n, device="cpu:0")
    rows = [
        _row("nbrt", lambda: generator.standard_normal(n, np.float32, out), "Box-Muller"),
        _numpy("Philox", "standard_normal", n),
        _numpy("PCG64", "standard_normal", n),
    ]
    torch, reason = find("torch")
    if torch is None:
        return [*rows, absent("torch", reason)]
    tensor = torch.zeros(n)
    return [*rows, _row("torch", tensor.normal_, "Box-Muller, mt19937")]


def _integers(n: int, cores: int) -> list[Contender]:
    generator = nbrt.Generator(1, device="cpu:0")
    out = nbrt.empty(n, np.int32, device="cpu:0")
    numpy = np.random.Generator(np.random.Philox(1))
    rows = [
        _row("nbrt", lambda: generator.integers(0, 1000, n, np.int32, out=out), "[0, 1000)"),
        _row("NumPy Philox", lambda: numpy.integers(0, 1000, n, np.int32), "allocates"),
    ]
    torch, reason = find("torch")
    if torch is None:
        return [*rows, absent("torch", reason)]
    tensor = torch.zeros(n, dtype=torch.int32)
    return [*rows, _row("torch", lambda: tensor.random_(0, 1000), "mt19937")]


def fill(report: Report, quick: bool) -> None:
    n = _QUICK_N if quick else _N
    flags = ["--quick"] if quick else []
    for cores in (1,) if quick else (1, 2):
        if cores > len(os.sched_getaffinity(0)):
            report.notes.append("Two threads were not measured: the process may use one core.")
            break
        found = run_pinned("benchmarks.random_draws", cores, *flags)
        for draw, rows in found.items():
            kind = "int32" if draw == "integers" else "float32"
            heading = f"{draw}, {n} {kind}, {cores} thread{'s' * (cores > 1)}"
            measured = [Measurement.from_json(row) for row in rows]
            report.tables.append(Table(heading, measured, "nbrt", items=n, nbytes=4 * n))
    report.notes.append("GB/s counts the bytes of the result.")


if __name__ == "__main__":
    run("random_draws", "Random draws", fill)
