"""Arguments of graphs: replacements and nodes that are refused at the call, by name."""

from __future__ import annotations

import contextlib
import itertools
import json
import types
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.graph_arrays import add, arrays
from nbrt.errors import (
    ArgumentError,
    ArgumentOverflowError,
    ArgumentTypeError,
    CaptureError,
    GraphError,
    NbrtError,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("on_device")


@nbrt.kernel
def choose(x: Any, stream: Any, is_wanted: Any) -> None:
    i = cuda.grid(1)
    if i < x.size and is_wanted:
        x[i] = stream


CONSTANT = 3.0


@nbrt.kernel
def set_constant(x: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] = CONSTANT


def first(array: Any) -> float:
    return float(nbrt.to_host(array)[0])


# -- replacements ----------------------------------------------------------------------------------


def test_a_read_only_replacement_of_a_written_array_is_refused(device: nbrt.Device) -> None:
    x, y, z = arrays(0, 1, 2)
    if device.kind != "cpu":
        pytest.skip("only arrays of NumPy may be read-only")
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
    with nbrt.graph() as copying:
        nbrt.copy(x, y)
    locked = np.full(4, 5, np.float32)
    locked.flags.writeable = False
    with pytest.raises(ArgumentError, match="writable array for 'x'"):
        g.replay(x=locked)
    with pytest.raises(ArgumentError, match="writable array for 'x'"):
        copying.replay(x=locked)
    copying.replay(y=locked)
    assert (first(locked), first(x)) == (5.0, 5.0)
    with nbrt.graph() as inner, pytest.raises(ArgumentError, match="writable array for 'x'"):
        g.replay(x=locked)
    assert len(inner) == 0

    @nbrt.graph
    def step(x: Any, y: Any) -> None:
        add.forall(4)(x, y, 1.0)

    step(z, y)
    with pytest.raises(NbrtError):
        step(locked, y)
    step(z, locked)
    assert (first(locked), first(z)) == (5.0, 8.0)


def test_a_number_of_another_type_or_range_is_refused(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no parameters of kernels")
    x = nbrt.zeros(4, "int32")
    with nbrt.graph() as g:
        choose.forall(4)(x, np.int8(3), True)
    number = next(name for name in g.parameters if name.endswith(".stream"))
    g.replay(**{number: np.int64(5)})
    assert first(x) == 5
    for wrong in (300, np.int64(300), -129):
        with pytest.raises(ArgumentOverflowError, match="from -128 to 127"):
            g.replay(**{number: wrong})
    with pytest.raises(ArgumentTypeError, match="True or False for 'is_wanted'"):
        g.replay(is_wanted=5)
    g.replay(**{number: 6, "is_wanted": False})
    assert first(x) == 5


def test_a_number_with_the_name_of_an_array_is_a_parameter(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no parameters of kernels")
    x, factor, stream = arrays(0, 1, 2)
    with nbrt.graph() as g:
        add.forall(4)(x, factor, 2.0)
        nbrt.copy(stream, x)
    assert set(g.parameters) == {"x", "factor", "stream_", "add_0.factor"}
    other = nbrt.zeros(4)
    g.replay(stream_=other, **{"add_0.factor": 3.0})
    assert (first(x), first(stream), first(other)) == (3.0, 2.0, 3.0)


def test_arrays_without_a_name_are_replaced_by_identity() -> None:
    x, other = arrays(0, 9)
    model = types.SimpleNamespace(w=nbrt.full(4, 1.0, "float32"))
    g = nbrt.graph().capture(lambda: add.forall(4)(x, model.w, 1.0), {})
    assert set(g.parameters) <= {"factor"}
    g.replay((model.w, other))
    assert first(x) == 9.0
    with pytest.raises(ArgumentError, match="captured calls got"):
        g.replay((other, model.w))


# -- nodes -----------------------------------------------------------------------------------------


def test_nodes_of_another_level_are_refused_as_after(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no control flow")
    x, y, z = arrays(0, 0, 0)
    flag = nbrt.full(1, 1, "int32")
    inside: list[Any] = []

    def body() -> None:
        with pytest.raises(ArgumentError, match="same body"):
            g.fill(y, 1.0, after=[outer])
        inside.append(g.fill(y, 2.0, after=()))
        inside.append(g.fill(z, 3.0, after=inside[0]))

    with nbrt.graph() as g:
        outer = g.fill(x, 1.0)
        nbrt.graphs.cond(flag, body)
        for node in inside:
            with pytest.raises(ArgumentError, match="same body"):
                g.fill(x, 4.0, after=[node])
        g.fill(x, 5.0, after=outer)
        wrong: Any
        for wrong in (3, "a", [1]):
            with pytest.raises(ArgumentTypeError, match="as after"):
                g.fill(x, 4.0, after=wrong)
    g.replay()
    assert [first(each) for each in (x, y, z)] == [5.0, 2.0, 3.0]


def test_fills_of_anything_but_arrays_with_numbers_are_refused() -> None:
    x, small = nbrt.zeros(4), nbrt.zeros(4, "int8")
    wrong: Any
    with nbrt.graph() as g:
        for wrong in (3, np.float32(3), None):
            with pytest.raises(ArgumentTypeError, match="to fill"):
                g.fill(wrong, 1)
        for wrong in ("s", object(), [1, 2]):
            with pytest.raises(NbrtError, match="to fill with"):
                g.fill(x, wrong)
        with pytest.raises(ArgumentOverflowError):
            g.fill(small, 300)
        g.fill(x, np.full((), 2.0, np.float32))
        g.fill(small, 3)
    g.replay()
    assert (len(g), first(x), first(small)) == (2, 2.0, 3)


def test_a_refused_host_read_leaves_no_node() -> None:
    x, y = arrays(0, 1)
    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
        with pytest.raises(CaptureError, match="wait"):
            nbrt.to_host(x)
    assert len(g) == 1


def test_control_flow_beyond_limits_is_refused(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no control flow")
    x, y = arrays(0, 1)
    flag = nbrt.full(1, 1, "int32")

    def nested(depth: int) -> None:
        if depth:
            nbrt.graphs.cond(flag, lambda: nested(depth - 1))
        else:
            add.forall(4)(x, y, 1.0)

    with pytest.raises(CaptureError, match="at most 32 deep"), nbrt.graph():
        nested(150)
    with pytest.raises(ArgumentError, match="at most 9223372036854775807 turns"):
        nbrt.graphs.while_(flag, lambda: None, limit=1 << 70)


# -- views and files -------------------------------------------------------------------------------


def test_arguments_of_views_and_files_are_checked(tmp_path: Path) -> None:
    x, y = arrays(0, 1)
    with nbrt.graph() as g:
        nbrt.copy(x, y)
    path, wrong = tmp_path / "g", _any(3)
    for call in (
        lambda: g.to_dot(wrong),
        lambda: g.save(path, values=wrong),
        lambda: g.save(path, values="x"),
        lambda: g.save(wrong),
        lambda: nbrt.graphs.load(wrong),
    ):
        with pytest.raises(ArgumentTypeError):
            call()
    g.save(path)
    with pytest.raises(ArgumentTypeError, match="Stream"):
        nbrt.graphs.load(path, stream=_any(4))
    with pytest.raises(FileNotFoundError):
        nbrt.graphs.load(tmp_path / "none")


def test_a_loaded_graph_has_the_edges_of_the_built_one(tmp_path: Path) -> None:
    x, y, z = arrays(0, 0, 0)
    with nbrt.graph() as g:
        a = g.fill(x, 1.0, after=())
        b = g.fill(y, 2.0, after=())
        c = g.copy(x, y, after=[a, b])
        origin, side = nbrt.current_stream(), nbrt.Stream()
        side.wait_stream(origin)
        with nbrt.stream(side):
            g.fill(z, 3.0, after=b)
        origin.wait_stream(side)
        g.fill(y, 4.0, after=c)
        g.copy(y, z)
    g.save(tmp_path / "g")
    others = dict(zip("xyz", arrays(0, 0, 0), strict=True))
    loaded = nbrt.graphs.load(tmp_path / "g", **others)
    assert set(loaded.edges) == set(g.edges)
    assert {("0", "2"), ("1", "2"), ("1", "3"), ("2", "4")} <= set(g.edges)
    loaded.replay()
    assert [first(each) for each in others.values()] == [2.0, 3.0, 3.0]


def test_the_code_of_a_graph_has_the_captured_values_of_the_capture(
    device: nbrt.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels, which read globals at the replay")
    x, y = arrays(0, 0)
    with nbrt.graph() as g:
        set_constant.forall(4)(x)
    monkeypatch.setitem(globals(), "CONSTANT", 5.0)
    with nbrt.graph() as both:
        g.replay()
        set_constant.forall(4)(y)
    both.replay()
    assert (first(x), first(y)) == (3.0, 5.0)
    for array in (x, y):
        nbrt.copy(array, nbrt.zeros(4))
    nbrt.synchronize()
    exec(both.code, both.namespace)
    nbrt.synchronize()
    assert (first(x), first(y)) == (3.0, 5.0)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    x, y = arrays(0, 1)
    with nbrt.graph() as g:
        nbrt.copy(x, y)
    path, damaged = tmp_path / "g", tmp_path / "damaged"
    g.save(path)
    data = path.read_bytes()
    for place, mask in itertools.product(range(len(data)), (0x55, 0xFF)):
        damaged.write_bytes(data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :])
        with contextlib.suppress(GraphError):  # some bytes have no meaning
            nbrt.graphs.load(damaged)
    with zipfile.ZipFile(path) as file:
        content = json.loads(file.read("graph.json"))
    for key in content:
        if key in ("format", "private_bytes", "nbrt"):
            continue
        for value in (None, [{}], [[1]], {"a": 1}):
            with zipfile.ZipFile(damaged, "w") as file:
                file.writestr("graph.json", json.dumps(content | {key: value}))
            with pytest.raises(NbrtError):
                nbrt.graphs.load(damaged)


def _any(value: Any) -> Any:
    return value


def test_a_stream_is_given_by_name(device: nbrt.Device) -> None:
    with nbrt.graph() as g:
        nbrt.zeros(4)
    with pytest.raises(ArgumentTypeError, match=r"a stream goes by name: replay\(stream=\.\.\.\)"):
        g.replay(nbrt.Stream(device))  # type: ignore[arg-type]
