"""Every example in a docstring of nbrt runs with the shown output."""

from __future__ import annotations

import builtins
import pkgutil

import pytest

import nbrt
from helpers.examples import failed_examples
from helpers.processes import output_of

COUNT_MEMORY = ("nbrt.memory", "nbrt.runtime.memory.", "nbrt.observe.", "nbrt.planning.")
"""Modules whose examples show all memory in use, which tests before them may have left."""


def modules() -> list[str]:
    """Return every module's name."""
    found = [info.name for info in pkgutil.walk_packages(nbrt.__path__, "nbrt.")]
    return ["nbrt", *(name for name in found if not name.endswith("__main__"))]


@pytest.mark.parametrize("name", [each for each in modules() if not each.startswith(COUNT_MEMORY)])
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # doctest leaves it behind, and IPython keeps its own back where there is one.
    monkeypatch.setattr(builtins, "_", None, raising=False)
    assert failed_examples(name) == ""


def test_examples_that_count_memory() -> None:
    names = [name for name in modules() if name.startswith(COUNT_MEMORY)]
    code = f"""
        from helpers.examples import failed_examples
        for name in {names}:
            if failed := failed_examples(name):
                print(name, failed)
    """
    assert output_of(code, environment={"NBRT_CPU_DEVICES": "4"}) == ""


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
