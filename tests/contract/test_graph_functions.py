"""Captured functions: which calls share a graph, and what they return."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.graph_arrays import add
from nbrt.errors import ArgumentTypeError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("on_device")


@nbrt.kernel
def divide(x: Any, divisor: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] = 1.0 / divisor if divisor != 0 else np.copysign(np.float32(1), divisor)


def first(array: Any) -> float:
    return float(nbrt.to_host(array)[0])


def full(value: float) -> Any:
    return nbrt.full(4, value, "float32")


# -- which calls share a graph ---------------------------------------------------------------------


def test_arrays_in_containers_are_replaced() -> None:
    @nbrt.graph
    def add_all(y: Any, *xs: Any) -> None:
        for x in xs:
            add.forall(4)(y, x, 1.0)

    @nbrt.graph
    def add_list(y: Any, xs: list[Any], *, more: dict[str, Any]) -> None:
        for x in [*xs, *more.values()]:
            add.forall(4)(y, x, 1.0)

    y, z = full(0), full(0)
    for k in range(4):
        add_all(y, full(k))
        add_list(z, [full(k)], more={"a": full(10)})
        gc.collect()
    assert (first(y), first(z)) == (6.0, 46.0)
    assert (len(add_all.graphs), len(add_list.graphs)) == (1, 1)
    add_all(y, full(1), full(2))
    assert (first(y), len(add_all.graphs)) == (9.0, 2)


def test_changed_containers_are_captured_again() -> None:
    @dataclasses.dataclass
    class Settings:
        factor: float

    @nbrt.graph
    def step(y: Any, x: Any, cfg: dict[str, float], settings: Settings) -> None:
        add.forall(4)(y, x, cfg["a"])
        add.forall(4)(y, x, settings.factor)

    y, x, cfg, settings = full(0), full(1), {"a": 1.0}, Settings(10.0)
    step(y, x, cfg, settings)
    cfg["a"] = 2.0
    step(y, x, cfg, settings)
    settings.factor = 20.0
    step(y, x, cfg, settings)
    assert first(y) == 11 + 12 + 22


def test_numbers_count_by_type_and_bits() -> None:
    @nbrt.graph
    def step(x: Any, divisor: Any) -> None:
        divide.forall(4)(x, divisor)

    x = full(5)
    results = []
    for divisor in (0.0, -0.0, np.float32(2), np.float32(4)):
        step(x, divisor)
        results.append(first(x))
    assert results == [1.0, -1.0, 0.5, 0.25]
    seen = []

    @nbrt.graph
    def pair(x: Any, numbers: tuple[Any, ...]) -> None:
        seen.append(numbers)
        divide.forall(4)(x, numbers[0])

    for numbers in ((1,), (1.0,), (True,), (float("nan"),), (float("nan"),)):
        pair(x, numbers)
    assert [type(each[0]) for each in seen] == [int, float, bool, float]


def test_arguments_whose_changes_stay_unnoticed_are_refused_by_name() -> None:
    @nbrt.graph
    def step(x: Any, options: Any) -> None:
        add.forall(4)(x, x, 1.0)

    with pytest.raises(ArgumentTypeError, match=r"options\['a'\] of type set"):
        step(full(1), {"a": {1}})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ArgumentTypeError, match="nested"):
        step(full(1), endless)


def test_arrays_that_share_memory_are_not_mixed_up() -> None:
    @nbrt.graph
    def step(x: Any, y: Any) -> None:
        add.forall(x.size)(x, y, 1.0)

    whole = full(1)
    step(whole, whole)
    step(whole, full(5))
    assert first(whole) == 7.0
    parts = full(3)
    step(parts[:2], parts[2:])
    others = full(4)
    step(others[:2], others[2:])
    separate = nbrt.full(2, 1.0, "float32")
    step(separate, nbrt.full(2, 9.0, "float32"))
    assert (first(parts), first(others), first(separate)) == (6.0, 8.0, 10.0)


def test_a_graph_keeps_no_object_of_its_key_alive() -> None:
    class Model:
        def __init__(self, weight: float) -> None:
            self.weight = full(weight)

        @nbrt.graph
        def step(self, x: Any) -> None:
            add.forall(4)(x, self.weight, 1.0)

    x, one, two = full(0), Model(1), Model(2)
    one.step(x)
    two.step(x)
    one.step(x)
    assert (first(x), len(Model.step.graphs)) == (4.0, 2)
    alive = weakref.ref(one)
    del one
    gc.collect()
    assert (alive(), len(Model.step.graphs)) == (None, 1)


# -- threads, and calls inside of calls ------------------------------------------------------------


def test_threads_may_share_a_captured_function() -> None:
    generator = nbrt.Generator(7)

    @nbrt.graph
    def step(x: Any, y: Any, factor: float) -> None:
        meeting.wait()
        if device.kind != "sample":  # which has no draws
            generator.random(out=y, dtype="float32")
        nbrt.copy(y, nbrt.full(4, 1.0, "float32"))
        add.forall(4)(x, y, factor)

    meeting = threading.Barrier(2)
    device = nbrt.current_device()
    xs, errors = [full(0), full(0)], []

    def work(number: int) -> None:
        try:
            with nbrt.device(device), nbrt.stream(nbrt.Stream()):
                y = full(0)
                for _ in range(5):
                    step(xs[number], y, float(number + 1))
                nbrt.current_stream().synchronize()
        except Exception as error:  # noqa: BLE001  # shown by the assertion
            errors.append(error)
            meeting.abort()

    nbrt.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    assert [first(x) for x in xs] == [5.0, 10.0]


def test_a_captured_function_may_call_itself() -> None:
    @nbrt.graph
    def step(x: Any, y: Any, depth: int) -> None:
        add.forall(4)(x, y, 1.0)
        if depth:
            step(x, y, depth - 1)

    x, y = full(0), full(1)
    step(x, y, 2)
    step(x, y, 2)
    assert (first(x), len(step.graphs)) == (6.0, 3)
    stream = nbrt.Stream()

    @nbrt.graph(stream)
    def on_stream(x: Any, y: Any, depth: int) -> None:
        add.forall(4)(x, y, 1.0)
        if depth:
            on_stream(x, y, depth - 1)

    on_stream(x, y, 1)
    assert first(x) == 8.0


# -- what can be captured, and what is returned ----------------------------------------------------


def test_methods_and_callable_objects_are_captured() -> None:
    class Adder:
        @nbrt.graph
        def step(self, x: Any, y: Any) -> None:
            add.forall(4)(x, y, 1.0)

        @staticmethod
        @nbrt.graph
        def free(x: Any, y: Any) -> None:
            add.forall(4)(x, y, 1.0)

        def __call__(self, x: Any, y: Any) -> None:
            add.forall(4)(x, y, 1.0)

    x, y = full(0), full(1)
    adder = Adder()
    adder.step(x, y)
    adder.free(x, y)
    nbrt.graph(adder)(x, y)
    nbrt.graph(functools.partial(Adder.free, x))(y)
    assert first(x) == 4.0


def test_parameters_may_have_any_name() -> None:
    @nbrt.graph
    def step(self: Any, stream: Any, *, args: Any, _hidden: Any) -> None:
        for each in (stream, args, _hidden):
            add.forall(4)(self, each, 1.0)

    x = full(0)
    for _ in range(2):
        step(self=x, stream=full(1), args=full(2), _hidden=full(3))
    assert (first(x), len(step.graphs)) == (12.0, 1)


def test_arguments_are_returned_by_the_call_that_gets_them() -> None:
    @nbrt.graph
    def step(x: Any, y: Any, items: list[Any]) -> Any:
        add.forall(4)(x, y, 1.0)
        made = nbrt.empty(4, "float32")
        nbrt.copy(made, x)
        return x, {"part": x[1:3], "items": items, "made": made}, items[0]

    for _ in range(2):
        x, y, items = full(0), full(1), [full(2)]
        returned, parts, item = step(x, y, items)
        assert returned is x
        assert parts["items"] is items
        assert item is items[0]
        nbrt.copy(x, full(7))
        assert nbrt.to_host(parts["part"]).tolist() == [7.0, 7.0]
        assert first(parts["made"]) == 1.0


def test_what_is_no_function_is_refused() -> None:
    def generate(x: Any) -> Iterator[None]:
        add.forall(4)(x, x, 1.0)
        yield

    async def wait(x: Any) -> None:
        await asyncio.sleep(0)

    class Caller:
        async def __call__(self) -> None: ...

    wrong: list[tuple[Any, str]] = [
        (generate, "generator function"),
        (functools.partial(generate, 1), "generator function"),
        (wait, "async function"),
        (Caller(), "async function"),
        (add, "kernel"),
        (add[1, 4], "kernel"),
        (Caller, "function to capture"),
        (staticmethod(len), "above"),
    ]
    for function, text in wrong:
        with pytest.raises(ArgumentTypeError, match=text):
            nbrt.graph(function)
        with pytest.raises(ArgumentTypeError, match=text):
            nbrt.graph(deterministic=True)(function)
    with pytest.raises(NbrtError):
        nbrt.graph(3)
