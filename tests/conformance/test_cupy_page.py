"""The sorting of the outcomes of CuPy's tests, and the page made of them."""

from __future__ import annotations

import pytest

from tests.conformance.cupy import GROUPS, worker
from tests.conformance.cupy.report import page


class Report:
    """Stands for the report of pytest about a test."""

    passed = False

    def __init__(self, longrepr: object, *, skipped: bool = False) -> None:
        self.longrepr = longrepr
        self.skipped = skipped


@pytest.mark.parametrize(
    ("text", "outcome", "detail"),
    [
        (
            "E   NotSimulatedError: cupy.cuda.thrust.sort is machine code for a GPU",
            "skipped",
            "needs cupy.cuda.thrust.sort, which is machine code for a GPU",
        ),
        (
            'E  DynamicLibNotFoundError: Failure finding "libcurand.so.11 or libcurand.so.10"',
            "skipped",
            "needs libcurand, which is not installed",
        ),
        (
            "E  ImportError: libcufft.so.12: cannot open shared object file",
            "skipped",
            "needs libcufft, which is not installed",
        ),
        ("line 1\nE   AssertionError: 1\nE   assert 2", "failed", "AssertionError: 1\nassert 2"),
    ],
)
def test_failures_are_told_from_what_cannot_run(text: str, outcome: str, detail: str) -> None:
    assert worker.outcome_of(Report(text)) == {"outcome": outcome, "detail": detail}


def test_skips_have_reasons() -> None:
    report = Report(("file", 3, "Skipped: no HIP"), skipped=True)
    assert worker.outcome_of(report) == {"outcome": "skipped", "detail": "no HIP"}


def test_page_counts_the_tests_of_each_group() -> None:
    outcomes = [
        {"test": f"tests/cupy_tests/m.py::test{k}", "outcome": outcome, "detail": detail}
        for k, (outcome, detail) in enumerate(
            [
                ("passed", ""),
                ("passed", ""),
                ("passed", ""),
                ("failed", "Error: x"),
                ("skipped", "y"),
            ]
        )
    ]
    text = page({"math": {"m.py": outcomes}}, "14.2.0", {"math": 40})
    assert "CuPy 14.2.0's own tests" in text
    assert "(math: one of 40)" in text
    assert "| **math** | 3 | 1 | 1 | 75.0 % |" in text
    assert "- 1: Error: x\n    - `m.py::test3`" in text
    assert "- 1: y" in text
    assert "All tests were run." in page({}, "14.2.0", dict.fromkeys(GROUPS, 1))
