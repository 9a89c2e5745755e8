from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt_kernels.random.fill import DRAWS
from unit.cuda.test_numba_compiler import ptx_or_skip

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface

FLOATING = [kind for kind in DRAWS if kind[1].startswith("float")]


def arguments(interface: CudaInterface, kind: tuple[str, str]) -> tuple[Any, ...]:
    spec = DRAWS[kind]
    scalar = np.dtype(kind[1]).type if kind in FLOATING else np.uint64
    out = interface._driver.cupy.empty((8,), kind[1])
    return (out, *spec.arguments(1, 0), *(scalar(1) for _ in spec.parameters))


def compiled(interface: CudaInterface, kind: tuple[str, str], capability: tuple[int, int]) -> str:
    source = interface._get_compiler().adopt(DRAWS[kind].kernel)
    return ptx_or_skip(source, arguments(interface, kind), capability)


@pytest.mark.parametrize("kind", DRAWS, ids=" ".join)
def test_every_draw_compiles_to_ptx(interface: CudaInterface, kind: tuple[str, str]) -> None:
    assert ".entry" in compiled(interface, kind, (9, 0))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("kind", FLOATING, ids=" ".join)
def test_contraction_cannot_change_bits(
    monkeypatch: pytest.MonkeyPatch,
    interface: CudaInterface,
    kind: tuple[str, str],
    capability: tuple[int, int],
) -> None:
    """The PTX is the same with NVVM's contraction off, and leaves none to ptxas."""
    from numba.cuda.cudadrv import nvvm

    contracted = compiled(interface, kind, capability)
    compile_ir = nvvm.compile_ir
    monkeypatch.setattr(
        nvvm, "compile_ir", lambda ir, **options: compile_ir(ir, **options, fma=False)
    )
    plain = compiled(interface, kind, capability)
    # With contraction off NVVM spells out the rounding, which forbids ptxas to fuse.
    assert ".rn.f" in plain
    assert instructions(contracted) == instructions(plain)
    products = set(re.findall(r"mul(?:\.rn)?\.f(?:32|64)\s+(%\w+)", contracted))
    sums = re.findall(r"(?:add|sub)(?:\.rn)?\.f(?:32|64)\s+%\w+, (%\w+), (%\w+)", contracted)
    assert not products & {operand for pair in sums for operand in pair}


def instructions(ptx: str) -> list[str]:
    """Return the opcodes in order, without the rounding of multiplications and additions."""
    opcodes = re.findall(r"^\s+(?:@!?%\w+\s+)?([a-z][\w.]*)\s", ptx, re.MULTILINE)
    return [re.sub(r"^(add|sub|mul)\.rn\.f", r"\1.f", opcode) for opcode in opcodes]


def test_no_flush_to_zero_and_exact_roots(interface: CudaInterface) -> None:
    ptx = compiled(interface, ("normal", "float32"), (9, 0))
    assert ".ftz" not in ptx
    assert ".approx" not in ptx
    assert "sqrt.rn.f32" in ptx


class Program:
    def __init__(self) -> None:
        self.planned: list[Any] = []
        self.launched: list[Any] = []

    def plan(self, *configuration: Any) -> Program:
        self.planned.append(configuration)
        return self

    def launch(self, queue: Any, *args: Any) -> None:
        self.launched.append(args)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, interface: CudaInterface) -> Program:
    made = Program()
    monkeypatch.setattr(interface, "program", lambda kernel: made)
    return made


def test_draw_launches_one_thread_per_block(interface: CudaInterface, program: Program) -> None:
    queue = interface.default_queue(1)
    out = interface._driver.cupy.empty((3, 1000), "float32")
    interface.draw(queue, out, "uniform", (7 << 32) + 5, 8, (-1.0, 1.0))
    assert program.planned == [(1, (3, 1, 1), (256, 1, 1), 0)]  # 750 Philox blocks
    flat, *rest = program.launched[0]
    assert flat.shape == (3000,)
    assert flat.data.ptr == out.data.ptr
    assert rest == [5, 7, 2, -1, 2, np.nextafter(np.float32(1), np.float32(0))]
    assert [type(value) for value in rest] == [np.uint32, np.uint32, np.uint64] + 3 * [np.float32]


def test_draw_refuses(interface: CudaInterface, program: Program) -> None:
    queue = interface.default_queue(0)
    with pytest.raises(ArgumentTypeError, match="got int8"):
        interface.draw(queue, interface._driver.cupy.empty((3,), "int8"), "uniform", 0, 0, (0, 1))
    with pytest.raises(ArgumentError, match="scale"):
        interface.draw(
            queue, interface._driver.cupy.empty((3,), "float32"), "normal", 0, 0, (0.0, -1.0)
        )
    out = interface._driver.cupy.empty((4, 4), "uint32")[:, ::2]
    with pytest.raises(ArgumentError, match="C-contiguous"):
        interface.draw(queue, out, "bits", 0, 0, ())
    interface.draw(queue, interface._driver.cupy.empty((0,), "uint32"), "bits", 0, 0, ())
    assert program.launched == []
