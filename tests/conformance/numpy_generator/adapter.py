"""NumPy's test modules, imported with `nbrt.Generator` as their `Generator`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import numpy.random
import numpy.testing

import nbrt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

__all__ = ["MODULES", "Generator", "ValuesDifferError", "are_installed", "lenient", "load"]

MODULES = ("test_generator_mt19937", "test_generator_mt19937_regressions")
"""Files of ``numpy/random/tests`` that are about `Generator`."""

_SEED = 20_240_601
_PACKAGE = "numpy.random.tests"
_COMPARISONS = (
    "assert_equal",
    "assert_array_equal",
    "assert_array_almost_equal",
    "assert_allclose",
)
_NULP = "assert_array_almost_equal_nulp"
"""A comparison that the tests call as an attribute of ``numpy.testing``."""


class Generator(nbrt.Generator):
    """A generator on the CPU that takes its seed from a bit generator of NumPy."""

    _poisson_lam_max = 9.223e18
    """NumPy's name for the largest mean of `poisson`, which a test reads."""

    def __init__(self, bit_generator: Any) -> None:
        super().__init__(bit_generator.seed_seq, "cpu:0")


class ValuesDifferError(Exception):
    """A test has run to its end, and nothing but the values of draws differs from NumPy's."""


def are_installed() -> bool:
    """Return whether the installed NumPy came with its tests."""
    if importlib.util.find_spec(_PACKAGE) is None:
        return False
    return all(importlib.util.find_spec(f"{_PACKAGE}.{name}") for name in MODULES)


def load(name: str) -> ModuleType:
    """Import a module of tests with `Generator` of this module in place of NumPy's."""
    with _as_numpys():
        return importlib.import_module(f"{_PACKAGE}.{name}")


def _as_numpys() -> Any:
    return mock.patch.object(numpy.random, "Generator", Generator)


@contextlib.contextmanager
def lenient(module: ModuleType, names_values: bool) -> Iterator[None]:
    """Run a test of a module.

    Parameters
    ----------
    module : module
        Of `load`.
    names_values : bool
        Whether the test compares draws with the values that NumPy's bit generators give. Then a
        comparison of arrays of equal shape may fail, and the test runs on behind it.

    Raises
    ------
    ValuesDifferError
        At the end, if a comparison has failed.
    """
    differences: list[str] = []
    if hasattr(module, "random"):  # the generator of the tests that make none
        module.random.manual_seed(_SEED)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_as_numpys())
        if names_values:
            for owner, name in ((numpy.testing, _NULP), *((module, each) for each in _COMPARISONS)):
                if hasattr(owner, name):
                    compare = _noting(getattr(owner, name), differences)
                    stack.enter_context(mock.patch.object(owner, name, compare))
        yield
    if differences:
        raise ValuesDifferError(f"{len(differences)} comparisons; the first: {differences[0]}")


def _noting(compare: Callable[..., None], differences: list[str]) -> Callable[..., None]:
    """Return a comparison that notes values that differ and refuses other shapes."""

    def compare_shapes(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> None:
        try:
            compare(actual, desired, *args, **kwargs)
        except AssertionError as error:
            if np.shape(actual) != np.shape(desired):
                raise
            differences.append(str(error).strip())

    return compare_shapes
