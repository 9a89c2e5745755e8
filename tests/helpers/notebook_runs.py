"""Runs the code of a notebook or a page on real and on fake devices, in one process.

`print_runs` prints the results as JSON, for a new process.

The code is changed in three ways, alike in all runs. Assertions are evaluated but do not fail, as
fake arrays have no values. What ``.tolist()`` returns is recorded in the real run, and is the same
in the others, since programs make sizes of it. For GPUs, the names of CPU devices become theirs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["print_runs", "run_notebook"]

_CPU = re.compile(r"^cpu(?=:|$)")
_SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.copy_location(ast.Expr(self.visit(node.test)), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _CPU.search(node.value):
            return ast.copy_location(ast.Constant(_CPU.sub(self._kind, node.value)), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "tolist"):
            return node
        place = ast.Constant(f"{node.lineno}:{node.col_offset}")
        thunk = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node)
        tape = ast.Name("__tape__", ast.Load())
        return ast.fix_missing_locations(
            ast.copy_location(ast.Call(tape, [place, thunk], []), node)
        )


class _Tape:
    """The values of a real run, by cell, place in its code, and rank."""

    def __init__(self) -> None:
        self.cell = 0
        self.is_recording = True
        self._values: dict[tuple[int, str, int], list[Any]] = {}
        self._read: dict[tuple[int, str, int], int] = {}

    def __call__(self, place: str, thunk: Callable[[], Any]) -> Any:
        import nbrt.distributed as dist

        key = self.cell, place, dist.get_rank()
        value = thunk()
        known = self._values.setdefault(key, [])
        if self.is_recording:
            known.append(value)
            return value
        number = self._read.get(key, 0)
        self._read[key] = number + 1
        return known[number]

    def rewind(self) -> None:
        """Return the recorded values from now on, from the first."""
        self.is_recording = False
        self._read.clear()


def _cells(path: Path) -> list[str]:
    if path.suffix == ".md":
        return _SNIPPET.findall(path.read_text("utf-8"))
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _run_cells(cells: list[str], kind: str, tape: _Tape) -> list[str]:
    """Run cells; return the error of each cell, empty if it ran."""
    import linecache

    space: dict[str, Any] = {"__name__": "__main__", "__tape__": tape}
    errors = []
    for number, source in enumerate(cells):
        tape.cell = number
        tree = ast.fix_missing_locations(_Rewriter(kind).visit(ast.parse(source)))
        name = f"<cell {number} on {kind}>"
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(tree, name, "exec"), space)
        except Exception as error:  # noqa: BLE001  # of the notebook, which the caller judges
            errors.append(f"{type(error).__name__}: {error}")
        else:
            errors.append("")
    return errors


def _peaks(kind: str) -> list[tuple[int, int]]:
    """Return the peaks of allocated and reserved bytes of each device."""
    import nbrt

    found = []
    for index in range(nbrt.device_count(kind)):
        stats = nbrt.memory.memory_stats(f"{kind}:{index}")
        names = "allocated_bytes.all.peak", "reserved_bytes.all.peak"
        found.append(tuple(stats.get(name, 0) for name in names))
    return found  # type: ignore[return-value]


class _Waiting:
    """Waits for each command: queued work keeps its arguments for a time that varies."""

    def before(self, stream: Any, command: Any, /) -> None:
        """Do nothing."""

    def after(self, stream: Any, command: Any, result: object, /) -> None:
        """Wait."""
        if stream.capture is None:
            stream.synchronize()


def run_notebook(path: Path) -> dict[str, Any]:
    """Run a notebook on CPU devices, on fake ones, and on 8 fake GPUs; compare nothing."""
    import numpy as np

    import nbrt
    from nbrt.runtime.commands import install_hook

    for name in dir(np.testing):
        if name.startswith("assert_"):
            setattr(np.testing, name, lambda *args, **options: None)
    cells, tape = _cells(path), _Tape()
    here = nbrt.current_device()
    results: dict[str, Any] = {"cells": len(cells)}
    with install_hook(_Waiting(), before=(), after=["launch", "copy", "fill", "draw"], events=()):
        results["real"] = _run_cells(cells, "cpu", tape)
    results["real_peaks"] = _peaks("cpu")
    tape.rewind()
    with nbrt.fake("cpu", devices=nbrt.device_count("cpu"), reads="zeros") as plan:
        results["fake"] = _run_cells(cells, "cpu", tape)
        results["fake_peaks"] = _peaks("cpu")
    results["plan_peak"] = plan.peak
    nbrt.set_device(here)
    tape.rewind()
    with nbrt.fake("cuda", gpu="H100", devices=8, reads="zeros") as plan:
        results["gpu"] = _run_cells(cells, "cuda", tape)
    results["gpu_peak"] = plan.peak
    return results


def print_runs(path: str) -> None:
    """Run a notebook in an empty folder, and print the results as the last line."""
    mpl.use("Agg")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        print(json.dumps(run_notebook(Path(path))))
