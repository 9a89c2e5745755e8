"""The search for the largest argument that fits."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError, OutOfMemoryError
from nbrt.planning.search import largest

MIB = 1 << 20


def _weights_and(batch: int, unit: int = MIB) -> Any:
    """Allocate a GiB, and a number of units for each element of the batch."""
    return nbrt.empty(1 << 30, "uint8"), nbrt.empty(max(batch, 0) * unit, "uint8")


@pytest.fixture(scope="module")
def plan() -> nbrt.MemoryPlan:
    return nbrt.plan(_weights_and, 4, gpu="L4")


def test_the_plan_of_a_function(plan: nbrt.MemoryPlan) -> None:
    assert plan.peak == (1 << 30) + 4 * MIB
    assert plan.gpu == "L4"
    assert {holder.function for holder in plan.holders} == {"_weights_and"}


def test_the_largest_value_fits_and_the_next_does_not(plan: nbrt.MemoryPlan) -> None:
    found = plan.largest("batch", 1, 1 << 20)
    assert nbrt.plan(_weights_and, found, gpu="L4").fits()
    assert not nbrt.plan(_weights_and, found + 1, gpu="L4").fits()


def test_another_device(plan: nbrt.MemoryPlan) -> None:
    assert plan.largest("batch", 1, 10_000, gpu="3GiB") == 2048


def test_other_parameters_keep_their_values() -> None:
    plan = nbrt.plan(_weights_and, batch=1, unit=2 * MIB, gpu="L4")
    assert plan.largest("batch", 1, 10_000, gpu="3GiB") == 1024
    assert plan.largest("unit", 0, 1 << 40, gpu="3GiB") == 2 << 30


def test_keywords_of_any_name_can_be_searched() -> None:
    def program(**options: int) -> None:
        nbrt.empty(options["size"], "uint8")

    plan = nbrt.plan(program, size=8)
    assert plan.largest("size", 0, 1 << 40, gpu="1GiB") == 1 << 30


def test_an_error_if_nothing_fits(plan: nbrt.MemoryPlan) -> None:
    with pytest.raises(
        ArgumentError, match=r"batch of at least 5 to fit, got none: 1GiB: no, .* short"
    ):
        plan.largest("batch", 5, 10, gpu="1GiB")


def test_wrong_arguments(plan: nbrt.MemoryPlan) -> None:
    with pytest.raises(
        ArgumentError, match=r"parameter of _weights_and \(batch, unit\), got 'bat'"
    ):
        plan.largest("bat", 1, 2)
    with pytest.raises(ArgumentError, match="lo of at most hi, got lo=3 and hi=2"):
        plan.largest("batch", 3, 2)


def test_an_exception_of_the_function_passes() -> None:
    def fails(batch: int) -> None:
        if batch > 2:
            raise ZeroDivisionError

    plan = nbrt.plan(fails, 1)
    with pytest.raises(ZeroDivisionError):
        plan.largest("batch", 1, 5)


class _Plan:
    """A plan of a program that needs `needed` bytes of `limit`."""

    def __init__(self, needed: int, limit: int) -> None:
        self.needed, self.limit = needed, limit

    def fit(self, device: object) -> Any:
        if self.needed > 2 * self.limit:
            raise OutOfMemoryError("a limit")
        return type("Fit", (), {"fits": self.needed <= self.limit})()


@given(lo=st.integers(-50, 50), span=st.integers(0, 200), limit=st.integers(-60, 300))
def test_bisection_finds_the_largest(lo: int, span: int, limit: int) -> None:
    runs = []

    def run(changes: dict[str, int]) -> Any:
        runs.append(changes["n"])
        return _Plan(changes["n"], limit)

    hi = lo + span
    fitting = [value for value in range(lo, hi + 1) if value <= limit]
    if limit >= 0 and fitting:
        assert largest(run, "n", lo, hi, None) == fitting[-1]
    elif not fitting:
        with pytest.raises(ArgumentError, match="got none"):
            largest(run, "n", lo, hi, None)
    assert len(runs) <= 2 + span.bit_length()
    assert len(set(runs)) == len(runs)


async def _coroutine() -> None:
    nbrt.zeros(1 << 20)


def _generator() -> Any:
    yield nbrt.zeros(1 << 20)


async def _asynchronous_generator() -> Any:
    yield nbrt.zeros(1 << 20)


class _CalledLater:
    async def __call__(self) -> None:
        nbrt.zeros(1 << 20)


@pytest.mark.parametrize(
    "function",
    [
        3,
        None,
        _coroutine,
        _generator,
        _asynchronous_generator,
        _CalledLater(),
        functools.partial(_generator),
        lambda: _coroutine(),
    ],
)
def test_functions_that_would_not_run_are_refused(function: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"expected a function"):
        nbrt.plan(function)


def test_parameters_of_several_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'sizes'"):
        nbrt.plan(lambda *sizes: nbrt.empty(sizes), 3).largest("sizes", 1, 10)
    found = nbrt.plan(lambda **options: nbrt.empty(options["options"]), options=3)
    assert found.largest("options", 1, 10) == 10


def test_plans_that_were_read_have_no_function(plan: nbrt.MemoryPlan) -> None:
    for read in (nbrt.MemoryPlan.from_json(plan.to_json()), pickle.loads(pickle.dumps(plan))):
        with pytest.raises(ArgumentError, match="read from JSON or a pickle"):
            read.largest("batch", 1, 8)
