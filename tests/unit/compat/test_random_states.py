"""``cuda.random`` in kernels, compared with the same functions that Numba compiles for the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import random

pytestmark = pytest.mark.usefixtures("installed")

_THREADS, _DRAWS = 40, 5
_KINDS = [f"{kind}_float{bits}" for kind in ("uniform", "normal") for bits in (32, 64)]


def states_of_host(count: int, seed: int, start: int) -> Any:
    states = np.empty(count, random.xoroshiro128p_dtype)
    random.init_xoroshiro128p_states_cpu(states, seed, start)
    return states


@pytest.mark.parametrize("stream", [False, True])
def test_states_are_those_of_the_host(stream: bool) -> None:
    queue = cuda.stream() if stream else 0
    states = random.create_xoroshiro128p_states(1000, 7, subsequence_start=3, stream=queue)
    expected = states_of_host(1000, 7, 3)
    assert states.copy_to_host().tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", _KINDS)
def test_draws_are_those_of_the_host(kind: str) -> None:
    draw = getattr(random, f"xoroshiro128p_{kind}")

    @cuda.jit
    def kernel(states: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < out.shape[0]:
            for j in range(out.shape[1]):
                out[i, j] = draw(states, i)

    states = random.create_xoroshiro128p_states(_THREADS, seed=11)
    found = np.zeros((_THREADS, _DRAWS), kind.partition("_")[2])
    kernel[2, 32](states, found)
    on_host = states_of_host(_THREADS, 11, 0)
    expected = np.zeros_like(found)
    for i in range(_THREADS):
        for j in range(_DRAWS):
            expected[i, j] = draw(on_host, i)
    assert states.copy_to_host().tobytes() == on_host.tobytes()
    if kind.startswith("uniform"):
        assert found.tobytes() == expected.tobytes()
    else:  # log and cos of the host's library
        np.testing.assert_array_max_ulp(found, expected, maxulp=4)
