"""Launches that a real device refuses are refused on a fake one, by errors of the same class.

The real devices are those of the CPU and of the simulated CUDA driver.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import ArgumentTypeError, BackendUnavailableError, CompileError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Callable


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Opaque:
    pass


@nbrt.kernel
def fill(out, value, unused=0):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 1


@nbrt.kernel
def first_of(pair):  # type: ignore[no-untyped-def]
    pair[0][0] = 1


def f4(device: str, shape: Any = 8) -> Any:
    return nbrt.zeros(shape, "float32", device=device)


def _other(device: str) -> str:
    return f"{device.partition(':')[0]}:1"


CASES: dict[str, Callable[[str], object]] = {
    # Accepted by at least one kind.
    "plain": lambda d: fill[1, 8](f4(d), 1.0),
    "all arguments": lambda d: fill[1, 8](f4(d), 1, 2),
    "uint64": lambda d: fill[1, 8](f4(d), 2**63),
    "complex": lambda d: fill[1, 8](f4(d), 1j),
    "bool": lambda d: fill[1, 8](f4(d), np.bool_(True)),
    "date": lambda d: fill[1, 8](f4(d), np.datetime64("2020-01-01")),
    "enum": lambda d: fill[1, 8](f4(d), Colour.RED),
    "int enum": lambda d: fill[1, 8](f4(d), Level.LOW),
    "float16": lambda d: fill[1, 8](f4(d), np.float16(1)),
    "tuple": lambda d: fill[1, 8](f4(d), (1, (2.0, f4(d)))),
    "strided": lambda d: fill[1, 8](f4(d, 16)[::2], f4(d, (4, 4)).T),
    "strided in two dimensions": lambda d: fill[1, 8](f4(d), f4(d, (4, 4))[::2]),
    "no dimensions": lambda d: fill[1, 8](f4(d), f4(d, ())),
    "none": lambda d: fill[1, 8](f4(d), None),
    "host array": lambda d: fill[1, 8](f4(d), np.zeros(3)),
    "host array in a tuple": lambda d: first_of[1, 1]((np.zeros(3, "float32"), 1)),
    "array of structures": lambda d: fill[1, 8](f4(d), np.zeros(3, "i4, f8")),
    "structure": lambda d: fill[1, 8](f4(d), np.zeros((), "i4, f8")[()]),
    "empty grid": lambda d: fill[0, 8](f4(d), 1.0),
    "empty grid with bad arguments": lambda d: fill[0, 8]("text"),
    # Refused by all.
    "too few": lambda d: fill[1, 8](f4(d)),
    "too many": lambda d: fill[1, 8](f4(d), 1, 2, 3),
    "none given": lambda d: fill[1, 8](),
    "text": lambda d: fill[1, 8](f4(d), "text"),
    "bytes": lambda d: fill[1, 8](f4(d), b"text"),
    "list": lambda d: fill[1, 8](f4(d), [1, 2]),
    "dict": lambda d: fill[1, 8](f4(d), {1: 2}),
    "object": lambda d: fill[1, 8](f4(d), Opaque()),
    "function": lambda d: fill[1, 8](f4(d), f4),
    "type": lambda d: fill[1, 8](f4(d), float),
    "module": lambda d: fill[1, 8](f4(d), np),
    "large integer": lambda d: fill[1, 8](f4(d), 2**64),
    "small integer": lambda d: fill[1, 8](f4(d), -(2**63) - 1),
    "large integer in a tuple": lambda d: fill[1, 8](f4(d), (1, 2**70)),
    "text in a tuple": lambda d: fill[1, 8](f4(d), (1, "text")),
    "array of another device": lambda d: fill[1, 8](f4(_other(d)), 1),
    "array of another device in a tuple": lambda d: first_of[1, 1]((f4(_other(d)), 1)),
    "stream of another device": lambda d: fill[1, 8, nbrt.Stream(_other(d))](f4(d), 1),
    "no stream": lambda d: fill[1, 8, "stream"](f4(d), 1),
    "too many threads": lambda d: fill[1, 1025](f4(d), 1),
    "deep block": lambda d: fill[1, (1, 1, 65)](f4(d), 1),
    "high grid": lambda d: fill[(1, 65536), 1](f4(d), 1),
    "much shared memory": lambda d: fill[1, 8, None, 1 << 20](f4(d), 1),
    "negative grid": lambda d: fill[-1, 8](f4(d), 1),
    "float grid": lambda d: fill[1.5, 8](f4(d), 1),
    "no threads": lambda d: fill[1, 0](f4(d), 1),
    "plain call": lambda d: fill(f4(d), 1),
}


def outcome(case: str, device: str) -> type[BaseException] | None:
    with nbrt.device(device):
        try:
            CASES[case](device)
        except NbrtError as error:
            return type(error)
        return None


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_real_device(kind: str, case: str) -> None:
    try:
        reason = nbrt.get_interface_for_device(kind).unavailable_reason()
    except BackendUnavailableError as error:
        reason = str(error)
    if reason is not None:
        pytest.skip(reason)
    device = f"{kind}:0"
    if case == "much shared memory" and kind == "cpu":
        pytest.skip("a CPU device has its own limit")
    expected = outcome(case, device)
    with nbrt.fake(kind, devices=2):
        assert outcome(case, device) is expected
        assert outcome(case, device) is expected  # the second one takes other paths


def test_refused_and_accepted_cases_are_told_apart() -> None:
    names = [case for case in CASES if case != "much shared memory"]
    refused = [case for case in names if outcome(case, "cpu:0") is not None]
    assert refused == names[names.index("too few") :]


@nbrt.kernel
def assigns_text(out):  # type: ignore[no-untyped-def]
    out[0] = "text"


@cuda.jit(device=True)
def returns(x):  # type: ignore[no-untyped-def]
    return x


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("kernel", [assigns_text, nbrt.kernel(returns)])
def test_kernels_that_do_not_compile(kind: str, kernel: nbrt.Kernel) -> None:
    with nbrt.device("cpu:0"), pytest.raises(CompileError):
        kernel[1, 1](f4("cpu:0"))
    with nbrt.fake(kind, compile=True), pytest.raises(NbrtError) as caught:
        kernel[1, 1, nbrt.current_stream(f"{kind}:0")](f4(f"{kind}:0"))
    # A device function is no kernel for numba-cuda, and one that returns a value for the CPU.
    is_compiled = kernel is assigns_text or kind == "cpu"
    assert caught.type is (CompileError if is_compiled else ArgumentTypeError)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_kernel_made_outside_runs_inside_and_outside_again(kind: str) -> None:
    x = nbrt.zeros(4, "float32", device="cpu:0")
    with nbrt.device("cpu:0"):
        fill[1, 4](x, 1.0)
    x[:] = 0
    with nbrt.fake(kind) as plan, nbrt.device(kind):
        fill[1, 8](f4(f"{kind}:0"), 1.0)
    assert plan.launches["fill"] == 1
    with nbrt.device("cpu:0"):
        fill[1, 4](x, 1.0)
    np.testing.assert_array_equal(x, 1)
