"""`asarray`, `zeros`, `full` and `empty` beside NumPy's, over objects and dtypes of every class."""

from __future__ import annotations

import array as buffers
import decimal
import fractions
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

import nbrt
from nbrt.errors import ArgumentError, ArgumentOverflowError, ArgumentTypeError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Callable

PAIR = np.dtype([("a", "i4"), ("b", "f4")])
TEXTS = np.dtype([("n", "i4"), ("s", "S3"), ("u", "U2")])
NESTED = np.dtype([("p", PAIR), ("x", "f4", 2), ("t", [("s", "S2")])])
PADDED = np.dtype([("a", "i1"), ("b", "f8")], align=True)
NUMBERS: list[Any] = ["?", "i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
CLASSES: list[Any] = [
    *NUMBERS,
    ">i4",
    ">f8",
    *("S", "S2", "S9", "U", "U3", "V3"),
    *("M8[D]", "M8[ns]", "m8[s]"),
    *("(2,)f4", "(2, 3)i2", "(2,)S2"),
    *(PAIR, TEXTS, NESTED, PADDED, np.dtype("i4,(2,)f4")),
]
OPEN: list[Any] = [None, "M8", "m8", "V", int, float, complex, str, bytes, bool]
"""Dtypes that NumPy completes by what it finds, and Python's types."""


class WithArray:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.arange(3, dtype=np.int32 if dtype is None else dtype)


class Refusing:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise ValueError("no values today")


class Sequence:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return (0.5, 1.5)[index]


class Interface:
    values = np.arange(4, dtype=np.int16)
    __array_interface__ = values.__array_interface__


class Special(np.ndarray):
    pass


THING = object()


OBJECTS: dict[str, Callable[[], Any]] = {
    "64 bits": lambda: [2**64 - 1, 1],
    "64 bits, 0-d": lambda: 2**64 - 1,
    "70 bits": lambda: [2**70],
    "63 bits and -1": lambda: [2**63, -1],
    "beyond a double's": lambda: [2**53 + 1, 0.0],
    "beyond a double's, nested": lambda: [[2**53 + 1], (1,)],
    "300": lambda: [300],
    "300, 0-d": lambda: 300,
    "negative": lambda: [-1, 2],
    "floats": lambda: [1.5, -2.5],
    "1e300": lambda: [1e300],
    "NaN": lambda: [float("nan"), 1],
    "infinity, 0-d": lambda: float("-inf"),
    "complex": lambda: [1 + 2j],
    "bools": lambda: [[True, False]],
    "mixed bool": lambda: [True, 2],
    "tuple": lambda: (1, 2.5),
    "pairs": lambda: [(1, 2.0), (3, 4.0)],
    "a pair": lambda: (1, 2.0),
    "triples": lambda: [(1, b"ab", "cd"), (2, b"", "")],
    "nested records": lambda: [((1, 2.0), (3.0, 4.0), (b"x",))],
    "wrong length": lambda: [(1,)],
    "rows": lambda: [[1.0, 2.0], [3.0, 4.0]],
    "deep": lambda: [[[1, 2], [3, 4]]],
    "ragged": lambda: [[1, 2], [3]],
    "ragged types": lambda: [[1, 2], 3],
    "None": lambda: None,
    "with None": lambda: [1.0, None],
    "empty": list,
    "empty rows": lambda: [[], []],
    "range": lambda: range(3),
    "generator": lambda: (each for each in range(3)),
    "set": lambda: {1, 2},
    "dict": lambda: {"a": 1},
    "object": lambda: [THING],
    "class": lambda: int,
    "ellipsis": lambda: ...,
    "text": lambda: "abc",
    "texts": lambda: ["abc", "de"],
    "numbers as text": lambda: ["1.5", "2"],
    "dates as text": lambda: ["2020-01-01", "NaT"],
    "empty text": lambda: ["", ""],
    "accents": lambda: ["é"],
    "bytes": lambda: b"abc",
    "bytes of a list": lambda: [b"ab", b"\xff"],
    "text and number": lambda: [1, "a"],
    "bytearray": lambda: bytearray(b"ab"),
    "memoryview": lambda: memoryview(b"abcd"),
    "buffer": lambda: buffers.array("d", [1.5, 2.5]),
    "__array__": WithArray,
    "refusing": Refusing,
    "sequence": Sequence,
    "__array_interface__": Interface,
    "dates": lambda: [np.datetime64("2020-01-01T03:00"), np.datetime64("NaT")],
    "timedeltas": lambda: [np.timedelta64(3, "h")],
    "decimals": lambda: [decimal.Decimal("1.5")],
    "fractions": lambda: [fractions.Fraction(1, 3), 1],
    "scalar": lambda: np.float32(3.7),
    "scalar of 64 bits": lambda: np.uint64(2**64 - 1),
    "list of scalars": lambda: [np.int8(3), np.uint64(2**64 - 1)],
    "void": lambda: np.void(b"abc"),
    "record": lambda: np.array((1, 2), PAIR)[()],
    "list of arrays": lambda: [np.arange(2), np.arange(2.0)],
    "array": lambda: np.arange(3),
    "array of floats": lambda: np.array([[1.5, np.inf], [np.nan, -3.0]]),
    "array, big endian": lambda: np.array([1, 2], ">i8"),
    "array in columns": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "array, backwards": lambda: np.arange(6)[::-2],
    "array of texts": lambda: np.array(["1", "ab"]),
    "array of records": lambda: np.array([(1, 2)], PAIR),
    "array of objects": lambda: np.array([1, 2.5, None], object),
    "array, read-only": lambda: np.broadcast_to(np.int16(7), (2, 2)),
    "array of a subclass": lambda: np.arange(3.0).view(Special),
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
    "0-d": lambda: np.array(2.5),
}


def outcome(call: Callable[[], Any]) -> tuple[Any, list[tuple[type[Warning], str]]]:
    """Return what a call returns or raises, and the warnings that it gives."""
    with warnings.catch_warnings(record=True) as given_:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  # what it is is compared
            result = error
    return result, [(each.category, str(each.message)) for each in given_]


def assert_as_numpy(
    ours: Callable[[], Any], theirs: Callable[[], Any], where: nbrt.Device | None = None
) -> None:
    (expected, expected_warnings), (found, found_warnings) = outcome(theirs), outcome(ours)
    if isinstance(expected, Exception):
        assert isinstance(found, NbrtError), found
        if not isinstance(expected, RuntimeError):  # of NumPy's own conversion of dates to text
            wanted = next(
                kind
                for kind in (OverflowError, TypeError, ValueError)
                if isinstance(expected, kind)
            )
            assert isinstance(found, wanted), (found, expected)
            assert str(expected) in str(found)
    elif expected.dtype.hasobject:
        assert isinstance(found, (ArgumentTypeError, ArgumentError)), found
        return
    else:
        if isinstance(found, Exception):
            raise found
        if where is not None:
            assert nbrt.device_of(found) == where
            found = nbrt.to_host(found)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert same_values(found, expected), (found, expected)
    assert found_warnings == expected_warnings


def has_undefined_values(obj: Any, dtype: Any) -> bool:
    """Return whether NumPy 2.4 leaves bytes of the result as they were, which is its error."""
    is_f_only = isinstance(obj, np.ndarray) and obj.flags.fnc
    return is_f_only and dtype is not None and np.dtype(dtype).subdtype is not None


def same_values(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values have the same bits; bytes between fields of records do not count."""
    if expected.dtype.names is not None:
        return all(same_values(found[name], expected[name]) for name in expected.dtype.names)
    return found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_asarray_is_numpys(make: Callable[[], Any], sample_backend: object) -> None:
    for device, dtype in itertools.product(
        (nbrt.Device("cpu", 0), nbrt.Device("cpu", 1), nbrt.Device("sample", 0)), OPEN + CLASSES
    ):
        if has_undefined_values(make(), dtype):
            continue
        assert_as_numpy(
            lambda: nbrt.asarray(make(), dtype, device=device),  # noqa: B023  # called at once
            lambda: np.asarray(make(), dtype),  # noqa: B023
            device,
        )


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_asarray_without_a_copy_is_numpys(make: Callable[[], Any]) -> None:
    for mode, dtype in itertools.product((None, False), (None, "f4", "i8", "S3", PAIR)):
        assert_as_numpy(
            lambda: nbrt.asarray(make(), dtype, device="cpu:0", copy=mode),  # noqa: B023
            lambda: np.asarray(make(), dtype, copy=mode),  # noqa: B023
        )


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ArgumentOverflowError, match="makes an array of uint8 of, got a list: "):
        nbrt.asarray([300], "uint8")
    with pytest.raises(ArgumentError, match="got a list: setting an array element"):
        nbrt.asarray([[1], [1, 2]])
    with pytest.raises(ArgumentTypeError, match="expected a dtype"):
        nbrt.asarray([1], "no such dtype")
    with pytest.raises(ArgumentError, match="Python objects"):
        nbrt.asarray([1], object)


scalars = st.one_of(
    st.integers(-(2**66), 2**66),
    st.floats(),
    st.complex_numbers(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.binary(max_size=3),
)
nested = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@settings(max_examples=400, deadline=None)
@given(obj=nested, dtype=st.sampled_from(OPEN + CLASSES))
def test_nested_lists_are_numpys(obj: Any, dtype: Any) -> None:
    assert_as_numpy(
        lambda: nbrt.asarray(obj, dtype, device="cpu:0"), lambda: np.asarray(obj, dtype)
    )


@settings(max_examples=200, deadline=None)
@given(
    values=numpy_strategies.arrays(
        st.sampled_from([np.dtype(kind) for kind in NUMBERS]),
        numpy_strategies.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3),
    ),
    dtype=st.sampled_from(NUMBERS),
)
def test_arrays_are_converted_as_by_numpy(values: np.ndarray, dtype: str) -> None:
    assert_as_numpy(
        lambda: nbrt.asarray(values, dtype, device="cpu:0"), lambda: np.asarray(values, dtype)
    )


# -- arrays of one value ---------------------------------------------------------------------------


def of_used_memory(make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array made in memory that held other bytes before."""
    found = make()
    if found.nbytes:
        found.reshape(-1).view(np.uint8)[...] = 0xFF
    del found
    return make()


@pytest.mark.parametrize("dtype", [*CLASSES, "M8", "m8", "V", str, bytes, int], ids=str)
@pytest.mark.parametrize("shape", [(), 3, (2, 3), 0, (2, 0)], ids=str)
def test_zeros_are_numpys(dtype: Any, shape: Any, device: nbrt.Device) -> None:
    expected = np.zeros(shape, dtype)
    if device.kind == "cuda" and expected.dtype.kind not in "?iufc":
        pytest.skip("CuPy has arrays of numbers only")
    if device.kind == "cuda" and not expected.dtype.isnative:
        with pytest.raises(ArgumentTypeError, match="byte order"):
            nbrt.zeros(shape, dtype, device=device)
        return
    found = nbrt.to_host(of_used_memory(lambda: nbrt.zeros(shape, dtype, device=device)))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)
    if expected.dtype.names is None:  # NumPy does not copy the bytes between fields
        assert found.tobytes() == expected.tobytes()
    made = nbrt.empty(shape, dtype, device=device)
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    if device.kind == "cpu":
        pinned = nbrt.empty_pinned(shape, dtype, device=device)
        assert (pinned.dtype, pinned.shape) == (expected.dtype, expected.shape)


VALUES: list[Any] = [
    *(0, 1, -1, 255, 300, -300, 2**63, 2**64 - 1, 2**70, True, -0.0, 2.5, 1e300),
    *(float("nan"), float("inf"), 2 + 1j, np.float32(1.5), np.int8(-3), np.uint64(2**64 - 1)),
    *("", "ab", "abcdef", "é", "7", b"ab", b"\xff", np.str_("xyz"), np.bytes_(b"q")),
    *(np.datetime64("2020-01-01"), np.timedelta64(5, "h"), np.array(3), np.void(b"abc")),
    *(np.array((1, 2.5), PAIR)[()], np.array((1, b"ab", "cd"), TEXTS)[()]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_full_is_numpys(value: Any) -> None:
    for dtype, shape in itertools.product([None, *CLASSES], ((), (2, 2))):
        assert_as_numpy(
            lambda: nbrt.full(shape, value, dtype, device="cpu:0"),  # noqa: B023
            lambda: np.full(shape, value, dtype),  # noqa: B023
        )
