"""Graphs with control flow and random numbers: as the captured calls would have run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.graph_arrays import add, arrays, host
from nbrt.errors import (
    CaptureError,
)
from nbrt_kernels.random import uniform4

pytestmark = pytest.mark.usefixtures("on_device")


@nbrt.kernel
def count_down(flag: Any, x: Any) -> None:
    flag[0] -= 1
    x[0] += 1.0


@pytest.mark.parametrize("is_captured", [False, True])
def test_cond_runs_one_branch(is_captured: bool) -> None:
    x, y = arrays(0, 2)
    flag = nbrt.full(1, 1, "int32")

    def step() -> None:
        nbrt.graphs.cond(flag, lambda: add.forall(4)(x, y, 1.0), lambda: add.forall(4)(x, y, 100.0))

    run = step
    if is_captured:
        with nbrt.graph() as g:
            step()
        run = g.replay
    run()
    nbrt.copy(flag, nbrt.full(1, 0, "int32"))
    run()
    assert host(x) == [202.0] * 4


@pytest.mark.parametrize("is_captured", [False, True])
def test_while_runs_its_body_until_the_flag_is_0(is_captured: bool) -> None:
    x = nbrt.zeros(1)
    flag = nbrt.full(1, 5, "int32")

    def step() -> None:
        nbrt.graphs.while_(flag, lambda: count_down[1, 1](flag, x))

    if is_captured:
        with nbrt.graph() as g:
            step()
        g.replay()
        g.replay()
    else:
        step()
    assert (host(x), host(flag)) == ([5.0], [0])


def test_switch_runs_the_branch_of_a_number() -> None:
    x, y = arrays(0, 2)
    index = nbrt.full(1, 0, "int32")
    with nbrt.graph() as g:
        nbrt.graphs.switch(index, [lambda k=k: add.forall(4)(x, y, float(k)) for k in (1, 10, 100)])
    for number, expected in ((0, 2.0), (2, 202.0), (1, 222.0), (7, 222.0)):
        nbrt.copy(index, nbrt.full(1, number, "int32"))
        g.replay()
        assert host(x) == [expected] * 4


@pytest.mark.parametrize("kind", ["cond", "while", "switch", "nested"])
def test_a_capture_goes_on_after_an_exception_in_a_body(kind: str) -> None:
    x, y = arrays(0, 2)
    flag = nbrt.full(1, 1, "int32")
    on = nbrt.full(1, 1, "int32")

    def fail() -> None:
        add.forall(4)(x, y, 1000.0)
        raise ValueError("in the body")

    def run() -> None:
        if kind == "cond":
            nbrt.graphs.cond(flag, lambda: add.forall(4)(x, y, 500.0), fail)
        elif kind == "while":
            nbrt.graphs.while_(flag, fail, limit=3)
        else:
            nbrt.graphs.switch(flag, [fail])

    def caught() -> None:
        with pytest.raises(ValueError, match="in the body"):
            run()
        add.forall(4)(x, y, 10.0)

    with nbrt.graph() as g:
        add.forall(4)(x, y, 1.0)
        if kind == "nested":
            nbrt.graphs.cond(on, caught)
        else:
            caught()
        nbrt.graphs.while_(flag, lambda: count_down[1, 1](flag, x), limit=3)
    kinds = ["launch", "if" if kind == "nested" else "launch", "while"]
    assert [g[number].kind for number in range(len(g))] == kinds
    for _ in range(2):
        g.replay()
    nbrt.synchronize()
    assert (host(x), host(flag)) == ([45.0, 44.0, 44.0, 44.0], [0])


def test_replays_continue_the_stream_of_a_generator(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    a, b = nbrt.Generator(1), nbrt.Generator(2)
    eager_a, eager_b = nbrt.Generator(1), nbrt.Generator(2)
    x, y = nbrt.zeros(33), nbrt.zeros(5, "float64")

    def draw(first: Any, second: Any, x: Any, y: Any) -> None:
        first.random(out=x, dtype="float32")
        second.standard_normal(out=y)
        first.standard_normal(7, dtype="float32")

    with nbrt.graph() as g:
        draw(a, b, x, y)
    with nbrt.graph() as h:
        a.random(out=x, dtype="float32")
    assert a.get_offset() == 0
    for turn in range(3):
        p, q = nbrt.zeros(33), nbrt.zeros(5, "float64")
        g.replay()
        draw(eager_a, eager_b, p, q)
        assert (host(x), host(y)) == (host(p), host(q))
        h.replay()
        assert host(x) == host(eager_a.random(33, dtype="float32"))
        assert host(a.random(3)) == host(eager_a.random(3))
        if turn == 1:
            a.manual_seed(99)
            eager_a.manual_seed(99)
    assert (a.state, b.state) == (eager_a.state, eager_b.state)


def test_each_turn_of_a_loop_draws_its_own_numbers(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    generator, eager = nbrt.Generator(1), nbrt.Generator(1)
    total, step = nbrt.zeros(4), nbrt.zeros(4)
    x, flag = nbrt.zeros(1), nbrt.full(1, 3, "int32")

    def body() -> None:
        generator.random(out=step, dtype="float32")
        add.forall(4)(total, step, 1.0)
        count_down[1, 1](flag, x)

    with nbrt.graph() as g:
        generator.random(out=step, dtype="float32")
        nbrt.graphs.while_(flag, body)
        generator.random(out=step, dtype="float32")
    g.replay()
    eager.random(4, dtype="float32")
    expected = np.zeros(4, np.float32)
    for _ in range(3):
        expected += nbrt.to_host(eager.random(4, dtype="float32"))
    last = host(eager.random(4, dtype="float32"))
    assert host(total) == expected.tolist()
    assert host(step) == last
    assert generator.state == eager.state


def test_the_state_of_a_generator_is_refused_during_a_capture(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    generator = nbrt.Generator(1)
    with nbrt.graph():
        generator.random(4)
        for call in (generator.get_offset, generator.get_state, lambda: generator.manual_seed(3)):
            with pytest.raises(CaptureError, match="state of a generator"):
                call()
    assert generator.get_offset() == 0


def test_a_seed_in_a_capture_is_refused(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    generator = nbrt.Generator(1)
    with nbrt.graph():
        for call in (
            lambda: generator.manual_seed(3),
            lambda: generator.set_offset(8),
            lambda: generator.advance(4),
            lambda: generator.set_state(bytes(16)),
        ):
            with pytest.raises(CaptureError, match="change of the state"):
                call()
    assert (generator.initial_seed(), generator.get_offset()) == (1, 0)


@nbrt.kernel
def draw_words(x: Any, state: Any, before: Any) -> None:
    i = cuda.grid(1)
    if 4 * i < x.size:
        a, b, c, d = uniform4(state[0], state[1] + before, i)
        x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3] = a, b, c, d


def test_kernels_draw_the_next_words_of_a_generator(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels and has no argument types")
    generator, eager = nbrt.Generator(1), nbrt.Generator(1)
    x, y, flag, turns = nbrt.zeros(8), nbrt.zeros(8), nbrt.full(1, 2, "int32"), nbrt.zeros(1)

    def body() -> None:
        draw_words[1, 2](x, *generator.kernel_state(8))
        count_down[1, 1](flag, turns)

    with nbrt.graph() as inner:
        draw_words[1, 2](y, *generator.kernel_state(8))
    with nbrt.graph() as g:
        generator.random(4, dtype="float32")
        draw_words[1, 2](x, *generator.kernel_state(8))
        nbrt.graphs.while_(flag, body)
        inner.replay()
    for turn in range(2):
        g.replay()
        eager.random(4, dtype="float32")
        last = [host(eager.random(8, dtype="float32")) for _ in range(3 if turn == 0 else 1)]
        assert host(x) == last[-1]
        assert host(y) == host(eager.random(8, dtype="float32"))
        draw_words[1, 2](x, *generator.kernel_state(8))
        assert host(x) == host(eager.random(8, dtype="float32"))
    assert generator.state == eager.state
