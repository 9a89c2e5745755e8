from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from helpers.gpu_draws import is_compiled_for_gpus
from nbrt.testing.draws import DrawCase, draw_cases

if TYPE_CHECKING:
    from nbrt.typing import HostArray

pytestmark = pytest.mark.gpu

SEED = 0x1234_5678_9ABC_DEF0
SIZES = (1, 5, 1023, 1025, 100_003)
# torch's kernels use the GPU's own approximations there; see docs/guide/torch_layout.md.
EXACT = [case for case in draw_cases() if case.is_exact and is_compiled_for_gpus(case)]


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_bits_equal_those_of_the_cpu(case: DrawCase) -> None:
    for size in SIZES:
        drawn = [case.draw(SEED, size, place, 28).tobytes() for place in ("cpu:0", "cuda:0")]
        assert drawn[0] == drawn[1]


@pytest.mark.multi_gpu
def test_parameters_on_a_device_that_is_not_current(second_device: nbrt.Device) -> None:
    """They are checked and converted by CuPy's functions, which use its current device."""

    def drawn(device: nbrt.Device) -> list[HostArray]:
        generator = nbrt.Generator(5, device)
        loc = nbrt.to(np.arange(7, dtype=np.float64), device)
        alpha = nbrt.to(np.array([1.0, 2.0, 3.0]), device)
        made = [
            generator.normal(loc, 0.5, dtype="float32"),
            generator.dirichlet(alpha, 4),
            nbrt.random.randperm(50, dtype="int8", generator=generator),
            generator.choice(alpha, 20),
        ]
        return [nbrt.to_host(each) for each in made]

    with nbrt.device("cuda:0"):
        for here, there in zip(drawn(nbrt.Device("cpu", 0)), drawn(second_device), strict=True):
            assert here.tobytes() == there.tobytes()
