"""Why tests of CuPy fail on the simulated driver, by a pattern of their name and error."""

from __future__ import annotations

__all__ = ["REASONS"]

REASONS: dict[str, str] = {
    r"TestCubReduction.*\n.*TimeLimit": (
        "CuPy's block reduction of millions of elements, whose threads wait for each other at each "
        "step, takes longer than the limit of the run"
    ),
}
"""Regular expression, searched for in the test's id, a newline and the error; and the reason."""
