"""Random draws on a CUDA device: nbrt, torch, CuPy and cuRAND fill one array."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, absent
from benchmarks.peers import find
from benchmarks.random_peers import row

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["contenders"]

_TORCH_METHODS = {"random": "uniform_", "standard_normal": "normal_"}


def contenders(method: str, n: int) -> list[Contender]:
    """Return the contenders that draw `n` float32; a batch ends when the device is idle.

    Parameters
    ----------
    method : {"random", "standard_normal"}
        What, in NumPy's words.
    n : int
        How many.
    """
    import cupy

    out = nbrt.empty(n, np.float32, device="cuda:0")
    generator = nbrt.Generator(1, device="cuda:0")
    rows = [
        row("nbrt", lambda: partial(getattr(generator, method), n, np.float32, out)),
        _torch(_TORCH_METHODS[method], out),
        _cupy(cupy, "XORWOW", method, out),
        _cupy(cupy, "Philox4x3210", method, out),
        _curand(cupy, "XORWOW", method, out),
        _curand(cupy, "PHILOX4_32_10", method, out),
        row("fill", lambda: partial(out.fill, 1), "out.fill(1): bare writes"),
    ]
    return [_until_idle(found, cupy.cuda.Device(0).synchronize) for found in rows]


def _until_idle(contender: Contender, wait: Callable[[], None]) -> Contender:
    submit = contender.batch
    if submit is None:
        return contender

    def batch(n: int) -> None:
        submit(n)
        wait()

    return replace(contender, batch=batch)


def _torch(method: str, out: Any) -> Contender:
    torch, reason = find("torch")
    if torch is None or not torch.cuda.is_available():
        return absent("torch", reason if torch is None else "this torch sees no CUDA device")
    return row("torch", lambda: getattr(torch.from_dlpack(out), method), "Philox4x32-10")


def _cupy(cupy: Any, name: str, method: str, out: Any) -> Contender:
    def make() -> Callable[[], object]:
        generator = cupy.random.Generator(getattr(cupy.random, name)(1))
        return partial(getattr(generator, method), out.size, np.float32, out)

    return row(f"CuPy {name}", make)


def _curand(cupy: Any, name: str, method: str, out: Any) -> Contender:
    def make() -> Callable[[], object]:
        curand = cupy.cuda.curand
        handle = curand.createGenerator(getattr(curand, f"CURAND_RNG_PSEUDO_{name}"))
        curand.setPseudoRandomGeneratorSeed(handle, 1)
        if method == "random":
            return partial(curand.generateUniform, handle, out.data.ptr, out.size)
        return partial(curand.generateNormal, handle, out.data.ptr, out.size, 0.0, 1.0)

    return row(f"cuRAND {name}", make, "host interface")
