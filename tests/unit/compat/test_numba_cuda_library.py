"""Kernels of numba-cuda's own library in checked mode and interpreted."""

from __future__ import annotations

import pytest

from helpers.processes import run_python

REDUCE = """
    from nbrt.compat import numba_cuda

    numba_cuda.install()

    import numpy as np
    from numba import cuda

    add = cuda.reduce(lambda a, b: a + b)
    for size in (1, 70, 128, 300):
        x = np.arange(size) % 13
        assert add(x) == x.sum(), size
"""


@pytest.mark.parametrize("mode", ["NBRT_CHECK", "NBRT_INTERPRET"])
def test_reduce(mode: str) -> None:
    result = run_python(REDUCE, environment={mode: "1"})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["__main__", "numba_cuda_examples", "numba.cuda.tests.cases"])
def test_kernels_of_the_program_are_checked(module: str) -> None:
    code = f"""{REDUCE}
    from nbrt.errors import KernelCheckError

    def shift(x):
        i = cuda.grid(1)
        x[i] = x[i + 1]

    shift.__module__ = {module!r}
    try:
        cuda.jit(shift)[1, 4](np.zeros(4))
    except KernelCheckError as error:
        assert "out_of_bounds" in {{report.kind for report in error.reports}}
    else:
        raise AssertionError("no fault found")
    """
    result = run_python(code, environment={"NBRT_CHECK": "1"})
    assert result.returncode == 0, result.stderr
