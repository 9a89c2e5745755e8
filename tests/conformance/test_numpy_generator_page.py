"""The list of NumPy's tests that fail, and the page made of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.numpy_generator import adapter, expected, report


@pytest.fixture(scope="module")
def tests() -> list[str]:
    if not adapter.are_installed():
        pytest.skip("the installed NumPy came without its tests")
    return report.collected()


def test_every_rule_names_tests_of_numpy(tests: list[str]) -> None:
    assert report.unknown_names(tests) == []
    assert report.unknown_names(tests[:1]) != []


def test_the_page_is_that_of_the_rules(tests: list[str]) -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    if f"NumPy {np.__version__}'s" not in text:
        pytest.skip("the page is about another NumPy")
    assert text == report.page(np.__version__, tests)


def test_values_that_differ_end_a_test_last() -> None:
    """Only comparisons of values may fail in a test that compares with NumPy's."""
    module = adapter.load(adapter.MODULES[0])
    with pytest.raises(adapter.ValuesDifferError), adapter.lenient(module, True):
        module.assert_array_equal([1, 2], [1, 3])
    with adapter.lenient(module, True):
        module.assert_array_equal([1, 2], [1, 2])
    with pytest.raises(AssertionError), adapter.lenient(module, True):
        module.assert_array_equal([1, 2], [1, 2, 3])
    with pytest.raises(AssertionError), adapter.lenient(module, False):
        module.assert_array_equal([1, 2], [1, 3])


def test_a_name_stands_for_all_parameters() -> None:
    whole = expected.rule_of("TestIntegers::test_repeatability[True]")
    assert whole is not None
    assert whole is expected.rule_of("TestIntegers::test_repeatability")
    one = "TestRandomDist::test_multivariate_normal_basic_stats"
    assert expected.rule_of(f"{one}[eigh]") is not None
    assert expected.rule_of(f"{one}[svd]") is None
