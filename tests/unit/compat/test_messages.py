"""Errors of compilation and of arguments have the classes and names that the program knows."""

from __future__ import annotations

import pickle
from typing import Any

import numba.core.errors
import numpy as np
import pytest
from numba import cuda
from numba.cuda.core.errors import TypingError, UnsupportedError

import nbrt
from helpers.processes import run_python

pytestmark = pytest.mark.usefixtures("installed")


@pytest.mark.parametrize("space", ["local", "shared"])
def test_arrays_are_named_as_in_the_dialect(space: str) -> None:
    make = getattr(cuda, space).array

    @cuda.jit
    def kernel(x, n):
        mine = make(n, np.float32)
        x[0] = mine[0]

    with pytest.raises(TypingError) as caught:
        kernel[1, 1](np.zeros(1), 3)
    text = str(caught.value)
    assert f"No implementation of function Function(<function {space}.array" in text
    assert ">>> array(int64, " in text
    assert "RequireLiteralValue" in text
    assert "site=" not in text
    assert f"_{space}_array" not in text


def test_number_of_dimensions_must_be_constant() -> None:
    @cuda.jit
    def kernel(x, n):
        x[0] = cuda.grid(n)

    with pytest.raises(TypingError, match=r"takes one constant(?s:.*)RequireLiteralValue"):
        kernel[1, 1](np.zeros(1), 1)


def product(x: Any) -> None:
    x[0] = np.dot(x, x)


def attempt(x: Any) -> None:
    try:
        x[0] = 1
    except ValueError:
        x[0] = 2


@pytest.mark.parametrize(("function", "construct"), [(product, "np.dot"), (attempt, "try")])
@pytest.mark.parametrize("kind", [TypingError, UnsupportedError, numba.core.errors.NumbaError])
def test_refused_constructs_are_errors_of_both_packages(
    function: Any, construct: str, kind: type[Exception]
) -> None:
    text = rf"{construct} does not compile for CUDA"
    with pytest.raises(kind, match=text) as caught:
        cuda.jit(function)[1, 1](np.zeros(1))
    assert isinstance(caught.value, nbrt.errors.UnsupportedConstructError)
    with pytest.raises(nbrt.errors.UnsupportedConstructError, match=text):
        cuda.jit("void(float64[:])")(function)


def test_errors_of_compilation_can_be_pickled() -> None:
    with pytest.raises(nbrt.errors.UnsupportedConstructError) as caught:
        cuda.jit(product)[1, 1](np.zeros(1))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert str(copy) == str(caught.value)


@pytest.mark.parametrize("kind", [TypingError, TypeError, nbrt.errors.CompileError])
def test_a_kernel_must_not_return_a_value(kind: type[Exception]) -> None:
    @cuda.jit
    def kernel(x):
        return x[0]

    with pytest.raises(kind, match=r"CUDA kernel must have void return type\."):
        kernel[1, 1](np.zeros(1))


def test_an_array_of_another_device() -> None:
    result = run_python(
        """
        from nbrt.compat import numba_cuda

        numba_cuda.install()

        import numpy as np
        from numba import cuda

        @cuda.jit
        def kernel(x):
            x[0] = 9

        with cuda.gpus[1]:
            array = cuda.to_device(np.zeros(1))
        try:
            kernel[1, 1](array)
        except ValueError as error:
            assert "nbrt.to" not in str(error)
            assert "cuda.to_device(array.copy_to_host()) while cuda.gpus[0] is" in str(error)
            assert "or launch while cuda.gpus[1] is" in str(error)
        else:
            raise AssertionError("no error")
        copy = cuda.to_device(array.copy_to_host())
        kernel[1, 1](copy)
        assert (copy.copy_to_host()[0], array.copy_to_host()[0]) == (9, 0)
        with cuda.gpus[1]:
            kernel[1, 1](array)
        assert array.copy_to_host()[0] == 9
        """,
        environment={"NBRT_CPU_DEVICES": "2"},
    )
    assert result.returncode == 0, result.stderr
