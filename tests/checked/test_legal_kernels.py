"""Kernels that are right, however odd they look, raise no alarm and compute what they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from checked import legal_barriers, legal_memory, legal_order, legal_plain
from checked.cases import Suite

if TYPE_CHECKING:
    from checked.cases import Case

CASES = [
    *legal_barriers.suite.cases,
    *legal_plain.suite.cases,
    *legal_memory.suite.cases,
    *legal_order.suite.cases,
]


def test_there_are_enough_of_them() -> None:
    assert len({case.id for case in CASES}) == len(CASES) >= 60
    assert isinstance(legal_plain.suite, Suite)


@pytest.mark.parametrize("case", CASES)
def test_there_is_no_false_alarm(case: Case) -> None:
    before = case.args()
    reports, after = case.run(seed=3)
    assert not reports, "\n".join(map(str, reports))
    if case.expected is not None:
        np.testing.assert_allclose(after[0], case.expected(*before), rtol=1e-6)
