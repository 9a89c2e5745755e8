"""`graph_equals_eager`: passes for functions of captured work, and names what differs in others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.memory_races import N, add, double
from nbrt.errors import ArgumentError, CaptureError
from nbrt.testing import GraphDifferenceError, graph_equals_eager

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def on_device(device: nbrt.Device) -> Iterator[None]:
    with nbrt.device(device):
        yield


def numbers(seed: int, size: int = N) -> Any:
    return nbrt.asarray(np.random.default_rng(seed).normal(size=size))


def test_launches_copies_and_results_are_equal() -> None:
    def step(x: Any, y: Any, unused: Any, scale: float) -> dict[str, Any]:
        main, side = nbrt.current_stream(), nbrt.Stream()
        temporary = nbrt.full(N, scale)
        side.wait_stream(main)
        with nbrt.stream(side):
            double.forall(N)(x)
        add.forall(N)(temporary, y)
        main.wait_stream(side)
        add.forall(N)(y, temporary)
        total = nbrt.zeros(N)
        add.forall(N)(total, y)
        return {"sums": [total], "none": None}

    graph_equals_eager(step, numbers(1), numbers(2), numbers(3), 2.5)
    others = numbers(4), numbers(5), numbers(6), 2.5
    graph_equals_eager(step, numbers(1), numbers(2), numbers(3), 2.5, others=others)


def test_views_of_one_array_are_no_parameters() -> None:
    def step(x: Any, part: Any) -> None:
        double.forall(N)(x)
        add.forall(part.size)(part, part)

    x = numbers(1)
    graph_equals_eager(step, x, x[::2])


def test_draws_of_several_generators_are_equal(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    other = nbrt.Generator(7, device=device)

    def step(x: Any) -> Any:
        nbrt.default_generator().random(out=x)
        return other.normal(size=5), nbrt.default_generator().integers(0, 100, 7)

    graph_equals_eager(step, numbers(1), generators=[other])
    with pytest.raises(GraphDifferenceError, match=r"the result\[0\] after replay 1"):
        graph_equals_eager(step, numbers(1))


def test_control_flow_is_equal(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no control flow")

    def step(x: Any, flag: Any) -> None:
        nbrt.graphs.cond(flag, lambda: double.forall(N)(x), lambda: add.forall(N)(x, x))

    for value in (False, True):
        graph_equals_eager(step, numbers(1), nbrt.full(1, value))


def test_work_of_the_host_is_found() -> None:
    counted = [0.0]

    def step(x: Any) -> None:
        counted[0] += 1.0
        nbrt.copy(x, nbrt.full(N, counted[0]))

    with pytest.raises(
        GraphDifferenceError,
        match=r"argument 0 after replay 1 as in eager calls, got .*4\.0.* instead of .*1\.0.* at "
        r"\(0,\), and 999 further differences in 1000 elements",
    ):
        graph_equals_eager(step, numbers(1))


def test_arrays_from_outside_are_no_arguments_but_change_them() -> None:
    state = nbrt.zeros(N)

    def step(x: Any) -> None:
        add.forall(N)(state, x)
        nbrt.copy(x, state)

    with pytest.raises(GraphDifferenceError, match="argument 0 after replay 1"):
        graph_equals_eager(step, numbers(1))


def test_a_state_of_a_generator_that_differs_is_named(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    other, calls = nbrt.Generator(7, device=device), []

    def step(x: Any) -> None:
        calls.append(x)
        if len(calls) < 4:
            other.random(3)

    with pytest.raises(
        GraphDifferenceError, match="generator 0 after replay 1 in the state of eager calls, seed 7"
    ):
        graph_equals_eager(step, numbers(1), generators=[other])


def test_what_cannot_be_captured_is_refused() -> None:
    with pytest.raises(CaptureError, match="can be captured"):
        graph_equals_eager(lambda x: nbrt.to_host(x) is None, nbrt.zeros(N))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="1 replay"):
        graph_equals_eager(double.forall(N), nbrt.zeros(N), replays=0)
    with pytest.raises(ArgumentError, match="expected 1 other arguments, got 0"):
        graph_equals_eager(double.forall(N), nbrt.zeros(N), others=())
