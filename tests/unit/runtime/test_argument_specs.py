"""Specifications of arguments: their examples have the types that Numba gives to arguments."""

from __future__ import annotations

import enum
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import types
from numba.core.typing.typeof import Purpose, typeof

import nbrt
from nbrt.backends.argument_specs import argument_lists, example_of
from nbrt.errors import ArgumentError

Pair = namedtuple("Pair", "left right")  # as users write it


class Color(enum.Enum):
    RED = 1


RECORD = np.dtype([("mass", np.float32), ("count", np.int64)])
TYPES = [
    types.float32,
    types.float16,
    types.int8,
    types.uint64,
    types.boolean,
    types.complex64,
    types.none,
    types.NPDatetime("ns"),
    types.NPTimedelta("D"),
    types.float32[:],
    types.int32[::1],
    types.float64[:, ::1],
    types.float64[::1, :],
    types.complex128[:, :, :],
    types.boolean[::1],
    types.Array(types.float32, 1, "C", readonly=True),
    types.Array(types.int64, 0, "C"),
    types.Array(types.int64, 20, "A"),
    types.UniTuple(types.int64, 3),
    types.Tuple((types.float32[::1], types.int64)),
    types.NamedTuple((types.float32, types.int64[::1]), Pair),
    types.EnumMember(Color, types.int64),
]


def type_of(example: Any) -> Any:
    return typeof(example, Purpose.argument)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_the_example_of_a_type_has_the_type(kind: Any) -> None:
    assert type_of(example_of(kind)) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("float32", types.float32),
        ("f4[::1]", types.float32[::1]),
        ("float32[:, ::1]", types.float32[:, ::1]),
        ("int64[::1, :]", types.int64[::1, :]),
        ("int64[:, :]", types.int64[:, :]),
        ("boolean", types.boolean),
        ("UniTuple(int64, 3)", types.UniTuple(types.int64, 3)),
        ("Array(float32, 1, 'C', readonly=True)", TYPES[15]),
    ],
)
def test_the_name_of_a_type(text: str, kind: Any) -> None:
    assert type_of(example_of(text)) == kind


VALUES = [
    3,
    2.5,
    True,
    1j,
    np.float32(1),
    np.datetime64("2024-01-01", "ns"),
    np.zeros(5, np.float32),
    np.zeros((3, 4)).T,
    np.zeros((6, 4), np.int32)[::2, ::2],
    np.zeros((), np.int64),
    np.zeros(3, RECORD),
    np.broadcast_to(np.float32(1), (3, 4)),
    (np.zeros(3), 1),
    Pair(1.0, np.zeros(2, np.int8)),
    (),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_example_of_an_argument_has_its_type(value: Any) -> None:
    assert type_of(example_of(value)) == type_of(value)


def test_an_example_holds_no_memory_of_the_argument() -> None:
    array = np.zeros(10**6)
    example = example_of(array)
    assert not np.shares_memory(array, example)
    assert example.size < 10


def test_a_shape_and_a_dtype() -> None:
    described = SimpleNamespace(shape=(10**9, 10**9), dtype=np.dtype("float32"))
    assert type_of(example_of(described)) == types.float32[:, ::1]


def test_an_array_of_a_gpu_by_its_protocol() -> None:
    layout = {
        "shape": (3, 4), "strides": (4, 12), "typestr": "<f4", "data": (0, True), "version": 3
    }  # fmt: skip
    kind = type_of(example_of(SimpleNamespace(__cuda_array_interface__=layout)))
    assert kind == types.Array(types.float32, 2, "F", readonly=True)
    layout = {
        "shape": (3,), "typestr": "|V12", "descr": RECORD.descr, "data": (0, False), "version": 3
    }  # fmt: skip
    kind = type_of(example_of(SimpleNamespace(__cuda_array_interface__=layout)))
    assert kind == type_of(np.zeros(3, RECORD))


def test_a_fake_array() -> None:
    with nbrt.fake("cuda"), nbrt.device("cuda:0"):
        array = nbrt.zeros((1 << 16, 1 << 16), "float32")
        assert type_of(example_of(array)) == types.float32[:, ::1]
        assert type_of(example_of(array[:, ::2])) == types.float32[:, :]
        assert type_of(example_of(array.T)) == types.float32[::1, :]


def test_other_objects_are_left_to_the_backend() -> None:
    thing = object()
    assert example_of(thing) is thing
    assert argument_lists((thing, 1)) == [(thing, 1)]


def types_of(*specs: Any) -> list[tuple[Any, ...]]:
    return [tuple(map(type_of, arguments)) for arguments in argument_lists(specs)]


VECTOR = types.float32[::1]


@pytest.mark.parametrize(
    "signature",
    [
        "void(float32[::1], int32)",
        "none(f4[::1], i4)",
        "(float32[::1], int32)",
        types.void(VECTOR, types.int32),
        (VECTOR, types.int32),
    ],
    ids=str,
)
def test_a_signature(signature: Any) -> None:
    assert types_of(signature) == [(VECTOR, types.int32)]


def test_several_signatures() -> None:
    found = types_of("void(float32[::1])", (types.int64,), types.void())
    assert found == [(VECTOR,), (types.int64,), ()]
    assert types_of("void()") == [()]


def test_the_arguments_of_one_launch() -> None:
    assert types_of() == [()]
    assert types_of(np.zeros(3, np.float32), types.int32, "float64", 1) == [
        (VECTOR, types.int32, types.float64, types.int64)
    ]
    assert types_of((1, 2.0)) == [(types.Tuple((types.int64, types.float64)),)]
    assert types_of("UniTuple(int64, 2)") == [(types.UniTuple(types.int64, 2),)]


@pytest.mark.parametrize(
    "text",
    [
        "double double", "float33", "float32[", "float32[1]", "float32[:, ::1, :]", "object",
        "str", "void(", "void(float33)", "print('no')", "().__class__", "void(float32).args",
        "[x for x in ()]", "", "pyobject", "optional(int64)",
    ],
)  # fmt: skip
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        argument_lists((text,))


def test_a_signature_with_a_result() -> None:
    with pytest.raises(ArgumentError, match=r"write void\(float32\)"):
        argument_lists(("int64(float32)",))


def test_signatures_among_arguments() -> None:
    with pytest.raises(ArgumentError, match="3 at position 1 is no signature"):
        argument_lists(("void(int64)", 3))
