"""Why tests of CuPy fail on the simulated driver, by a pattern of their name and error."""

from __future__ import annotations

__all__ = ["REASONS"]

REASONS: dict[str, str] = {}
"""Regular expression, searched for in the test's id, a newline and the error; and the reason."""
