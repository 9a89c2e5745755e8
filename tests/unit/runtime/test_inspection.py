"""`Kernel.inspect`: the report, when its parts are made, and how it is shown."""

from __future__ import annotations

import html.parser
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.inspection import Loop, Occupancy, Resources
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    CompileError,
    NotSupportedError,
)
from nbrt.runtime import inspection

FLOATS = np.ones(4, np.float32)


@nbrt.kernel
def saxpy(a, x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]


@nbrt.kernel
def walk(x, steps):  # type: ignore[no-untyped-def]
    """No vectors: the number of steps is run-time data, and each needs the one before."""
    i = cuda.grid(1)
    if i < x.size:
        place = x[i]
        for _ in range(steps):
            place = x[place]
        x[i] = place


@nbrt.kernel
def broken(x):  # type: ignore[no-untyped-def]
    x[0] = x.nonsense


class Spy:
    """Counts what is asked of the backends, and answers with markup in it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def inspect(self, *args: Any) -> Spy:
        return self

    def __getattr__(self, name: str) -> Any:
        values = {
            "signature": "<b>k</b>(x: int64)",
            "lowering": SimpleNamespace(kind="coroutines", reasons=("barrier & <loop> at k.py:3",)),
            "loops": (Loop("<body>", 2, 8, "float", ("sinf",)),),
            "llvm": "define void @k() { <2 x i64> }",
            "asm": "vaddps <&>",
            "ptx": '.entry k // "<script>"',
            "resources": Resources(17, static_shared=512),
            "occupancy": Occupancy(4, 32, 64, ("registers",)),
        }
        self.asked.append(name)
        return values[name]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    made = Spy()
    monkeypatch.setattr(inspection, "get_interface_for_device", lambda _: made)
    return made


class Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_nothing_is_made_before_it_is_asked_for(spy: Spy) -> None:
    report = saxpy.inspect(1.0, FLOATS, FLOATS, gpu="H100")
    assert spy.asked == []
    assert report.ptx.startswith(".entry")
    assert spy.asked == ["ptx"]
    assert report.on("T4").occupancy.blocks == 4
    assert spy.asked == ["ptx", "occupancy"]


def test_what_is_shown(spy: Spy) -> None:
    text = repr(saxpy.inspect(1.0, FLOATS, FLOATS))
    assert "coroutines: one coroutine per thread; barrier & <loop> at k.py:3" in text
    assert "<body> (depth 2): 8 x float, calls sinf" in text
    assert not {"ptx", "resources", "occupancy"} & set(spy.asked)
    text = repr(saxpy.inspect(1.0, FLOATS, FLOATS, gpu="H100"))
    assert "17 registers, 512 B static shared memory" in text
    assert "50%: 4 blocks, 32 of 64 warps per multiprocessor, limited by registers" in text


def test_html_is_escaped(spy: Spy) -> None:
    shown = Tags(saxpy.inspect(1.0, FLOATS, FLOATS, gpu="H100")._repr_html_())
    assert shown.names == {"table", "tr", "th", "td", "details", "summary", "pre"}
    assert '// "<script>"' in shown.text
    assert "<2 x i64>" in shown.text
    assert "<b>k</b>" in shown.text


def test_signature_and_code_of_the_cpu() -> None:
    report = saxpy.inspect("float32", "float32[::1]", FLOATS)
    assert report.signature == (
        "saxpy(a: float32, x: array(float32, 1d, C), y: array(float32, 1d, C))"
    )
    assert report.lowering.kind == "threads"
    assert "fmul <" in report.llvm
    assert "define" in report.llvm
    assert "mulps" in report.asm or "fmul" in report.asm


def test_loops() -> None:
    (loop,) = saxpy.inspect("float32", "float32[::1]", "float32[::1]").loops
    assert loop.lanes >= 4
    assert loop.element == "float"
    assert "scalar" in repr(walk.inspect("int64[::1]", "int64"))
    loops = walk.inspect("int64[::1]", "int64").loops
    assert any(each.lanes == 1 and each.depth > loop.depth for each in loops)


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("float32", "float32"),
        ("bool", "bool"),
        ("complex64", "complex64"),
        ("int8[::1]", "array(int8, 1d, C)"),
        ("float64[:, ::1]", "array(float64, 2d, C)"),
        ("float64[::1, :]", "array(float64, 2d, F)"),
        ("uint16[:, :, :]", "array(uint16, 3d, A)"),
    ],
)
def test_names_of_types(name: str, typed: str) -> None:
    @nbrt.kernel
    def one(x):  # type: ignore[no-untyped-def]
        pass

    assert one.inspect(name).signature == f"one(x: {typed})"


def test_device_arrays_stand_for_their_type() -> None:
    array = SimpleNamespace(
        __cuda_array_interface__={
            "shape": (8, 4), "strides": (8, 64), "typestr": "<f8", "data": (0, False),
        }
    )  # fmt: skip

    @nbrt.kernel
    def one(x):  # type: ignore[no-untyped-def]
        pass

    assert one.inspect(array).signature == "one(x: array(float64, 2d, F))"


def test_ptx_and_occupancy_without_a_gpu() -> None:
    report = saxpy[1, 256].inspect(np.float32(2), FLOATS, FLOATS, gpu="sm_90")
    try:
        assert ".target sm_90" in report.ptx
        assert 1 <= report.resources.registers <= 32
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    # At most 32 registers: eight blocks of eight warps fill a multiprocessor.
    assert report.occupancy == Occupancy(8, 64, 64, report.occupancy.limited_by)
    assert report.on("RTX 4090").occupancy.fraction == 1.0


def test_what_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ArgumentTypeError, match=r"arguments for \(a, x, y\).*got none"):
        saxpy.inspect()
    with pytest.raises(ArgumentError, match=r"name of its type.*got 'float33'"):
        saxpy.inspect("float33", FLOATS, FLOATS)
    for name in ("H1000", ""):
        with pytest.raises(ArgumentError, match=f"got '{name}'"):
            saxpy.inspect(1.0, FLOATS, FLOATS, gpu=name)
    with pytest.raises(ArgumentTypeError, match="got 2 arguments"):
        _ = saxpy.inspect(1.0, FLOATS).signature


def test_what_does_not_compile_has_a_report_all_the_same() -> None:
    report = broken.inspect(FLOATS)
    with pytest.raises(CompileError, match="nonsense"):
        _ = report.llvm
    assert "broken(x: array(float32, 1d, C))" in repr(report)
    assert "not available: " in repr(report)
    assert "nonsense" in report._repr_html_()


def test_other_kinds_of_device(sample_backend: Any) -> None:
    with pytest.raises(NotSupportedError, match="about cpu and cuda"):
        sample_backend.inspect(saxpy.function, (1,), (1, 1, 1), (1, 1, 1), 0, None)
