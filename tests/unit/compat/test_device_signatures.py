"""Device functions of ``numba.cuda`` with explicit signatures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

pytestmark = pytest.mark.usefixtures("installed")


@pytest.mark.parametrize("signature", ["int64(int64)", "(int64,)"])
def test_function_that_calls_itself_is_compiled_before_its_name_is_bound(signature: Any) -> None:
    @cuda.jit(signature, device=True)
    def fibonacci(n):
        if n < 2:
            return n
        return fibonacci(n - 1) + fibonacci(n - 2)

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        x[i] = fibonacci(i)

    x = np.zeros(10, np.int64)
    kernel[1, 10](x)
    assert x.tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


def test_undefined_name_is_an_error_of_typing() -> None:
    from numba.cuda.core.errors import TypingError

    with pytest.raises(TypingError, match="not_defined"):

        @cuda.jit("int64(int64)", device=True)
        def function(n):
            return not_defined(n)  # noqa: F821  # the point of the test
