"""``%nbrt_warm`` in IPython."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.processes import run_python

if TYPE_CHECKING:
    from pathlib import Path

CELLS = [
    "%load_ext nbrt",
    """
import nbrt, numpy as np
from numba import cuda

@nbrt.kernel
def shift(x, step):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += step

def launch(x, name=""):
    shift.forall(x.size)(x, 1)

a = np.ones(6)
""",
    "result = %nbrt_warm --workers 0 launch(a, 'two words')",
    "print([(row.kernel, row.source, row.site) for row in result])",
    """%%nbrt_warm --workers 0
b = a * 2
for _ in range(2):
    launch(b[::2])
""",
    "print([(row.kernel, row.source) for row in _])",
    "print(a.sum(), 'b' in dir())",
]

PROGRAM = f"""
from IPython.core.interactiveshell import InteractiveShell
from nbrt.errors import ArgumentError

shell = InteractiveShell.instance()
for cell in {CELLS!r}:
    shell.run_cell(cell, store_history=True).raise_error()
for wrong in ("--workers many launch(a)", "--bad launch(a)"):
    shell.run_cell("%nbrt_warm " + wrong)
"""


def test_lines_and_cells(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    settings = {
        "NBRT_CACHE_DIR": str(tmp_path / "cache"),
        "NBRT_DEVICE": "cpu",
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    done = run_python(PROGRAM, environment=settings)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Out[")]
    first, second, *rest = [line for line in lines if line]
    assert first.startswith("[('shift', 'compiled', 'Cell [2]:")
    assert second == "[('shift', 'compiled')]"
    assert rest[0] == "6.0 False"
    assert "expected a number for --workers, got 'many'" in done.stdout
    assert "option --bad not recognized" in done.stderr
