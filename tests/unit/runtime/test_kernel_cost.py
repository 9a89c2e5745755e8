"""`KernelCost`, and how hooks find the cost of a launch on real devices."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.runtime import commands
from nbrt.runtime.kernel_cost import command_cost

pytestmark = pytest.mark.usefixtures("no_garbage")


def doubled(out, x):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


def cost_of_doubled(out: Any, x: Any) -> nbrt.KernelCost:
    return nbrt.KernelCost(flops=out.size, bytes=out.nbytes + x.nbytes)


class Costs:
    """A hook that writes down the cost of every command."""

    def __init__(self) -> None:
        self.found: list[tuple[str, nbrt.KernelCost | None]] = []

    def before(self, stream: Any, command: commands.Command, /) -> None:
        self.found.append((command.kind, command_cost(command)))

    def after(self, stream: Any, command: commands.Command, result: Any, /) -> None:
        pass


def test_hooks_find_the_cost_of_a_launch_and_of_a_draw(device: nbrt.Device) -> None:
    kernel, hook = nbrt.kernel(doubled, cost=cost_of_doubled), Costs()
    with nbrt.device(device):
        x, out = nbrt.zeros(8, "float32"), nbrt.zeros(8, "float32")
        generator = nbrt.Generator(1) if device.kind != "sample" else None
        with commands.install_hook(hook):
            kernel[1, 8](out, x)
            if generator is not None:
                generator.random(100, dtype="float64")
    found = [pair for pair in hook.found if pair[0] in ("launch", "draw")]
    expected = [("launch", nbrt.KernelCost(8, 64)), ("draw", nbrt.KernelCost(None, 800))]
    if device.kind == "sample":
        expected = [("launch", None)]  # its plans have no `function`
    assert found == expected


def test_a_kernel_knows_its_cost_and_a_later_one_counts() -> None:
    def inner(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    x = np.zeros(3)
    assert nbrt.kernel(inner).cost(x) is None
    kernel = nbrt.kernel(cost=lambda x: (1, None))(inner)
    assert kernel.cost(x) == nbrt.KernelCost(1, None)
    assert nbrt.kernel(kernel, cost=lambda x: (2, 3)).cost(x) == nbrt.KernelCost(2, 3)
    assert nbrt.kernel(cuda.jit(inner), cost=lambda x: (4, 5)).cost(x) == nbrt.KernelCost(4, 5)
    assert nbrt.kernel(inner, check=True).cost(x) == nbrt.KernelCost(2, 3)


def test_a_cost_keeps_no_function_alive() -> None:
    def inner(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    kernel = nbrt.kernel(inner, cost=lambda x: (1, 2))
    dead = weakref.ref(inner)
    del inner, kernel
    gc.collect()
    assert dead() is None


def test_refuses_what_is_no_cost() -> None:
    with pytest.raises(ArgumentTypeError, match="a function of the kernel's arguments, got 3"):
        nbrt.kernel(doubled, cost=3)  # type: ignore[call-overload]
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="flops"):
            nbrt.KernelCost(flops=wrong)
    with pytest.raises(ArgumentTypeError, match="bytes of a kernel as a number, got 'many'"):
        nbrt.KernelCost(bytes="many")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"cost of doubled as a KernelCost, got 3"):
        nbrt.kernel(doubled, cost=lambda out, x: 3).cost(1, 2)  # type: ignore[arg-type, return-value]
