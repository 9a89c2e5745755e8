"""Random fills on CPU devices: the kernel library's fill kernels, launched like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt_kernels.random.requests import draw_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.queue import Queue
    from nbrt.typing import HostArray

__all__ = ["draw"]

_BLOCK = 256
_programs: dict[Callable[..., object], CpuProgram] = {}


def draw(
    queue: Queue,
    out: HostArray,
    distribution: str,
    seed: int,
    offset: int,
    parameters: tuple[Any, ...],
) -> None:
    """Enqueue a fill of 1-D contiguous `out`; see `DeviceInterface.draw`."""
    try:
        spec, arguments = draw_request(distribution, out.dtype.name, parameters)
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    except TypeError as error:
        raise ArgumentTypeError(str(error)) from error
    program = _programs.get(spec.kernel)
    if program is None:
        program = _programs.setdefault(spec.kernel, CpuProgram(spec.kernel, False))
    blocks = -(-spec.threads(out.size) // _BLOCK)
    plan = program.plan(queue.index, (blocks, 1, 1), (_BLOCK, 1, 1), 0)
    plan.launch(queue, out, *spec.arguments(seed, offset), *arguments)
