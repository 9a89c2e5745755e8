"""A pytest plugin: ``@pytest.mark.no_memory_leaks`` fails a test that leaks device memory.

Installed with nbrt. The fixture ``no_leaks`` has the same effect. The check covers the allocations
of the test function, in all threads, but not those of its fixtures.
"""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

__all__: list[str] = []

_MARKER = "no_memory_leaks"
_REQUESTED: dict[str, Any] = {}
"""The value of the fixture; its identity excludes other fixtures of the same name."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(device=None, allow=0, collect=True): the test must leave at most these bytes "
        f"of memory of the device (default: all) behind; see nbrt.memory.no_leaks",
    )


@pytest.fixture
def no_leaks() -> dict[str, Any]:
    """Fail the test if arrays that it created are alive after its end."""
    return _REQUESTED


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the marker where it has no effect, such as on a ``unittest.TestCase``."""
    cls = getattr(item, "cls", None)
    is_function = isinstance(item, pytest.Function)
    if item.get_closest_marker(_MARKER) is not None and (
        not is_function or (cls is not None and issubclass(cls, unittest.TestCase))
    ):
        pytest.fail(f"expected {_MARKER} on a test function or method, got {item!r}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a test that has the marker or the fixture."""
    marker = pyfuncitem.get_closest_marker(_MARKER)
    if marker is None and pyfuncitem.funcargs.get("no_leaks") is not _REQUESTED:
        return (yield)
    # A late import: a session without the marker needs neither NumPy nor a backend.
    from nbrt.errors import MemoryLeakError
    from nbrt.observe.leaks.finder import no_leaks as check

    options = {} if marker is None else marker.kwargs
    if marker is not None and (marker.args or not options.keys() <= {"device", "allow", "collect"}):
        pytest.fail(
            f"expected {_MARKER} with device, allow and collect by name, got {marker.args} and "
            f"{sorted(options)}",
            pytrace=False,
        )
    try:
        with check(**options):
            return (yield)
    except MemoryLeakError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
