"""Scripts, functions and notebooks of numba-examples, the scripts with smaller sizes.

`_REMOVED` holds the calls of ``DeviceNDArray.to_host``, which Numba removed, in today's words.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCES = Path(os.environ["NUMBA_CUDA_PROGRAM"])
_REMOVED = {
    "dC.to_host(stream)": "dC.copy_to_host(C, stream)",
    "derror_grid.to_host(stream)": "derror_grid.copy_to_host(error_grid, stream)",
    "d_callResult.to_host(stream)": "d_callResult.copy_to_host(callResultCuda, stream)",
    "d_putResult.to_host(stream)": "d_putResult.copy_to_host(putResultCuda, stream)",
    "        dD.to_host(stream)\n\n": "        dD.copy_to_host(D, stream)\n\n",
    "            dD.to_host(stream)": "            dD.copy_to_host(d, stream)",
}
_NOTEBOOKS = {
    "notebooks/Numba_051_CUDA_Release_Demo.ipynb": {},
    "notebooks/Numba_052_CUDA_Release_Demo.ipynb": {
        "(GB + 1) * (1024 * 1024 * 1024)": "1 << 20",
        "[1024, 1024](big_arr)": "[8, 128](big_arr)",
        "N = 100000": "N = 2000",
        "n_runs = 100": "n_runs = 1",
        "16384": "1024",
    },
    "notebooks/Numba_053_CUDA_Release_Demo.ipynb": {},
    "notebooks/Numba_054_CUDA_Release_Demo.ipynb": {},
}


def _changed(text: str, changes: dict[str, str]) -> str:
    for old, new in {**_REMOVED, **changes}.items():
        text = text.replace(old, new)
    return text


def _script(path: str, changes: dict[str, str]) -> dict[str, Any]:
    """Run a script as main with parts of its text replaced; return its names."""
    file = _SOURCES / path
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(file)}
    sys.path.insert(0, str(file.parent))
    arguments, sys.argv = sys.argv, [str(file)]
    try:
        exec(compile(_changed(file.read_text("utf-8"), changes), str(file), "exec"), names)
    finally:
        sys.path.pop(0)
        sys.argv = arguments
    return names


@pytest.mark.parametrize("name", ["matmul", "matmul_smem"])
def test_matmul(name: str) -> None:
    """Two matrix multiplications, which compare with NumPy themselves."""
    _script(f"legacy/cudajit/{name}.py", {"bpg = 50": "bpg = 3"})


def test_sum() -> None:
    """A sum of arrays, which compares with NumPy itself."""
    _script("legacy/cudajit/sum.py", {})


@pytest.mark.parametrize("name", ["", "-smem", "-improve"])
def test_laplace2d(name: str, same_as_simulator: Callable[..., None]) -> None:
    """Four sweeps of Jacobi's method on 64 x 64 points."""
    text = "    runtime = time.time() - timer"
    changes = {
        "NN = 512": "NN = 64",
        "NM = 512": "NM = 64",
        "iter_max = 1000": "iter_max = 4",
        text: "    globals().update(result=dA.copy_to_host())\n" + text,
    }
    result = _script(f"legacy/laplace2d/laplace2d-numba-cuda{name}.py", changes)["result"]
    assert result[1:-1, 1:-1].sum() > 0
    same_as_simulator(result=result)


def test_legacy_blackscholes() -> None:
    """Option prices, against the NumPy version in the script."""
    text = "    delta = np.abs(callResultNumpy - callResultCuda)\n    L1norm = delta.sum()"
    changes = {"OPT_N = 4000000": "OPT_N = 2000", "iterations = 10": "iterations = 1"}
    changes[text] = "    globals().update(found=callResultCuda, expected=callResultNumpy)\n" + text
    names = _script("legacy/blackscholes/blackscholes_cuda.py", changes)
    np.testing.assert_allclose(names["found"], names["expected"], rtol=1e-8, atol=1e-8)


def test_blackscholes() -> None:
    """Option prices, against the NumPy version beside it."""
    random = np.random.default_rng(1)
    inputs = [random.uniform(low, high, 2000) for low, high in ((5.0, 30), (1, 100), (0.25, 10))]
    folder = "examples/finance/blackscholes"
    found = _module(folder, "blackscholes_cuda").black_scholes_cuda(*inputs, 0.02, 0.3)
    expected = _module(folder, "blackscholes").black_scholes(*inputs, 0.02, 0.3)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


def test_histogram() -> None:
    """A histogram with atomics, against NumPy's."""
    values = np.random.default_rng(1).normal(size=20_000).astype(np.float32)
    module = _module("examples/density_estimation/histogram", "gpu")
    counts, edges = module.numba_gpu_histogram(values, 15)
    expected, expected_edges = np.histogram(values, 15)
    np.testing.assert_allclose(counts, expected, atol=1)  # a value on an edge
    np.testing.assert_allclose(edges, expected_edges, rtol=1e-6)


def test_polynomial() -> None:
    """A ufunc with ``target="cuda"``, on streams."""
    changes = {"N = 1e+8 // 2": "N = 5000", "chunksize = 1e+7": "chunksize = 1000"}
    changes["    if '-verify' in sys.argv[1:]:"] = "    if True:"
    _script("legacy/vectorize/cuda_polynomial.py", changes)


def _code_cells(notebook: str) -> list[str]:
    cells = json.loads((_SOURCES / notebook).read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [text.replace("%timeit ", "") for text in texts if not text.startswith("!")]


@cache
def _names(notebook: str) -> dict[str, Any]:
    return {"__name__": notebook}


@pytest.mark.parametrize(
    ("notebook", "number"),
    [(notebook, n) for notebook in _NOTEBOOKS for n in range(len(_code_cells(notebook)))],
)
def test_notebook(notebook: str, number: int) -> None:
    """A cell of a notebook on the new features of a release, after those before it."""
    text = _changed(_code_cells(notebook)[number], _NOTEBOOKS[notebook])
    code = compile(text, f"{notebook}[{number}]", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = _names(notebook)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def _module(folder: str, name: str) -> Any:
    sys.path.insert(0, str(_SOURCES / folder))
    try:
        sys.modules.pop(name, None)
        return import_module(name)
    finally:
        sys.path.pop(0)
