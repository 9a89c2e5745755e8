# mypy: disable-error-code="no-untyped-def"
"""Lanes: calls that have no form for vectors are made for one lane after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda, float64

from helpers.lowerings import agree
from nbrt.backends.cpu.simt.lanes import instructions

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("serial", [False, True])
def test_a_class_of_floats_in_a_branch(serial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM asks for classes of floats by a call that gives truth values: in step, or in turn."""
    if serial:
        fewer = instructions._ELEMENTWISE - {"is.fpclass"}
        monkeypatch.setattr(instructions, "_ELEMENTWISE", fewer)

    def kernel(o, x):
        s = cuda.shared.array(128, float64)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        v = s[99 - t]
        if t % 3 != 1:
            odd = v - v
            o[t] = 1 if odd == odd and v > 0 and v < math.inf else 2

    x = RNG.normal(size=100)
    x[::7] = math.inf
    x[3::11] = math.nan
    x[5::13] = 0.0
    agree(kernel, 1, 100, np.zeros(100, np.int64), x)
