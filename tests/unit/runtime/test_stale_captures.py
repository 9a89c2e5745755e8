"""Launches after a captured value has changed, against the interpreted kernel and plain Python."""

from __future__ import annotations

import enum
import re
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, njit

import nbrt
from nbrt.config import override
from nbrt.errors import CompileError, StaleCaptureWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OTHER = types.ModuleType("other")
"""A module that kernels read attributes of."""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    with nbrt.device("cpu:0"), override(cache_dir=str(tmp_path)):
        yield


def program(text: str) -> dict[str, Any]:
    """Run source as a module or a notebook does, and return its globals."""
    scope: dict[str, Any] = {"__name__": "cells", "cuda": cuda, "njit": njit, "np": np}
    scope |= {"nbrt": nbrt, "other": OTHER, "enum": enum}
    run(scope, text)
    return scope


def run(scope: dict[str, Any], text: str) -> None:
    exec(compile(text, "<cell>", "exec"), scope)


def launched(kernel: Any, dtype: str = "float64") -> list[float]:
    out = np.zeros(2, dtype)
    kernel(out)
    found: list[float] = out.tolist()
    return found


def interpreted(kernel: Any) -> list[float]:
    """Plain Python looks the names up as it goes."""
    with override(interpret=True):
        return launched(kernel)


