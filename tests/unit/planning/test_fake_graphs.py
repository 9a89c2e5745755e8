"""Graphs on fake devices: captured as on real ones, replayed without values.

The oracle is a real CPU device, which runs the same programs.
"""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import (
    ArgumentError,
    CaptureError,
    DeviceMismatchError,
    FakeReadError,
    GraphError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = pytest.mark.parametrize("kind", ["cpu", "cuda"])


@nbrt.kernel
def axpy(a: float, x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


def chain(x: Any, y: Any) -> nbrt.Graph:
    """Arrays that live one after the other, on one stream."""
    with nbrt.graph() as g:
        for _ in range(4):
            t = nbrt.zeros(3000)
            axpy.forall(1000)(2.0, x, t[:1000])
            nbrt.copy(y, t[:1000])
            del t
    return g


def streams(x: Any, y: Any) -> nbrt.Graph:
    """Two streams, one of which joins."""
    side = nbrt.Stream()
    with nbrt.graph() as g:
        axpy.forall(1000)(2.0, x, y)
        side.wait_stream(nbrt.current_stream())
        with nbrt.stream(side):
            t = nbrt.full(1000, 3.0, "float32")
            axpy.forall(1000)(2.0, x, t)
        nbrt.current_stream().wait_stream(side)
        nbrt.copy(y, t)
        side.call(len, "nothing")
        nbrt.current_stream().wait_stream(side)
    return g


def draws(x: Any, y: Any) -> nbrt.Graph:
    """Random numbers of two generators."""
    other = nbrt.random.Generator(5, device=nbrt.current_device())
    with nbrt.graph() as g:
        nbrt.default_generator().random(out=x, dtype="float32")
        other.standard_normal(out=y, dtype="float32")
        z = nbrt.random.rand(7)
        nbrt.copy(x[:7], z)
    return g


def inner_graph(x: Any, y: Any) -> nbrt.Graph:
    """The replay of another graph inside of a graph."""
    with nbrt.graph() as inner:
        nbrt.default_generator().random(out=x, dtype="float32")
        axpy.forall(1000)(2.0, x, y)
    with nbrt.graph() as g:
        inner.replay()
        inner.replay()
        axpy.forall(1000)(3.0, x, y)
    return g


def control(x: Any, y: Any) -> nbrt.Graph:
    """Branches and loops whose flags are 0 on the real device, too."""
    flag = nbrt.zeros(1, "int32")
    with nbrt.graph() as g:
        nbrt.graphs.while_(flag, lambda: axpy.forall(1000)(2.0, x, y))
        nbrt.graphs.cond(flag, lambda: nbrt.default_generator().random(out=x, dtype="float32"))
        nbrt.copy(y, x)
    return g


PROGRAMS = pytest.mark.parametrize("program", [chain, streams, draws, inner_graph, control])


def run(program: Callable[..., nbrt.Graph], device: str) -> tuple[str, ...]:
    """Run a program and two replays; return what does not depend on values."""
    nbrt.memory.reset_peak_memory_stats(device)
    before = nbrt.memory_stats(device).get("allocated_bytes.all.current", 0)
    nbrt.manual_seed(3, device)
    with nbrt.device(device):
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        g = program(x, y)
        start = nbrt.random.get_state().tolist()
        g.replay()
        g.replay(x=x, y=y)
        state = nbrt.random.get_state().tolist()
    stats = nbrt.memory_stats(device)
    peak = stats["allocated_bytes.all.peak"] - before
    found = repr(g), g.code, repr(g.memory_plan), str(g.edges), str(g.parameters)
    ids = re.compile(r"stream_\d+|from_id.\d+.|  +\d+  ")  # numbers of streams
    return *(ids.sub("", each) for each in found), f"{start} {state} {peak}"


@PROGRAMS
def test_a_fake_cpu_captures_as_a_real_one(program: Any) -> None:
    real = run(program, "cpu:2")
    with nbrt.fake("cpu:2"):
        fake = run(program, "cpu:2")
    assert fake == real


@PROGRAMS
def test_a_fake_gpu_captures_and_draws_as_a_cpu(program: Any) -> None:
    real = run(program, "cpu:0")
    with nbrt.fake("cuda"):
        fake = run(program, "cuda:0")
    assert fake[-1].rsplit(" ", 1)[0] == real[-1].rsplit(" ", 1)[0]
    assert fake[-3:-1] == real[-3:-1]


@PROGRAMS
@KINDS
def test_the_code_of_a_graph_runs(program: Any, kind: str) -> None:
    with nbrt.fake(kind), nbrt.device(f"{kind}:0"):
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        g = program(x, y)
        if program is control:
            with pytest.raises(FakeReadError):  # outside of a graph the host reads the flags
                exec(g.code, g.namespace)
            return
        start = nbrt.default_generator().get_state()
        exec(g.code, g.namespace)
        moved = nbrt.default_generator().get_state()
        nbrt.default_generator().set_state(start)
        g.replay()
        assert nbrt.default_generator().get_state().tolist() == moved.tolist()


@KINDS
def test_the_plan_counts_the_nodes_of_replays(kind: str) -> None:
    with nbrt.fake(kind) as plan, nbrt.device(f"{kind}:0"):
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        g = chain(x, y)
        assert not plan.launches
        for _ in range(3):
            g.replay()
    assert plan.launches == {"axpy": 12}
    assert [(each.copies, each.nbytes) for each in plan.transfers] == [(12, 12 * 4000)]


@KINDS
def test_host_functions_run_in_replays(kind: str) -> None:
    seen: list[Any] = []
    with nbrt.fake(kind), nbrt.device(f"{kind}:0"):
        x, y = nbrt.zeros(8), nbrt.zeros(8)
        with nbrt.graph() as g:
            nbrt.current_stream().call(seen.append, x)
        assert not seen
        g.replay()
        g.replay(x=y)
        g[0].enable(False)
        g.replay()
    assert [(each.address, each.device) for each in seen] == [
        (x.address, x.device), (y.address, y.device)
    ]  # fmt: skip


@KINDS
def test_replaced_arrays_are_checked(kind: str) -> None:
    with nbrt.fake(kind, devices=2), nbrt.device(f"{kind}:0"):
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        g = chain(x, y)
        g.replay((x, nbrt.zeros(1000)), y=nbrt.zeros(1000))
        with pytest.raises(ArgumentError, match="shape"):
            g.replay(x=nbrt.zeros(999))
        with pytest.raises(ArgumentError, match="float64"):
            g.replay(x=nbrt.zeros(1000, "float64"))
        with pytest.raises(DeviceMismatchError, match=f"{kind}:1"):
            g.replay(x=nbrt.zeros(1000, device=f"{kind}:1"))
        g.replay(a=5.0)
        with pytest.raises(ArgumentError, match="name"):
            g.replay(b=5.0)


@KINDS
def test_updates_and_the_end_of_a_graph(kind: str) -> None:
    with nbrt.fake(kind), nbrt.device(f"{kind}:0"):
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        g, other = chain(x, y), chain(y, x)
        g.update(other)
        g.replay()
        with pytest.raises(GraphError, match="topology"):
            g.update(draws(x, y))
        assert g.difference(other) is None
        assert "axpy" in g.to_dot()
        assert list(g.profile()) == [0.0] * len(g)
        g.reset()
        with pytest.raises(GraphError, match="reset"):
            g.replay()


def test_branches_and_loops_are_not_run() -> None:
    with nbrt.fake("cuda") as plan, nbrt.device("cuda:0"):
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        g = control(x, y)
        g.replay()
        with pytest.raises(FakeReadError):
            nbrt.graphs.cond(nbrt.zeros(1, "bool"), lambda: None)
    assert not plan.launches


def test_flags_that_the_host_reads_follow_the_policy() -> None:
    ran: list[str] = []
    with nbrt.fake("cuda", reads="zeros"), nbrt.device("cuda:0"):
        flag = nbrt.full(1, True)
        nbrt.graphs.cond(flag, lambda: ran.append("then"), lambda: ran.append("otherwise"))
        nbrt.graphs.while_(flag, lambda: ran.append("turn"))
        nbrt.graphs.switch(nbrt.zeros(1, "int32"), [lambda: ran.append("first")])
    assert ran == ["otherwise", "first"]


def test_copies_to_the_host_read_in_replays() -> None:
    into = np.ones(8, np.float32)
    with nbrt.fake("cuda", reads="zeros"), nbrt.device("cuda:0"):
        x = nbrt.zeros(8)
        with nbrt.graph() as g:
            nbrt.copy(into, x)
        assert into.tolist() == [1.0] * 8
        g.replay()
    assert into.tolist() == [0.0] * 8


def test_graphs_of_a_fake_gpu_keep_its_rules() -> None:
    with nbrt.fake("cuda", devices=2), nbrt.device("cuda:0"):
        with (
            pytest.raises(CaptureError, match="default stream"),
            nbrt.graph(nbrt.default_stream("cuda:0")),
        ):
            pass  # fmt: skip
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        g = chain(x, y)
        assert g.memory_plan is None  # the driver keeps the addresses of the capture
        with pytest.raises(DeviceMismatchError):
            g.replay(stream=nbrt.Stream("cuda:1"))


@pytest.mark.gpu
@PROGRAMS
def test_a_fake_gpu_captures_as_a_real_one(program: Any, cuda_interface: Any) -> None:
    del cuda_interface
    run(program, "cuda:0")  # the first launch compiles, which keeps arguments alive for a while
    gc.collect()
    real = run(program, "cuda:0")
    with nbrt.fake("cuda"):
        fake = run(program, "cuda:0")
    assert fake == real


def test_saved_graphs_load(tmp_path: Any) -> None:
    with nbrt.fake("cuda"), nbrt.device("cuda:0"):
        x, y = nbrt.zeros(1000), nbrt.zeros(1000)
        chain(x, y).save(tmp_path / "graph", values=False)
        loaded = nbrt.graphs.load(tmp_path / "graph", x=x, y=y)
        loaded.replay()
        assert [each["kind"] for each in loaded.nodes][:3] == ["fill", "launch", "copy"]
