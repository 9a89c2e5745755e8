from __future__ import annotations

import numpy as np
import pytest

import nbrt
from nbrt_kernels.random.fill import DRAWS

pytestmark = pytest.mark.gpu

SIZES = (1, 2, 3, 4, 5, 255, 1023, 1024, 1025, 100_003)


PARAMETERS = {
    "bits": (),
    "uniform": (-1.5, 3.25),
    "normal": (0.5, 2.0),
    "integers": (0, 100),
    "integers_wide": (0, 2**40 + 3),
}


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
            # "integers" chooses the wide kernel by its range.
            asked = distribution.removesuffix("_wide")
            parameters = PARAMETERS[distribution]
            interface.draw(queue, out, asked, 0x1234_5678_9ABC_DEF0, 4 * 7, parameters)
            results.append(nbrt.to_host(out).view(np.uint8))
        np.testing.assert_array_equal(*results)


def test_generators_agree() -> None:
    drawn = [
        nbrt.to_host(nbrt.Generator(7, device).standard_normal(1001))
        for device in ("cpu:0", "cuda:0")
    ]
    assert drawn[0].tobytes() == drawn[1].tobytes()
