"""Marks NumPy's tests that are expected to fail, and runs them as `adapter` says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.conformance.numpy_generator import adapter, expected

if TYPE_CHECKING:
    from collections.abc import Generator

_FILE = "test_numpy_generator.py"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thread_unsafe: NumPy's own mark, without meaning here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name != _FILE:
            continue
        rule = expected.rule_of(test_name(item))
        if rule is not None:
            item.add_marker(rule.mark())


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if pyfuncitem.path.name != _FILE:
        return (yield)
    rule = expected.rule_of(test_name(pyfuncitem))
    module = sys.modules[pyfuncitem.function.__module__]
    with adapter.lenient(module, rule is not None and rule.names_values):
        return (yield)


def test_name(item: pytest.Item) -> str:
    """Return the name of a test without its file: ``Class::test[parameters]``."""
    return item.nodeid.partition("::")[2]
