"""Graphs in files: loaded in another process they give the same bits; what is local is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers import graph_kernels
from helpers.graph_kernels import add, count_down, scale
from nbrt.errors import ArgumentError, ArgumentTypeError, GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.graphs import Graph


class Case:
    """A program with all kinds of nodes that a file can hold."""

    def __init__(self) -> None:
        self.stream, self.other = nbrt.Stream("cpu:0"), nbrt.Stream("cpu:0")
        self.generator = nbrt.Generator(5, device="cpu:0")
        self.x = nbrt.asarray(np.arange(24, dtype=np.float32).reshape(4, 6), device="cpu:0")
        self.y = nbrt.full(24, 0.5, "float32", device="cpu:0")
        with nbrt.graph(self.stream) as self.inner:
            self.generator.standard_normal(out=self.y, dtype="float32")

    def capture(self) -> Graph:
        with nbrt.graph(self.stream) as g:
            x, y, flag = self.x, self.y, nbrt.full(1, 3, "int32")
            self.generator.standard_normal(out=x, dtype="float32")
            self.other.wait_stream(self.stream)
            with nbrt.stream(self.other):
                scale[1, 32](x[1:3].reshape(-1), np.float32(0.1))
            part = self.generator.shard((8, 6), (slice(2, 6), slice(0, 6)))
            drawn = part.random(dtype="float32").reshape(-1)
            add[1, 32](y, drawn)
            self.stream.wait_stream(self.other)
            nbrt.copy(y[3:9], x[:, 2:4].T[:, :3].reshape(-1)[:6])
            nbrt.copy(y[:3], np.array([1.0, np.inf, -0.0], np.float32))

            def turn() -> None:
                add[1, 32](y, self.generator.random(24, dtype="float32"))
                count_down[1, 1](flag)  # noqa: F821  # deleted below, when the capture is done

            nbrt.graphs.while_(flag, turn, limit=10)
            nbrt.graphs.cond(flag, lambda: None, lambda: scale[1, 32](y, 2.0))
            nbrt.graphs.switch(flag, [lambda: scale[1, 32](y, 3.0)])
            del drawn, flag
        return g

    def bits(self) -> list[bytes]:
        nbrt.synchronize("cpu:0")
        return [self.x.tobytes(), self.y.tobytes()]


@pytest.fixture
def case() -> Iterator[Case]:
    with nbrt.device("cpu:0"):
        yield Case()


def test_a_loaded_graph_gives_the_same_bits(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "g.nbrt"
    graph = case.capture()
    graph.save(path)
    x, y = nbrt.asarray(case.x, copy=True), nbrt.asarray(case.y, copy=True)
    loaded = nbrt.graphs.load(path, x=x, y=y)
    assert set(loaded.parameters) >= {"x", "y"}
    for _ in range(2):
        graph.replay(stream=case.stream)
        loaded.replay()
    assert case.bits() == [x.tobytes(), y.tobytes()]


def test_a_loaded_graph_equals_the_captured_one(case: Case, tmp_path: Path) -> None:
    graph = case.capture()
    graph.save(tmp_path / "g")
    loaded = nbrt.graphs.load(tmp_path / "g")
    found = graph.difference(loaded)
    assert found is None, str(found)


CHILD = """
import sys
import nbrt
with nbrt.device("cpu:0"):
    g = nbrt.graphs.load(sys.argv[1])
    g.replay()
    g.replay(factor=0.1) if "factor" in g.parameters else g.replay()
    nbrt.synchronize("cpu:0")
    for name in ("x", "y"):
        (array,) = [a for n, a in g.namespace.items() if n == name]
        print(name, array.tobytes().hex())
