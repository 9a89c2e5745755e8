"""Draw in torch's layouts on the CPU compiler, without a generator."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.kernels import memory_dtype
from nbrt.backends.cpu.launch import CpuProgram
from nbrt_kernels.random.torch.requests import stateless_launches, torch_launches

if TYPE_CHECKING:
    from nbrt_kernels.random.launches import Fill

TINY = (512, 2**28)
"""Constants of the torch layout for a GPU of one multiprocessor with 512 threads."""

compiled = cache(CpuProgram)


def run(
    launches: list[Fill],
    out: np.ndarray,
    state: Any,
    ahead: int = 0,
    block: int | None = None,
) -> np.ndarray:
    """Fill `out` by launches, one after the other, in blocks of so many threads; returns it."""
    for launch in launches:
        part = out if launch.part is None else out[launch.part]
        width = block or launch.block
        blocks = -(-launch.threads // width)
        plan = compiled(launch.kernel).plan(0, (blocks, 1, 1), (width, 1, 1))
        start = np.uint64((ahead + launch.skip_blocks) % 2**64)
        plan(part, state, start, *launch.arguments)
    return out


def torch_draw(
    distribution: str,
    dtype: str,
    n: int,
    *parameters: Any,
    seed: int = 0,
    offset: int = 0,
    constants: tuple[int, int] = TINY,
    count: int | None = None,
    region: Any = None,
    hardware: bool = False,
    block: int | None = None,
) -> np.ndarray:
    """Return a draw, or a part of one, in the torch layout; bfloat16 as its bits, bool as uint8."""
    launches = torch_launches(
        distribution, dtype, n, parameters, constants, count, region, hardware=hardware
    )
    out = np.zeros(n if count is None else count, memory_dtype(dtype))
    return run(launches, out, (np.uint64(seed), np.uint64(offset)), block=block)


def stateless_draw(
    distribution: str,
    dtype: str,
    n: int,
    *parameters: Any,
    key: tuple[int, int],
    count: int | None = None,
    region: Any = None,
) -> np.ndarray:
    """Return a draw of torch.func._random with key (seed, block)."""
    launches = stateless_launches(distribution, dtype, n, parameters, count, region)
    out = np.zeros(n if count is None else count, memory_dtype(dtype))
    return run(launches, out, (np.uint64(key[0]), np.uint64(0)), ahead=int(key[1]))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values as an array of a dtype holds them."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def value_of(stored_values: np.ndarray, dtype: str) -> np.ndarray:
    """Return what an array of a dtype holds, as float64."""
    if dtype == "bfloat16":
        return (stored_values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored_values.astype(np.float64)
