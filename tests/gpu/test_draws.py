from __future__ import annotations

import pytest

from nbrt.testing.draws import DrawCase, draw_cases

pytestmark = pytest.mark.gpu

SEED = 0x1234_5678_9ABC_DEF0
SIZES = (1, 5, 1023, 1025, 100_003)
# torch's kernels use the GPU's own approximations there; see docs/guide/torch_layout.md.
EXACT = [case for case in draw_cases() if case.is_exact]


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_bits_equal_those_of_the_cpu(case: DrawCase) -> None:
    for size in SIZES:
        drawn = [case.draw(SEED, size, place, 28).tobytes() for place in ("cpu:0", "cuda:0")]
        assert drawn[0] == drawn[1]
