"""The cost of ``import nbrt`` over starting Python: target at most 30 ms."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.environment import ROOT, version_of
from benchmarks.harness import Contender, Options, absent, each, measure
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_PEERS = {
    "numpy": "numpy",
    "numba": "numba",
    "warp": "warp-lang",
    "torch": "torch",
    "taichi": "taichi",
    "cupy": "cupy",
}


def _start(statement: str) -> Callable[[], object]:
    command = [sys.executable, "-c", statement]
    return lambda: subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def fill(report: Report, quick: bool) -> None:
    bare = Contender("bare Python", each(_start("pass")))
    nbrt = Contender("nbrt", each(_start("import nbrt")))
    pair = measure([bare, nbrt], Options(5 if quick else 31, sample_seconds=0.0))
    report.targets.append(
        Target(
            "import nbrt over bare Python: at most 30 ms", pair[1].excess_over(pair[0]), 30e-3, "s"
        )
    )
    report.tables.append(Table("A new process that imports nbrt", pair, "bare Python"))
    contenders = [
        bare,
        Contender("nbrt, first guard", each(_start("import nbrt; nbrt.device('cpu')"))),
        Contender("nbrt, first array", each(_start("import nbrt; nbrt.empty(1, device='cpu')"))),
    ]
    for module, package in _PEERS.items():
        if version_of(package) is None:
            contenders.append(absent(module, "not installed"))
        elif not quick or module == "numpy":
            contenders.append(Contender(module, each(_start(f"import {module}"))))
        else:
            contenders.append(absent(module, "left out of quick runs"))
    rows = measure(contenders, Options(3 if quick else 5, sample_seconds=0.0))
    report.tables.append(Table("A new process that runs one statement", rows, "bare Python"))


if __name__ == "__main__":
    run("import_time", "Import time", fill)
