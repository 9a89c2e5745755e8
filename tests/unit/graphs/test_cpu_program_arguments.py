"""Arguments of every type that a kernel takes reach it in a graph as in an eager launch."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbrt
from helpers.cpu_graphs import Graph
from nbrt.backends.cpu.graphs.arguments import pack
from nbrt.backends.cpu.simt.runtime.arguments import numba_type
from nbrt.backends.graphs import ReplayValues


class Color(enum.Enum):
    RED = 3
    BLUE = 5


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Named(NamedTuple):
    first: Any
    second: Any


_RECORD = np.dtype([("a", "i2"), ("b", "f8"), ("c", "u1", (3,))])
_REAL = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")


# -- random arguments ------------------------------------------------------------------------------

_scalars = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, width=64),
    st.booleans(),
    st.complex_numbers(allow_nan=False, allow_infinity=False, max_magnitude=1e6),
    st.builds(
        lambda code, value: np.array(value).astype(code)[()],
        st.sampled_from((*_REAL, "c8", "c16")),
        st.integers(0, 100),
    ),
    st.none(),
    st.sampled_from([*Color, *Level]),
    st.just(np.array((7, 2.5, (1, 2, 3)), _RECORD)[()]),
)


@st.composite
def _arrays(draw) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from((*_REAL, "c8", "c16"))))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    base = np.arange(np.prod([2 * extent + 1 for extent in shape], dtype=int)) % 50
    base = base.astype(dtype).reshape([2 * extent + 1 for extent in shape])
    if draw(st.booleans()):
        base = np.asfortranarray(base)
    # Steps of both signs, and views that begin inside of their memory.
    slices = [
        slice(extent, None, -1)
        if draw(st.booleans())
        else slice(1, 1 + extent)
        if draw(st.booleans())
        else slice(0, 2 * extent, 2)
        for extent in shape
    ]
    return base[tuple(slices)]


_arguments = st.lists(
    st.recursive(
        _scalars | _arrays(),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(tuple), st.builds(Named, inner, inner)
        ),
        max_leaves=4,
    ),
    min_size=1,
    max_size=4,
)


def _statements(name: str, value: Any) -> list[str]:
    """Return statements of a kernel that add what they see of an argument to ``out``."""
    if isinstance(value, Named):
        return [*_statements(f"{name}.first", value[0]), *_statements(f"{name}.second", value[1])]
    if isinstance(value, tuple):
        return [line for i, item in enumerate(value) for line in _statements(f"{name}[{i}]", item)]
    if value is None:
        return [f"put(out, 1.0 if {name} is None else 0.0)"]
    if isinstance(value, enum.Enum):
        return [f"put(out, 1.0 if {name} == {type(value).__name__}.{value.name} else 2.0)"]
    if isinstance(value, np.void):
        return [f"put(out, {name}.{field})" for field in ("a", "b", "c[0]", "c[2]")]
    if isinstance(value, np.ndarray):
        lines = [f"put(out, {name}.size)"]
        lines += [f"put(out, {name}.shape[{axis}])" for axis in range(value.ndim)]
        return [*lines, f"for item in {name}.flat:", *_indented(_number("item", value.dtype))]
    return _number(name, np.asarray(value).dtype)


def _number(name: str, dtype: np.dtype) -> list[str]:
    if dtype.kind == "c":
        return [f"put(out, {name}.real)", f"put(out, {name}.imag)"]
    return [f"put(out, {'np.float64' if dtype.kind != 'b' else ''}({name}))"]


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _probe(args: tuple[Any, ...]):
    names = [f"p{number}" for number in range(len(args))]
    lines = [line for name, arg in zip(names, args, strict=True) for line in _statements(name, arg)]
    source = "\n".join(
        [
            "def put(out, value):",
            "    out[0] += 1",
            "    out[int(out[0])] = value",
            f"def probe(out, {', '.join(names)}):",
            *_indented(lines or ["pass"]),
        ]
    )
    namespace: dict[str, Any] = {"np": np, "Color": Color, "Level": Level}
    exec(compile(source, "<probe>", "exec"), namespace)
    from numba import cuda

    namespace["put"] = cuda.jit(device=True)(namespace["put"])
    return namespace["probe"]


@given(_arguments)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_arguments_of_random_types(args):
    kernel = _probe(tuple(args))
    eager, replayed = np.zeros(1000), np.zeros(1000)
    nbrt.kernel(kernel)[1, 1](eager, *args)
    graph = Graph()
    graph.launch(kernel, 1, 1, replayed, *args)
    graph.replay(graph.program())
    np.testing.assert_array_equal(replayed, eager)


# -- types that random arguments leave out ---------------------------------------------------------


def compare_dates(out, moment, step, limit):
    out[0] = 1.0 if moment + step > limit else 2.0


@pytest.mark.parametrize("step", [1, 3])
def test_dates(step):
    graph, out = Graph(), np.zeros(1)
    moment, limit = np.datetime64("2026-01-01"), np.datetime64("2026-01-03")
    graph.launch(compare_dates, 1, 1, out, moment, np.timedelta64(step, "D"), limit)
    graph.replay(graph.program())
    assert out[0] == (1 if step == 3 else 2)


def compare_texts(out, texts):
    out[0] = 1.0 if texts[0] == texts[1] else 2.0


@pytest.mark.parametrize("dtype", ["S3", "U3"])
@pytest.mark.parametrize("texts", [["abc", "abc"], ["abc", "xyz"]])
def test_arrays_of_texts(dtype, texts):
    graph, out = Graph(), np.zeros(1)
    graph.launch(compare_texts, 1, 1, out, np.array(texts, dtype))
    graph.replay(graph.program())
    assert out[0] == (1 if texts[0] == texts[1] else 2)


def change_record(record):
    record.b = record.b * 2 + record.a


def test_a_record_is_the_memory_of_its_array():
    records = np.zeros(3, _RECORD)
    records["a"], records["b"] = 5, 1
    graph = Graph()
    graph.launch(change_record, 1, 1, records[1])
    program = graph.program()
    graph.replay(program)
    graph.replay(program)
    assert records["b"].tolist() == [1, 19, 1]


def test_a_record_replaced_for_one_replay():
    first, second = np.zeros(1, _RECORD), np.zeros(1, _RECORD)
    first["a"], second["a"] = 1, 10
    graph = Graph()
    graph.launch(change_record, 1, 1, first[0])
    program = graph.program()
    graph.replay(program, ReplayValues(scalars={(0, 0, 0): second[0]}))
    assert (first["b"][0], second["b"][0]) == (0, 10)
    graph.replay(program)
    assert (first["b"][0], second["b"][0]) == (1, 10)


def no_arguments():
    pass


def test_a_kernel_without_arguments():
    graph = Graph()
    graph.launch(no_arguments, 1, 1)
    graph.replay(graph.program())


def many(out, a, b, c, d, e, f, g, h, i, j, k):
    out[0] = a + b * c - d * e + f[0] * g + h[1] * i - j + k


def test_more_arguments_than_registers():
    args = [1, 2.5, 3, np.float32(4), 5, np.full(2, 6.0), 7.5, (8, 9.5), 10.5, np.int8(11), 12.5]
    eager, replayed = np.zeros(1), np.zeros(1)
    nbrt.kernel(many)[1, 1](eager, *args)
    graph = Graph()
    graph.launch(many, 1, 1, replayed, *args)
    graph.replay(graph.program())
    assert replayed[0] == eager[0] != 0


def test_each_argument_begins_at_a_word():
    values = (np.int8(-1), True, 3.5, np.float32(2), 1 + 2j)
    packed = pack(tuple(numba_type(value) for value in values), values)
    assert packed.slots == (("i8", 8), ("i8", 8), ("double", 8), ("float", 8), *[("double", 8)] * 2)
    assert packed.ranges == [(0, 8), (8, 16), (16, 24), (24, 32), (32, 48)]
    assert np.frombuffer(packed.data, "f8")[[2, 4, 5]].tolist() == [3.5, 1, 2]
    assert packed.data[0] == 255
    assert packed.data[8] == 1
