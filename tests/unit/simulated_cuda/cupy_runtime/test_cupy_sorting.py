"""CuPy's sorting functions on the simulated driver, compared with NumPy's."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    generator = np.random.default_rng(7)
    array = generator.integers(0, 9, shape).astype(dtype)
    if np.dtype(dtype).kind in "fc":
        array[..., 2] = np.nan
        array[..., 3] = -np.inf
    return array


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(40,), (5, 30)])
def test_sorts_as_numpy(cupy: Any, dtype: str, shape: tuple[int, ...]) -> None:
    array = values(dtype, shape)
    device_array = cupy.asarray(array)
    np.testing.assert_array_equal(cupy.sort(device_array).get(), np.sort(array, kind="stable"))
    order = cupy.argsort(device_array).get()
    np.testing.assert_array_equal(order, np.argsort(array, kind="stable"))
    if array.ndim == 2:
        np.testing.assert_array_equal(cupy.lexsort(device_array).get(), np.lexsort(array))


def test_dtypes_without_a_sort(cupy: Any) -> None:
    from cupy.cuda import thrust

    with pytest.raises(NotImplementedError, match="not supported"):
        thrust.sort(np.dtype("V4"), 0, 0, (2,))
    with pytest.raises(TypeError, match="not supported"):
        thrust.lexsort(np.dtype("V4"), 0, 0, 1, 2)


def test_sort_is_ordered_by_its_stream(cupy: Any) -> None:
    opened, array = threading.Event(), cupy.zeros(4, np.int64)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.launch_host_func(lambda _: opened.wait(), None)
        array.set(np.array([3, 1, 2, 0]), stream=stream)
        array.sort()
        assert not stream.done
        opened.set()
        stream.synchronize()
    assert array.get().tolist() == [0, 1, 2, 3]


def test_sort_within_a_graph(cupy: Any) -> None:
    array = cupy.asarray(np.array([3, 1, 2, 0]))
    array.sort()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        array.sort()
        graph = stream.end_capture()
        for given in ([4, 3, 2, 1], [9, 7, 8, 6]):
            array.set(np.array(given), stream=stream)
            graph.launch(stream)
            assert array.get(stream=stream).tolist() == sorted(given)
