"""A draw as a user names it leads to the right kernel, arguments and offset increment."""

from __future__ import annotations

import numpy as np
import pytest

from nbrt.random.generator import _words_per_element
from nbrt.random.state import words_consumed
from nbrt_kernels.random.requests import draw_request


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters", "kernel"),
    [
        ("uniform", "float32", (0.0, 1.0), "fill_uniform_f32"),
        ("uniform", "float64", (-1.0, 1.0), "fill_uniform_f64"),
        ("normal", "float32", (0.0, 1.0), "fill_normal_f32"),
        ("normal", "float64", (1.0, 2.0), "fill_normal_f64"),
        ("integers", "int8", (-3, 4), "fill_integers_32"),
        ("integers", "int64", (0, 2**32), "fill_integers_32"),
        ("integers", "int64", (0, 2**32 + 1), "fill_integers_64"),
    ],
)
@pytest.mark.parametrize("n", [1, 3, 4, 5, 1000])
def test_kernel_and_increment(
    distribution: str, dtype: str, parameters: tuple[float, float], kernel: str, n: int
) -> None:
    spec, arguments = draw_request(distribution, dtype, parameters)
    assert spec.kernel.__name__ == kernel
    assert len(arguments) == len(spec.parameters)
    words = _words_per_element(np.dtype(dtype), parameters)
    assert spec.words_per_element == words
    assert words_consumed(n, words) == spec.increment(n)


def test_unknown_draw_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"expected one of the draws .*uniform of float32"):
        draw_request("uniforn", "float32", (0.0, 1.0))


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="low <= high"):
        draw_request("uniform", "float32", (1.0, 0.0))