KERNELS = {
    "global": ("S = 3", "o[0] = S", "S = 4"),
    "type": ("S = 3", "o[0] = S / 2 + (S == 3)", "S = 3.5"),
    "negative_zero": ("S = 0.0", "o[0] = np.copysign(1.0, S)", "S = -0.0"),
    "tuple": ("S = (1, 2.5)", "o[0] = S[1]", "S = (1, 3.5)"),
    "array": ("S = np.arange(3.0)", "o[0] = S[1]", "S = np.arange(3.0) + 5"),
    "const_array": (
        "S = np.arange(3.0)", "t = cuda.const.array_like(S); o[0] = t[2]", "S = np.ones(3)",
    ),
    "enum": (
        "class S(enum.IntEnum): A = 1",
        "o[0] = 1 if S.A == 1 else 2",
        "class S(enum.IntEnum): A = 2",
    ),
    "module": ("other.S = 1", "o[0] = other.S", "other.S = 2"),
    "submodule": (
        "other.sub = type(other)('sub'); other.sub.S = 1", "o[0] = other.sub.S", "other.sub.S = 2",
    ),
    "module_rebound": (
        "lib = type(other)('lib'); lib.S = 1", "o[0] = lib.S",
        "lib = type(other)('lib'); lib.S = 2",
    ),
    "device_function": (
        "@cuda.jit(device=True)\ndef d(x): return x + 1", "o[0] = d(o[1])",
        "@cuda.jit(device=True)\ndef d(x): return x + 100",
    ),
    "njit_function": (
        "d = njit(lambda x: x + 1)", "o[0] = d(o[1])", "d = njit(lambda x: x + 100)",
    ),
    "in_depth": (
        "S = 3\n@cuda.jit(device=True)\ndef inner(x): return x + S\n"
        "@cuda.jit(device=True)\ndef d(x): return 2 * inner(x)",
        "o[0] = d(o[1])", "S = 4",
    ),
    "inner_function": (
        "@cuda.jit(device=True)\ndef inner(x): return x + 3\n"
        "@cuda.jit(device=True)\ndef d(x): return 2 * inner(x)",
        "o[0] = d(o[1])", "@cuda.jit(device=True)\ndef inner(x): return x - 3",
    ),
    "function_of_a_module": (
        "other.d = njit(lambda x: x + 1)", "o[0] = other.d(o[1])",
        "other.d = njit(lambda x: x + 9)",
    ),
    "shadowed_module_name": ("grid = cuda.grid", "o[0] = grid(1) + 5", "grid = lambda n: 2"),
    "deleted_attribute_and_back": ("other.T = 1", "o[0] = other.T", "del other.T; other.T = 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "shadowed_module_name"])
def test_a_changed_value_is_noticed(name: str) -> None:
    before, body, after = KERNELS[name]
    scope = program(f"{before}\n@nbrt.kernel\ndef k(o):\n    {body}")
    kernel = scope["k"][1, 1]
    first = launched(kernel)
    assert first == interpreted(kernel)
    run(scope, after)
    expected = interpreted(kernel)
    assert expected != first
    assert launched(kernel) == expected
    assert launched(kernel, "float32") == expected
    run(scope, before)
    assert launched(kernel, "float32") == first
    assert launched(kernel) == first


def test_a_name_of_the_dialect_that_is_rebound_is_noticed() -> None:
    before, body, after = KERNELS["shadowed_module_name"]
    scope = program(f"{before}\n@nbrt.kernel\ndef k(o):\n    {body}")
    assert launched(scope["k"][1, 1]) == [5, 0]
    run(scope, after)
    with pytest.raises(CompileError):  # as a newly decorated one: a plain function cannot be called
        launched(scope["k"][1, 1])


def test_closure_variables() -> None:
    value = 1

    @nbrt.kernel
    def kernel(o):  # type: ignore[no-untyped-def]
        o[0] = value

    assert launched(kernel[1, 1]) == [1, 0]
    value = 2
    assert launched(kernel[1, 1]) == [2, 0]
    value = 2.5  # type: ignore[assignment]
    assert launched(kernel[1, 1], "float32") == [2.5, 0]


def test_a_function_defined_after_a_failed_launch() -> None:
    scope = program("@nbrt.kernel\ndef k(o): o[0] = S")
    with pytest.raises(CompileError):
        launched(scope["k"][1, 1])
    scope["S"] = 4
    assert launched(scope["k"][1, 1]) == [4, 0]
    del scope["S"]
    with pytest.raises(CompileError):
        launched(scope["k"][1, 1])


def test_types_never_mix_old_and_new_elements_of_an_array() -> None:
    """A change in place is not noticed, by any of the versions."""
    scope = program("S = np.arange(3.0)\n@nbrt.kernel\ndef k(o): o[0] = S[1]")
    kernel = scope["k"][1, 1]
    assert launched(kernel) == [1, 0]
    scope["S"][1] = 9
    assert launched(kernel) == launched(kernel, "float32") == [1, 0]
    scope["S"] = scope["S"].copy()
    assert launched(kernel) == launched(kernel, "float32") == [9, 0]


def test_another_kernel_over_the_same_device_function() -> None:
    """A new kernel takes the device function at its value now, an old one follows."""
    text = "@nbrt.kernel\ndef {}(o): o[0] = d(o[1])"
    scope = program(
        "S = 3\n@cuda.jit(device=True)\ndef d(x): return x + S\n" + text.format("first")
    )
    assert launched(scope["first"][1, 1]) == [3, 0]
    scope["S"] = 4
    run(scope, text.format("second"))
    assert launched(scope["second"][1, 1]) == [4, 0]
    assert launched(scope["first"][1, 1], "float32") == [4, 0]
    scope["S"] = 5
    assert launched(scope["second"][1, 1], "float32") == [5, 0]


def test_checked_mode_and_kernels_with_threads_that_work_together() -> None:
    body = "t = cuda.shared.array(4, 'float64'); t[0] = S; cuda.syncthreads(); o[0] = t[0]"
    scope = program(f"S = 3\n@nbrt.kernel\ndef k(o): {body}")
    kernels = [scope["k"][1, 1], scope["k"].checked()[1, 1], scope["k"].checked(seed=1)[1, 1]]
    assert [launched(kernel) for kernel in kernels] == [[3, 0]] * 3
    scope["S"] = 4
    assert [launched(kernel) for kernel in kernels] == [[4, 0]] * 3
    assert [launched(kernel, "float32") for kernel in kernels] == [[4, 0]] * 3


def test_grids_of_many_blocks_and_streams() -> None:
    scope = program("S = 3\n@nbrt.kernel\ndef k(o): o[cuda.grid(1)] = S")
    kernel, stream = scope["k"][64, 32], nbrt.Stream("cpu:0")
    for value in (3, 4, 5.5, 3):
        scope["S"] = value
        out, queued = np.zeros(2048), np.zeros(2048)
        kernel(out)
        with nbrt.stream(stream):
            kernel(queued)
        scope["S"] = -1  # what is queued runs what it was launched with
        stream.synchronize()
        assert (out == value).all()
        assert (queued == value).all()


def counted(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows with every program that is made."""
    made: list[Any] = []
    interface = nbrt.get_interface_for_device("cpu")
    original = interface.program

    def program(function: Callable[..., object]) -> Any:
        made.append(function)
        return original(function)

    monkeypatch.setattr(interface, "program", program)
    return made


def test_what_has_not_changed_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal plain values, names that no code loads, and names of attributes."""
    scope = program("S = 1.5\nsize = 0\nunused = 0\n@nbrt.kernel\ndef k(o): o[0] = S * o.size")
    kernel = scope["k"][1, 1]
    made = counted(kernel, monkeypatch)
    for number in range(5):
        scope["S"] = float(f"1.{5 + 0 * number}")
        scope["size"] = scope["unused"] = object()
        assert launched(kernel) == [3, 0]
    assert len(made) == 1


def test_an_equal_value_of_another_type_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = program("S = 1\n@nbrt.kernel\ndef k(o): o[0] = S")
    made = counted(scope["k"], monkeypatch)
    values: tuple[Any, ...] = (1, 1.0, True, np.float64(1), np.float32(1))
    for number, value in enumerate(values):
        scope["S"] = value
        assert launched(scope["k"][1, 1]) == [1, 0]
        assert len(made) == number + 1


def test_alternating_streams_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = program("S = 2\n@nbrt.kernel\ndef k(o): o[0] = S")
    made = counted(scope["k"], monkeypatch)
    streams = [nbrt.Stream("cpu:0"), nbrt.Stream("cpu:0")]
    for stream in streams * 3:
        with nbrt.stream(stream):
            scope["k"][1, 1](np.zeros(1))
        stream.synchronize()
    assert len(made) == 1


def test_numbas_semantics_on_request() -> None:
    scope = program(
        "S = 3\n@cuda.jit(device=True)\ndef d(x): return x + S\n@nbrt.kernel\ndef k(o): o[0] = d(S)"
    )
    kernel = scope["k"][1, 1]
    with override(stale_captures="warn"):
        assert launched(kernel) == [6, 0]
        scope["S"] = 4
        with pytest.warns(
            StaleCaptureWarning, match=r"cells\.S \(3 before, 4 now\).*is warn"
        ) as seen:
            assert launched(kernel) == [6, 0]
        assert [each.filename for each in seen] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert launched(kernel) == launched(kernel, "float32") == [6, 0]
            assert launched(scope["k"][2, 1]) == [6, 0]


def test_a_kernel_that_is_compiled_again_and_again_is_told_of() -> None:
    scope = program("S = 0\n@nbrt.kernel\ndef k(o): o[0] = S")
    launched(scope["k"][1, 1])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for scope["S"] in range(1, 20):
            assert launched(scope["k"][1, 1]) == [scope["S"], 0]
    assert [each.category for each in seen] == [StaleCaptureWarning]
    assert re.search(r"16 times.*cells\.S.*arguments", str(seen[0].message))


def test_threads_that_launch_while_a_global_changes() -> None:
    """Each launch sees one value; one that begins after a change sees the new value."""
    scope = program(
        "S = 0\n@cuda.jit(device=True)\ndef d(x): return x + S\n"
        "@nbrt.kernel\ndef k(o): o[0] = S; o[1] = d(0)"
    )
    kernel = scope["k"][1, 1]
    rounds, threads = 6, 4
    barrier = threading.Barrier(threads, timeout=60)

    def work(number: int) -> list[list[float]]:
        found = []
        for value in range(rounds):
            barrier.wait()
            if number == 0:
                scope["S"] = value
            found.append(launched(kernel, ("float64", "float32")[number % 2]))
            barrier.wait()
            assert launched(kernel) == [value, value]
        return found

    launched(kernel)
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(work, range(threads)))
    for found in results:
        for value, (first, second) in enumerate(found):
            assert first == second
            assert first in (value, value - 1, 0)


def test_a_value_that_changes_while_a_kernel_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """And changes back: the compiled code must be of the value that it counts as."""
    from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

    scope = program(
        "S = 3\n@cuda.jit(device=True)\ndef d(x): return x + S\n"
        "@nbrt.kernel\ndef k(o): o[0] = S; o[1] = d(0)"
    )
    original = KernelBody.results

    def results(self: KernelBody, arguments: Any) -> Any:
        scope["S"] = 4
        try:
            return original(self, arguments)
        finally:
            scope["S"] = 3

    with monkeypatch.context() as patch:
        patch.setattr(KernelBody, "results", results)
        assert launched(scope["k"][1, 1]) == [3, 3]
    assert launched(scope["k"][1, 1]) == [3, 3]
    scope["S"] = 4
    assert launched(scope["k"][1, 1]) == [4, 4]


def test_an_attribute_that_changes_while_a_kernel_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

    OTHER.W = 3  # type: ignore[attr-defined]
    scope = program("@nbrt.kernel\ndef k(o): o[0] = other.W")
    original = KernelBody.results

    def results(self: KernelBody, arguments: Any) -> Any:
        OTHER.W = 4  # type: ignore[attr-defined]
        return original(self, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(KernelBody, "results", results)
        launched(scope["k"][1, 1])
    OTHER.W = 3  # type: ignore[attr-defined]
    assert launched(scope["k"][1, 1]) == [3, 0]
