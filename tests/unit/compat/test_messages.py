"""Messages of errors of compilation name what is in the program."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda
from numba.cuda.core.errors import TypingError

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
