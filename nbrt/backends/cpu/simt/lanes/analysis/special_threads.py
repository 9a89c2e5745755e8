"""`SpecialThread`: a simpler thread that some blocks can run, and the test of these blocks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SpecialThread"]


@dataclass(frozen=True)
class SpecialThread:
    """A thread for the blocks that pass a test; others run the thread that it was made of.

    Attributes
    ----------
    module : str
        Text of the module of the thread, not simplified.
    test : list of str
        Instructions in terms of the thread's parameters.
    holds : str
        The result of the test, an ``i1``.
    note : str
        The rule, for ``kernel.inspect``.
    """

    module: str
    test: list[str]
    holds: str
    note: str
