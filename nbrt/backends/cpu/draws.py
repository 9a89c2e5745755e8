"""Random fills on CPU devices: the kernel library's fill kernels, launched like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import ArgumentError
from nbrt_kernels.random import (
    DRAWS,
    integer_parameters,
    normal_parameters,
    uniform_parameters,
)

if TYPE_CHECKING:
    from nbrt.backends.queue import Queue
    from nbrt.typing import HostArray

__all__ = ["draw"]

_BLOCK = 256
_programs: dict[tuple[str, str], CpuProgram] = {}


def draw(
    queue: Queue,
    out: HostArray,
    distribution: str,
    seed: int,
    offset: int,
    parameters: tuple[Any, ...],
) -> None:
    """Enqueue a fill of 1-D contiguous `out`; see `DeviceInterface.draw`."""
    dtype = out.dtype.name
    first, second = parameters
    converted: tuple[Any, ...]
    try:
        if distribution == "integers":
            distribution, converted = integer_parameters(first, second, dtype)
        elif distribution == "normal":
            converted = normal_parameters(first, second, dtype)
        else:
            converted = uniform_parameters(first, second, dtype)
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    spec = DRAWS[distribution, dtype]
    program = _programs.get((distribution, dtype))
    if program is None:
        program = _programs.setdefault((distribution, dtype), CpuProgram(spec.kernel, False))
    blocks = -(-spec.threads(out.size) // _BLOCK)
    plan = program.plan(queue.index, (blocks, 1, 1), (_BLOCK, 1, 1), 0)
    plan.launch(queue, out, *spec.arguments(seed, offset), *converted)
