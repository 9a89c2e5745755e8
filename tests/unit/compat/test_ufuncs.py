"""``vectorize``, ``guvectorize`` and ``reduce`` for the CUDA target, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, guvectorize, vectorize

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(scope="module")
def difference(installed: None) -> Any:  # the fixture that the decorator needs
    @vectorize(["float32(float32, float32)", "float64(float64, float64)"], target="cuda")
    def difference(a: Any, b: Any) -> Any:
        return max(a - b, 0)

    return difference


def expected_of(a: Any, b: Any) -> Any:
    return np.maximum(a - b, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shapes", [((7,), (7,)), ((3, 1), (1, 4)), ((2, 3, 4), (4,))], ids=str)
def test_a_ufunc_broadcasts_as_in_numpy(difference: Any, shapes: Any, dtype: Any) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.random(shape).astype(dtype) for shape in shapes)
    found = difference(a, b)
    np.testing.assert_array_equal(found, expected_of(a, b))
    assert found.dtype == dtype
    on_device = difference(*map(cuda.to_device, (a, b)))
    np.testing.assert_array_equal(on_device.copy_to_host(), expected_of(a, b))


def test_a_ufunc_takes_device_arrays_out_and_stream(difference: Any) -> None:
    a, b = np.arange(50.0), np.full(50, 20.0)
    stream = cuda.stream()
    d_a, d_b = cuda.to_device(a, stream=stream), cuda.to_device(b, stream=stream)
    out = cuda.device_array(50)
    difference(d_a, d_b, out=out, stream=stream)
    host = out.copy_to_host(stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(host, expected_of(a, b))
    assert isinstance(difference(d_a, d_b), type(d_a))
    np.testing.assert_array_equal(difference(a, 20), expected_of(a, 20))


def test_a_ufunc_reduces() -> None:
    @vectorize(["int64(int64, int64)"], target="cuda")
    def add(a: Any, b: Any) -> Any:
        return a + b

    values = np.arange(1, 1001)
    assert add.reduce(values) == values.sum()
    assert add.reduce(cuda.to_device(values)) == values.sum()
    assert add(values, 1).dtype == np.int64


def test_a_generalized_ufunc_loops_over_outer_dimensions() -> None:
    @guvectorize(
        ["void(float32[:,:], float32[:,:], float32[:,:])"], "(m,n),(n,p)->(m,p)", target="cuda"
    )
    def product(a: Any, b: Any, c: Any) -> None:
        for i in range(a.shape[0]):
            for j in range(b.shape[1]):
                c[i, j] = 0
                for k in range(a.shape[1]):
                    c[i, j] += a[i, k] * b[k, j]

    generator = np.random.default_rng(1)
    a = generator.integers(0, 9, (5, 3, 4)).astype(np.float32)
    b = generator.integers(0, 9, (5, 4, 2)).astype(np.float32)
    np.testing.assert_array_equal(product(a, b), a @ b)
    out = cuda.device_array((5, 3, 2), np.float32)
    product(cuda.to_device(a), cuda.to_device(b), out=out)
    np.testing.assert_array_equal(out.copy_to_host(), a @ b)


@pytest.mark.parametrize("count", [1, 5, 1024, 3001])
def test_reduce_adds_as_numpy(count: int) -> None:
    add = cuda.reduce(lambda a, b: a + b)
    values = np.arange(count, dtype=np.float64)
    assert add(values) == values.sum()
    assert add(cuda.to_device(values), init=5.0) == values.sum() + 5
    result = cuda.device_array(1)
    add(cuda.to_device(values), res=result)
    assert result.copy_to_host()[0] == values.sum()
