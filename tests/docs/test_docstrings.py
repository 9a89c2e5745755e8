"""Every example in a docstring of nbrt runs with the shown output."""

from __future__ import annotations

import builtins
import doctest
import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest

import nbrt

if TYPE_CHECKING:
    from types import ModuleType

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules() -> list[str]:
    """Return every module's name."""
    found = [info.name for info in pkgutil.walk_packages(nbrt.__path__, "nbrt.")]
    return ["nbrt", *(name for name in found if not name.endswith("__main__"))]


def examples_of(module: ModuleType) -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(module, module.__name__) if test.examples]


@pytest.mark.parametrize("name", modules())
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # doctest leaves it behind, and IPython keeps its own back where there is one.
    monkeypatch.setattr(builtins, "_", None, raising=False)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in examples_of(module):
        # Examples show what a reader of the page can type: names of the module, and nbrt.
        test.globs = {**vars(module), "nbrt": nbrt}
        runner.run(test)
    assert runner.failures == 0, f"{runner.failures} of {runner.tries} examples failed"


def test_the_main_pages_have_examples() -> None:
    wanted = [
        "Device",
        "DeviceGuard",
        "OptionalDeviceGuard",
        "OptionalStreamGuard",
        "Stream",
        "Event",
        "Generator",
        "empty",
        "zeros",
        "to",
        "manual_seed",
        "current_device",
        "current_stream",
        "memory_allocated",
    ]
    without = [name for name in wanted if ">>>" not in (getattr(nbrt, name).__doc__ or "")]
    assert without == []
