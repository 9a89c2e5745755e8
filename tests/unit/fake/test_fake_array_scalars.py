"""Fake arrays in place of NumPy's scalars, and reads of them on fake CPU devices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbrt
from helpers.fake_arrays import SampleMemory
from nbrt.errors import FakeReadError, NotSupportedError

_HERE = Path(__file__).name

PROGRAMS = [
    "n = m.astype(int).sum(); n /= 2",
    "n = m.max(); n //= 1; n **= 2",
    "n = (m > 0).any(); n += 1",
    "n = m.astype(int)[0, 0]; n /= 2",
    "n = np.vdot(m, m).astype('f8'); n -= 1j",
    "n = round(m.sum(), 3)",
    "n = round(m.sum())",
    "n = math.floor(m.sum()), math.ceil(m.sum()), math.trunc(float(m.sum()))",
    "n = list({m[0, 0]: 1}.values())",
    "n = m > 0; n[0, 0] += 1",
    "n = hash(m.sum())",
]


@pytest.mark.parametrize("code", PROGRAMS)
def test_programs_with_scalars_run_as_with_numpy(code: str) -> None:
    real: dict[str, Any] = {"np": np, "math": math, "m": np.zeros((3, 4), "f4")}
    exec(code, real)
    memory = SampleMemory("cpu", reads="zeros")
    fake: dict[str, Any] = {"np": np, "math": math, "m": memory.empty((3, 4), "f4")}
    exec(code, fake)
    if hasattr(real["n"], "dtype"):
        assert (fake["n"].shape, fake["n"].dtype) == (real["n"].shape, real["n"].dtype)
    else:
        assert fake["n"] == real["n"]


def test_arrays_without_axes_that_numpy_returns_as_arrays_stay_arrays() -> None:
    memory = SampleMemory("cpu", reads="zeros")
    z, total = memory.empty((), "i8"), memory.empty((), "i8")
    for each in (z, np.zeros_like(z), z.copy(), z[...], np.add(z, 1, out=total)):
        with pytest.raises(TypeError, match="Cannot cast"):
            each /= 2
        with pytest.raises(TypeError, match="unhashable"):
            hash(each)
        with pytest.raises(TypeError, match="expected a scalar for round"):
            round(each)  # type: ignore[call-overload]


def test_results_on_a_fake_gpu_stay_arrays() -> None:
    total = SampleMemory("cuda:0", reads="zeros").empty((3, 4), "i8").sum()
    with pytest.raises(TypeError, match="Cannot cast"):
        total /= 2


@pytest.mark.parametrize(
    ("name", "instead"), [("flat", "ravel"), ("data", "address"), ("ctypes", "address")]
)
def test_attributes_of_elements_name_the_next_step(name: str, instead: str) -> None:
    array = SampleMemory("cpu").empty((3, 4))
    with pytest.raises(NotSupportedError, match=f"got {name} of FakeArray.*{instead}"):
        getattr(array, name)
    assert not hasattr(array, name)


def test_reads_inside_of_numpy_name_the_line_of_the_program() -> None:
    with nbrt.fake("cpu") as plan:
        array = nbrt.zeros(2)
        with pytest.raises(FakeReadError, match=_HERE):
            nbrt.full((3,), array.sum())
        with pytest.raises(FakeReadError, match=_HERE):
            np.testing.assert_allclose(array, 0)
        host = np.zeros(3)
        with pytest.raises(ValueError, match="sequence") as caught:
            host[0] = array.sum()
        assert isinstance(caught.value.__cause__, FakeReadError)
    assert all(_HERE in line for line in plan.reads)


def test_a_function_for_reads_that_returns_nothing_is_named() -> None:
    text = f"expected reads to return.*got None.*{_HERE}"
    for dtype in ("f4", "i8"):
        with nbrt.fake("cpu", reads=lambda array: None), pytest.raises(FakeReadError, match=text):
            float(nbrt.zeros(2, dtype=dtype).sum())
