"""Run the examples in the docstrings of modules."""

from __future__ import annotations

import doctest
import importlib
from typing import TYPE_CHECKING

import nbrt

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["failed_examples"]

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def failed_examples(*names: str) -> str:
    """Run the examples of modules, print the differences, and say how many failed, if any did."""
    runner = doctest.DocTestRunner(optionflags=_FLAGS)
    for name in names:
        module = importlib.import_module(name)
        for test in _examples_of(module):
            # Examples show what a reader of the page can type: names of the module, and nbrt.
            test.globs = {**vars(module), "nbrt": nbrt}
            runner.run(test)
    return f"{runner.failures} of {runner.tries} examples failed" if runner.failures else ""


def _examples_of(module: ModuleType) -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(module, module.__name__) if test.examples]
