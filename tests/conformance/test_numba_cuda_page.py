"""The page of numba-cuda's tests, made of outcomes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance import report
from tests.conformance.rules import WITHOUT_NBRT

_PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
_MIN_PASSED, _MAX_FAILED = 1500, 25


def outcome(test: str, outcome: str, detail: str = "") -> dict[str, object]:
    return {"test": test, "outcome": outcome, "detail": detail, "seconds": 0.1}


def test_page_counts_passes_and_lists_reasons(monkeypatch):
    monkeypatch.setitem(report.TESTS, "cudapy/test_a.py::T.gpu", "needs two GPUs")
    monkeypatch.setitem(report.REASONS, "cudapy/test_a.py::T.known", "it is known")
    results = {
        "nbrt": {
            "cudapy.test_a": [
                outcome("cudapy/test_a.py::T.kernel", "passed"),
                outcome("cudapy/test_a.py::T.python", "passed", WITHOUT_NBRT),
                outcome("cudapy/test_a.py::T.known", "failed", "ValueError: 1"),
                outcome("cudapy/test_a.py::T.new", "failed", "KeyError: 2"),
                outcome("cudapy/test_a.py::T.gpu", "skipped", "needs two GPUs"),
                outcome("cudapy/test_a.py::T.self", "skipped", "only on Windows"),
            ],
            "cudadrv.test_b": [outcome("cudadrv/test_b.py::T.x", "failed", "ValueError: 1")],
        },
        "simulator": {"cudadrv.test_b": [outcome("cudadrv/test_b.py::T.x", "passed")]},
    }
    page = report.page(results, "0.30.4")
    assert "nbrt: **2 passed, 3 failed, 2 not applicable**" in page
    assert "1 of the tests that pass under nbrt reached no part of nbrt" in page
    assert "| cudapy/test_a | 2 | 1 | 2 | 2 | 0 | 0 | 0 |" in page
    assert "- 1: it is known\n    - `cudapy/test_a.py::T.known`" in page
    assert "- 1: without a reason: KeyError: 2\n    - `cudapy/test_a.py::T.new`" in page
    assert "- cudadrv/test_b: 0 of 1" in page
    assert "- `cudadrv/test_b.py::T.x` (failed)" in page
    assert "- 1: needs two GPUs (cudapy/test_a.py 1)" in page
    assert "- 1: skips itself: only on Windows (cudapy/test_a.py 1)" in page


def test_page_in_the_documentation() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    counts = re.search(r"nbrt: \*\*(\d+) passed, (\d+) failed", text)
    assert counts is not None
    assert int(counts[1]) >= _MIN_PASSED
    assert int(counts[2]) <= _MAX_FAILED
    assert "without a reason" not in text