"""


def test_another_process_loads_values_and_generators(case: Case, tmp_path: Path) -> None:
    graph = case.capture()
    graph.save(tmp_path / "g")
    graph.replay(stream=case.stream)
    graph.replay(stream=case.stream)
    x, y = (each.hex() for each in case.bits())
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "g")],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["x", x, "y", y]


def test_an_array_without_values_must_be_given(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "g"
    case.capture().save(path, values=["y"])
    with pytest.raises(ArgumentError, match=r"no array for x"):
        nbrt.graphs.load(path)
    with pytest.raises(ArgumentError, match=r"arrays for z, which the graph does not have"):
        nbrt.graphs.load(path, x=case.x, z=case.x)
    with pytest.raises(ArgumentError, match=r"expected shape \(4, 6\), float32 .*got \(24,\)"):
        nbrt.graphs.load(path, x=case.y)
    with pytest.raises(ArgumentTypeError, match="expected an array for 'x', got int"):
        nbrt.graphs.load(path, x=3)
    nbrt.graphs.load(path, x=case.x).replay()
    nbrt.synchronize("cpu:0")
    with pytest.raises(ArgumentError, match=r"names of arrays of the graph \(.*\), got w"):
        case.capture().save(path, values=["w"])


def test_disabled_nodes_stay_disabled(case: Case, tmp_path: Path) -> None:
    with nbrt.graph(case.stream) as g:
        y = case.y
        scale[1, 32](y, 3.0)
        scale[1, 32](y, 5.0)
    g[0].enable(False)
    g.save(tmp_path / "g")
    z = nbrt.full(24, 1.0, "float32")
    loaded = nbrt.graphs.load(tmp_path / "g", y=z)
    assert [each["is_enabled"] for each in loaded.nodes] == [False, True]
    loaded.replay()
    nbrt.synchronize("cpu:0")
    assert z.tolist() == [5.0] * 24
    del y


def a_host_call(case: Case) -> None:
    case.stream.call(print, "x")


def a_local_kernel(case: Case) -> None:
    @nbrt.kernel
    def local(x: Any) -> None:
        x[0] = 1.0

    local[1, 1](case.y)


class OtherLibrary:
    """Memory of another library."""

    def __init__(self) -> None:
        self.memory = np.zeros(4, np.float32)
        self.__array_interface__ = self.memory.__array_interface__


def memory_of_another_library(case: Case) -> None:
    scale[1, 32](np.asarray(OtherLibrary()), 2.0)


def a_graph_that_draws(case: Case) -> None:
    case.inner.replay(stream=case.stream)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (memory_of_another_library, r"an array in memory of another library \(.*OtherLibrary\)"),
        (a_graph_that_draws, r"got a graph inside that draws in node 0.graph.0"),
        (a_host_call, r"the host function print in node 0 \(captured at test_saving.py:\d+\)"),
        (a_local_kernel, r"kernels that a module has, got .*a_local_kernel.<locals>.local in node"),
    ],
)
def test_what_lives_in_this_process_is_refused_by_name(
    case: Case, tmp_path: Path, program: Callable[[Case], None], text: str
) -> None:
    path = tmp_path / "g"
    with nbrt.graph(case.stream) as g:
        program(case)
    with pytest.raises(GraphError, match=text):
        g.save(path)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_kernel_is_refused(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g"
    case.capture().save(path)
    monkeypatch.setattr(graph_kernels, "STEP", 2)
    with pytest.raises(GraphError, match=r"count_down as it was when the graph was saved"):
        nbrt.graphs.load(path)
    monkeypatch.undo()
    monkeypatch.setattr(graph_kernels, "scale", graph_kernels.add)
    with pytest.raises(GraphError, match=r"graph_kernels.scale as it was"):
        nbrt.graphs.load(path)
    monkeypatch.delattr(graph_kernels, "scale")
    with pytest.raises(GraphError, match=r"expected the kernel scale in the module"):
        nbrt.graphs.load(path)


def test_a_file_has_the_captured_values_of_the_capture(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g"
    g = case.capture()
    monkeypatch.setattr(graph_kernels, "STEP", 2)
    g.save(path)
    with pytest.raises(GraphError, match=r"count_down as it was when the graph was saved"):
        nbrt.graphs.load(path)
    monkeypatch.undo()
    nbrt.graphs.load(path)


def rewritten(path: Path, **changes: Any) -> None:
    """Change entries of the JSON of a file."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    parts["graph.json"] = json.dumps(json.loads(parts["graph.json"]) | changes).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 2}, "version 1, got version 2"),
        ({"python": "2.7"}, "got one from Python 2.7"),
        ({"format": "other"}, "which cannot be read"),
    ],
)
def test_other_versions_are_refused(
    case: Case, tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    path = tmp_path / "g"
    case.capture().save(path)
    rewritten(path, **changes)
    with pytest.raises(GraphError, match=re.escape(text)):
        nbrt.graphs.load(path)


def test_files_without_a_graph_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "g"
    path.write_bytes(b"no zip")
    with pytest.raises(GraphError, match="which cannot be read"):
        nbrt.graphs.load(path)


def test_a_file_has_no_pickled_objects(case: Case, tmp_path: Path) -> None:
    case.capture().save(tmp_path / "g")
    with zipfile.ZipFile(tmp_path / "g") as file:
        names = file.namelist()
        content = json.loads(file.read("graph.json"))
    assert {Path(name).suffix for name in names} == {".json", ".npy"}
    assert [each["name"] for each in content["kernels"]] == ["scale", "add", "count_down"]
    assert content["private_bytes"] > 0
