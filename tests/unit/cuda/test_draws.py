from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbrt.backends.draw import Draw
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt_kernels.random import fills_of
from unit.cuda.test_numba_compiler import ptx_or_skip

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface

UNIT = (0.0, 1.0)
DRAWS = {
    "uniform": Draw("uniform", "float32", 8, UNIT),
    "normal": Draw("normal", "float32", 8, UNIT),
    "normal64": Draw("normal", "float64", 8, UNIT),
    "log_normal": Draw("log_normal", "float32", 8, UNIT),
    "cauchy64": Draw("cauchy", "float64", 8, UNIT),
    "gamma": Draw("gamma", "float32", 8, (2.5, 1.0)),
}
STATE = (np.uint64(1), np.uint64(0))


def compiled(
    interface: CudaInterface, draw: Draw, capability: tuple[int, int], state: Any = STATE
) -> str:
    fill = next(iter(fills_of(draw, gpu=True)))
    source = interface._get_compiler().adopt(fill.kernel)
    out = interface._driver.cupy.empty((8,), draw.dtype)
    return ptx_or_skip(source, (out, state, np.uint64(0), *fill.arguments), capability)


def test_state_may_be_in_device_memory(interface: CudaInterface) -> None:
    state = interface._driver.cupy.empty((2,), "uint64")
    assert ".entry" in compiled(interface, DRAWS["uniform"], (9, 0), state)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_contraction_cannot_change_bits(
    monkeypatch: pytest.MonkeyPatch,
    interface: CudaInterface,
    draw: Draw,
    capability: tuple[int, int],
) -> None:
    """The PTX is the same with NVVM's contraction off, and leaves none to ptxas."""
    from numba.cuda.cudadrv import nvvm

    contracted = compiled(interface, draw, capability)
    compile_ir = nvvm.compile_ir
    monkeypatch.setattr(
        nvvm, "compile_ir", lambda ir, **options: compile_ir(ir, **options, fma=False)
    )
    plain = compiled(interface, draw, capability)
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
    ptx = compiled(interface, DRAWS["normal"], (9, 0))
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
    seed = (7 << 32) + 5
    interface.draw(queue, out, Draw("uniform", "float32", 3000, (-1.0, 1.0), seed=seed, offset=8))
    assert program.planned == [(1, (3, 1, 1), (256, 1, 1), 0)]  # 750 Philox blocks
    flat, *rest = program.launched[0]
    assert flat.shape == (3000,)
    assert flat.data.ptr == out.data.ptr
    assert rest == [(seed, 8), 0, -1, 2, np.nextafter(np.float32(1), np.float32(0))]
    assert [type(value) for value in rest] == [tuple, np.uint64] + 3 * [np.float32]
    assert [type(value) for value in rest[0]] == [np.uint64, np.uint64]


def test_draw_from_a_place_in_memory_goes_ahead_by_its_offset(
    interface: CudaInterface, program: Program
) -> None:
    cupy = interface._driver.cupy
    out, place = cupy.empty((16,), "float32"), cupy.empty((2,), "uint64")
    draw = Draw("uniform", "float32", 16, UNIT, offset=40, device_state=place)
    interface.draw(interface.default_queue(0), out, draw)
    _, state, ahead, *_ = program.launched[0]
    assert state is place
    assert ahead == 10


def test_draw_refuses(interface: CudaInterface, program: Program) -> None:
    queue, empty = interface.default_queue(0), interface._driver.cupy.empty
    with pytest.raises(ArgumentTypeError, match="got int8"):
        interface.draw(queue, empty((3,), "int8"), Draw("uniform", "int8", 3, UNIT))
    with pytest.raises(ArgumentError, match="scale"):
        interface.draw(queue, empty((3,), "float32"), Draw("normal", "float32", 3, (0.0, -1.0)))
    with pytest.raises(ArgumentError, match="C-contiguous"):
        interface.draw(queue, empty((4, 4), "uint32")[:, ::2], Draw("bits", "uint32", 8))
    interface.draw(queue, empty((0,), "uint32"), Draw("bits", "uint32", 0))
    assert program.launched == []
