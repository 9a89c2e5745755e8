"""`nbrt.warm`: the kernels of a function, compiled without a run."""

from __future__ import annotations

import functools
import io
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.cpu.simt.runtime.cache import KernelCache
from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher
from nbrt.config import override
from nbrt.errors import ArgumentError, ArgumentTypeError, CompileError, DeviceError, FakeReadError
from nbrt.planning.warm import collect_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with override(compile_workers=0, cache_dir=str(tmp_path)):
        yield tmp_path


@nbrt.kernel
def scale(x: Any, factor: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@nbrt.kernel
def add(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] += y[i]


@nbrt.kernel
def broken(x: Any) -> None:
    x[0] = x.nonsense


def keys() -> set[str]:
    return {entry.key for entry in CodeStore("cpu").entries()}


def test_each_version_compiles_once() -> None:
    def step(x: Any) -> None:
        for _ in range(3):
            scale[1, 32](x, 2)
        scale[7, 32](x, 3)  # another grid is no other code
        scale[1, 64](x, 2)
        scale[1, 32](x, 2.0)
        add[1, 32](x, nbrt.zeros(x.shape, "int64"))

    x = np.ones(5)
    result = nbrt.warm(step, x)
    found = [(row.kernel, row.block, row.source) for row in result]
    assert found == [
        ("scale", (32, 1, 1), "compiled"),
        ("scale", (64, 1, 1), "compiled"),
        ("scale", (32, 1, 1), "compiled"),
        ("add", (32, 1, 1), "compiled"),
    ]
    assert all(row.seconds > 0 and row.device == "cpu" and not row.is_draw for row in result)
    assert [row.site.partition(":")[0] for row in result] == ["test_warm.py"] * 4
    assert x.tolist() == [1] * 5
    stored = keys()
    assert len(stored) == 4
    step(x)
    assert x[0] == 2**3 * 3 * 2 * 2
    assert keys() == stored
    again = nbrt.warm(step, x)
    assert [row.source for row in again] == ["cached"] * 4
    assert [row.seconds for row in again] == [0] * 4


def test_draws_compile_as_the_real_draws() -> None:
    loc = np.zeros(6)

    def step(generator: nbrt.Generator) -> None:
        generator.random(10, dtype="float32")
        generator.random(20, dtype="float32")
        generator.normal(loc, 2.0)

    generator = nbrt.Generator(7, "cpu")
    state = generator.get_state()
    result = nbrt.warm(step, generator)
    assert (generator.get_state() == state).all()
    assert [row.is_draw for row in result] == [True, True]
    stored = keys()
    assert len(stored) == 2
    step(generator)
    assert keys() == stored


def test_a_kernel_that_does_not_compile_stops_no_other() -> None:
    def step(x: Any) -> None:
        broken[1, 32](x)
        add[1, 32](x, x)

    result = nbrt.warm(step, np.ones(3))
    first, second = result
    assert (first.source, second.source) == ("failed", "compiled")
    assert result.failed == (first,)
    assert isinstance(first.error, CompileError)
    line = broken.py_func.__code__.co_firstlineno + 2
    assert f"test_warm.py:{line}" in str(first.error)
    text = str(result)
    assert "2 kernels: 1 compiled, 1 failed" in text
    assert f"broken does not compile, launched at {first.site}:" in text
    assert "nonsense" in text
    assert "nonsense" in result._repr_html_()
    assert "<table" in result._repr_html_()


def test_captured_values_are_those_of_the_launch() -> None:
    step_size = 1

    @nbrt.kernel
    def shift(x: Any) -> None:
        x[0] += step_size

    def step(x: Any) -> None:
        nonlocal step_size
        step_size = 3
        shift[1, 1](x)
        step_size = 5
        shift[1, 1](x)

    assert [row.kernel for row in nbrt.warm(step, np.zeros(1))] == ["shift", "shift"]
    stored = keys()
    assert len(stored) == 2
    x = np.zeros(1)
    step(x)
    assert x[0] == 8
    assert keys() == stored


def test_kernels_that_cannot_be_stored_compile_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_entry = EntryDispatcher._compile

    def counted(entry: EntryDispatcher, arguments: Any) -> Any:
        compiled.append(entry._function.__name__)
        return compile_entry(entry, arguments)

    def refuse(*_: object) -> None:
        return None

    monkeypatch.setattr(EntryDispatcher, "_compile", counted)
    monkeypatch.setattr(KernelCache, "key", refuse)
    (row,) = nbrt.warm(lambda x: add[1, 4](x, x), np.ones(4, "int16"))
    assert (row.source, compiled) == ("unstored", ["add"])
    assert row.seconds > 0
    add[1, 4](np.ones(4, "int16"), np.ones(4, "int16"))
    assert compiled == ["add"]


def test_reads_follow_the_policy() -> None:
    def step(x: Any) -> None:
        if float(nbrt.to_host(x)[0]) == 0:
            scale[1, 32](x, 2.0)

    with pytest.raises(FakeReadError):
        nbrt.warm(step, np.ones(3))
    assert not keys()
    assert len(nbrt.warm(step, np.ones(3), reads="zeros")) == 1
    assert len(nbrt.warm(step, np.ones(3), reads=lambda x: np.ones(x.shape))) == 0


def test_functions_that_run_nothing_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    with pytest.raises(ArgumentTypeError, match="a generator"):
        nbrt.warm(generator)
    with pytest.raises(ArgumentTypeError, match="a coroutine"):
        nbrt.warm(functools.partial(coroutine))
    with pytest.raises(ArgumentTypeError, match="a coroutine"):
        nbrt.warm(lambda: coroutine())
    with pytest.raises(ArgumentTypeError, match="expected a function to run, got 3"):
        nbrt.warm(3)  # type: ignore[arg-type]  # as tested


def test_unknown_options_are_refused() -> None:
    def step() -> None:
        raise AssertionError

    with pytest.raises(ArgumentError, match="expected a GPU"):
        nbrt.warm(step, targets=["H100", "nothing"])
    with pytest.raises(ArgumentError, match="expected workers to be an integer"):
        nbrt.warm(lambda: None, workers=-1)
    with pytest.raises(ArgumentError, match="expected a cuda or cpu device with targets"):
        nbrt.warm(step, targets="H100", device="sample")


def test_an_exception_of_the_function_is_raised_as_it_is() -> None:
    def step(x: Any) -> None:
        scale[1, 32](x, 2.0)
        raise LookupError("of the user")

    with pytest.raises(LookupError, match="of the user"):
        nbrt.warm(step, np.ones(3))
    assert not keys()
    assert nbrt.get_interface_for_device("cpu").capabilities.computes


def test_the_devices_of_targets() -> None:
    with collect_kernels(targets=("sm_90", "L4"), devices=3) as found:
        assert nbrt.device_count("cuda") == 3
        assert nbrt.current_device() == nbrt.Device("cuda:0")
        assert nbrt.get_device_capability("cuda") == (9, 0)
        assert nbrt.device_count("cpu") == 4
    assert found.kernels == []
    with collect_kernels(targets=("L4",), device="cpu:2"):
        assert nbrt.current_device() == nbrt.Device("cpu:2")
        assert nbrt.get_device_name("cuda") == "NVIDIA L4"


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_fake_devices_have_no_compilers(kind: str) -> None:
    with nbrt.fake(kind), pytest.raises(DeviceError, match=f"got the fake {kind} devices"):
        nbrt.warm(lambda: None)


class Terminal(io.StringIO):
    """A text that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_in_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: Any) -> None:
        scale[1, 8](x, 1)

    def shown(stream: io.StringIO, **options: Any) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            nbrt.warm(step, np.ones(3), **options)
        return stream.getvalue()

    assert shown(io.StringIO()) == ""
    assert shown(Terminal(), progress=False) == ""
    lines = shown(Terminal()).split("\r")
    assert lines[1].startswith("[....................] 0/1 kernels, ")
    assert lines[-3].startswith("[####################] 1/1 kernels, ")
    assert lines[-2].strip() == lines[-1] == ""


def test_an_empty_function_has_an_empty_table() -> None:
    result = nbrt.warm(lambda: None)
    assert len(result) == 0
    assert "0 kernels" in str(result)
    assert "0 kernels" in result._repr_html_()
