"""`FakeArray` against NumPy: the same calls give the same shapes, dtypes, orders and errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from helpers.fake_arrays import SampleMemory
from helpers.numpy_cases import arrays, calls
from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.numpy_rules import RULES

_DISPATCHER = type(np.sum)
_MODULES = {
    "": np,
    "linalg.": np.linalg,
    "fft.": np.fft,
    "lib.stride_tricks.": np.lib.stride_tricks,
    "lib.scimath.": np.lib.scimath,
    "strings.": np.strings,
    "char.": np.char,
}

CALLS = calls()

UNORDERED = {
    "choose",
    "delete",
    "einsum",
    "histogram2d",
    "histogramdd",
    "nanpercentile",
    "unravel_index",
}
"""Functions whose order of elements NumPy does not define."""


NOT_COMPARED = {
    # Their results depend on values.
    "allclose", "argwhere", "array_equal", "array_equiv", "bincount", "compress", "extract",
    "flatnonzero", "intersect1d", "nonzero", "polydiv", "polymul", "real_if_close", "roots",
    "setdiff1d", "setxor1d", "trim_zeros", "union1d", "unique", "unique_all", "unique_counts",
    "unique_inverse", "unique_values", "save", "savetxt", "savez", "savez_compressed",
    *(f"lib.scimath.{name}" for name in np.lib.scimath.__all__),
    # The text of a fake array has no values, and eigenvalues of real matrices are complex.
    "array2string", "array_repr", "array_str", "linalg.eig", "linalg.eigvals",
}  # fmt: skip


def _run(code: str, names: dict[str, Any]) -> Any:
    """Return the value of an expression, or the names after a statement, or the exception."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return eval(code, {"np": np}, names)
        except SyntaxError:
            pass
        except Exception as error:  # noqa: BLE001 (the other side must raise the same)
            return error
        try:
            exec(code, {"np": np}, names)
        except Exception as error:  # noqa: BLE001
            return error
        return None


def _compare(code: str, *, strides: bool = True) -> None:
    real = arrays()
    memory = SampleMemory("cpu")
    fake = {
        name: each if name.startswith("R_") else memory.like(each) for name, each in real.items()
    }
    expected, got = _run(code, real), _run(code, fake)
    _same(expected, got, code, strides=strides)
    for name, each in real.items():
        if name.startswith("R_"):
            continue
        _same(each, fake[name], f"{name} after {code}", strides=strides)


def _same(expected: Any, got: Any, code: str, *, strides: bool) -> None:
    text = f"{code}: expected {_text(expected)}, got {_text(got)}"
    if isinstance(expected, Exception):
        assert isinstance(got, Exception), text
        kinds = (ValueError, TypeError, IndexError, OverflowError, KeyError, AttributeError)
        kind = next(each for each in kinds if isinstance(expected, each))
        assert isinstance(got, kind), text
        if isinstance(expected, (np.exceptions.AxisError, np.linalg.LinAlgError)):
            assert isinstance(got, type(expected)), text
    elif isinstance(expected, (tuple, list)):
        assert isinstance(got, type(expected)), text
        assert len(got) == len(expected), text
        for each, other in zip(expected, got, strict=True):
            _same(each, other, code, strides=strides)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert isinstance(got, FakeArray), text
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype), text
        if strides and expected.size:
            assert _significant(got) == _significant(expected), text
    else:
        assert not isinstance(got, (FakeArray, Exception)), text
        assert got == expected, text


def _significant(array: Any) -> list[int]:
    return [stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]


def _text(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic, FakeArray)):
        return f"{value.shape} {value.dtype} {value.strides}"
    return repr(value)


@pytest.mark.parametrize("name", [each for each in CALLS if not each.startswith(":")])
def test_functions_agree_with_numpy(name: str) -> None:
    for code in CALLS[name]:
        _compare(code, strides=name not in UNORDERED)


@pytest.mark.parametrize("code", CALLS[":methods"] + CALLS[":operators"])
def test_methods_and_operators_agree_with_numpy(code: str) -> None:
    _compare(code)


@pytest.mark.parametrize("code", CALLS[":changes"])
def test_changes_agree_with_numpy(code: str) -> None:
    _compare(code)


@pytest.mark.parametrize("index", CALLS[":indices"])
@pytest.mark.parametrize("array", ["a", "v", "t", "z"])
def test_indices_agree_with_numpy(array: str, index: str) -> None:
    _compare(f"{array}[{index}]")


def test_every_function_of_numpy_has_a_rule_or_is_listed() -> None:
    without = {
        prefix + name
        for prefix, module in _MODULES.items()
        for name in dir(module)
        if isinstance(getattr(module, name), _DISPATCHER) and getattr(module, name) not in RULES
    }
    dates = {"busday_count", "busday_offset", "datetime_as_string", "is_busday"}
    assert {each for each in without if not each.startswith(("strings.", "char."))} == dates


def test_every_rule_is_compared_with_numpy() -> None:
    named = {
        getattr(module, name): prefix + name
        for prefix, module in _MODULES.items()
        for name in dir(module)
        if isinstance(getattr(module, name), _DISPATCHER)
    }
    compared = {getattr(np, name, None) for name in CALLS if "." not in name}
    compared |= {each for each, name in named.items() if name in CALLS}
    assert {named[each] for each in RULES if each not in compared} == NOT_COMPARED
