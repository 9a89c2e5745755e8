"""The kernels of the benchmark of compilations: equal work in the forms of all systems."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt import config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
SIZE = 6
N_KERNELS = 40


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("benchmarks.compile_kernels")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def function_of(kernels: ModuleType, form: str, name: str, body: Any, dtype: str) -> Any:
    scope: dict[str, Any] = {}
    exec(kernels.source(form, name, body, dtype), scope)
    return scope[name]


def arguments_of(body: Any, dtype: str) -> list[Any]:
    generator = np.random.default_rng(3)
    found: list[Any] = []
    for _, kind in body.kinds():
        element = np.dtype("int32" if kind[-1] == "i" else dtype)
        if len(kind) == 1:
            found.append(element.type(5 if element.kind == "i" else 0.4))
        elif element.kind == "i":  # offsets of rows, or columns
            found.append(np.resize(np.arange(SIZE + 1, dtype=element), (SIZE + 1,) * int(kind[0])))
        else:
            found.append(generator.random((SIZE,) * int(kind[0])).astype(element))
    return found


def test_kernels_are_forty_of_different_names(kernels: ModuleType) -> None:
    assert len({name for name, _, _ in kernels.FORTY}) == len(kernels.FORTY) == N_KERNELS


def test_forms_compute_the_same(kernels: ModuleType) -> None:
    for kernel in kernels.FORTY:
        _, body, dtype = kernel
        looped, launched = arguments_of(body, dtype), arguments_of(body, dtype)
        if looped[0].dtype.kind == "i":  # the output may have no more elements than the inputs
            looped[0], launched[0] = (np.zeros((SIZE,) * body.indices, np.int32) for _ in range(2))
        untouched = arguments_of(body, dtype)
        function_of(kernels, "njit", *kernel)(*looped)
        with config.override(interpret=True), nbrt.device("cpu"):
            launch = nbrt.kernel(function_of(kernels, "cuda", *kernel))
            launch[(2, 2)[: body.indices], (4, 4)[: body.indices]](*launched)
            nbrt.synchronize()
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        for mine, theirs in zip(looped, launched, strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=tolerance, err_msg=kernel[0])
        assert any(
            np.shape(mine) != np.shape(before) or np.any(mine != before)
            for mine, before in zip(looped, untouched, strict=True)
        ), kernel[0]


def test_signatures_name_the_parameters_of_the_launch(kernels: ModuleType) -> None:
    _, body, dtype = next(each for each in kernels.FORTY if each[0] == "spmv_float64")
    assert body.signature(dtype) == (
        "void(float64[::1], float64[::1], int32[::1], int32[::1], float64[::1])"
    )


def test_forms_of_warp_annotate_each_parameter(kernels: ModuleType) -> None:
    for kernel in kernels.FORTY:
        text = kernels.source("warp", *kernel)
        compile(text, kernel[0], "exec")
        header = next(line for line in text.splitlines() if line.startswith("def "))
        assert header.count(": wp.") == len(kernel[1].kinds())
