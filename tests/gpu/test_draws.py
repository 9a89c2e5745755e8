from __future__ import annotations

import numpy as np
import pytest

import nbrt
from nbrt_kernels.random import integer_parameters, normal_parameters, uniform_parameters
from nbrt_kernels.random.fill import DRAWS

pytestmark = pytest.mark.gpu

SIZES = (1, 2, 3, 4, 5, 255, 1023, 1024, 1025, 100_003)


def parameters_of(distribution: str, dtype: str) -> tuple[object, ...]:
    if distribution == "uniform":
        return uniform_parameters(-1.5, 3.25, dtype)
    if distribution == "normal":
        return normal_parameters(0.5, 2.0, dtype)
    if distribution == "integers":
        return integer_parameters(0, 100, dtype)[1]
    if distribution == "integers_wide":
        return integer_parameters(0, 2**40 + 3, dtype)[1]
    return ()


@pytest.mark.parametrize("kind", DRAWS, ids=" ".join)
def test_bits_equal_those_of_the_cpu(kind: tuple[str, str]) -> None:
    distribution, dtype = kind
    for size in SIZES:
        results = []
        for device in ("cpu:0", "cuda:0"):
            interface = nbrt.get_interface_for_device(device)
            interface.lazy.ensure()
            out = nbrt.empty(size, dtype, device=device)
            queue = nbrt.current_stream(device).queue
            parameters = parameters_of(distribution, dtype)
            interface.draw(queue, out, distribution, 0x1234_5678_9ABC_DEF0, 4 * 7, parameters)
            results.append(nbrt.to_host(out).view(np.uint8))
        np.testing.assert_array_equal(*results)


def test_generators_agree() -> None:
    drawn = [
        nbrt.to_host(nbrt.Generator(7, device).standard_normal(1001))
        for device in ("cpu:0", "cuda:0")
    ]
    assert drawn[0].tobytes() == drawn[1].tobytes()
