"""``out = a * x + y`` in float32, as nbrt and each peer would have it written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, absent, each
from benchmarks.peers import find, find_taichi, opencl_devices
from nbrt_kernels.elementwise import saxpy

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FACTOR", "OPENCL", "Problem", "contenders"]

FACTOR = np.float32(2.5)
_BLOCK = 256
OPENCL = """
__kernel void saxpy(__global float* out, float a, __global const float* x, __global const float* y,
                    ulong n) {
    size_t i = get_global_id(0);
    if (i < n) out[i] = a * x[i] + y[i];
}
"""


class Problem:
    """The vectors, and a check that a contender computes what it should."""

    def __init__(self, n: int) -> None:
        self.n = n
        generator = np.random.default_rng(1)
        self.x = generator.random(n, np.float32)
        self.y = generator.random(n, np.float32)
        self.out = self.aligned()
        self._expected = FACTOR * self.x + self.y

    def aligned(self) -> np.ndarray:
        """Return a vector whose memory a page boundary starts, as OpenCL wants it."""
        raw = np.zeros(self.n * 4 + 4096, np.uint8)
        start = -raw.ctypes.data % 4096
        return raw[start : start + self.n * 4].view(np.float32)

    def contender(
        self, name: str, call: Callable[[], object], out: Any = None, note: str = ""
    ) -> Contender:
        """Return the contender, once it has been right."""
        out = self.out if out is None else out
        out[...] = 0
        call()
        np.testing.assert_allclose(np.asarray(out), self._expected, rtol=1e-6, err_msg=name)
        return Contender(name, each(call), note=note)


def contenders(n: int, cores: int) -> list[Contender]:
    """Return nbrt and all peers on vectors of `n` elements."""
    problem = Problem(n)
    return [
        *_nbrt(problem),
        *_numpy(problem),
        *_numba(problem, cores),
        *_opencl(problem),
        *_warp(problem),
        *_torch(problem, cores),
        *_taichi(problem, cores),
    ]


def _nbrt(problem: Problem) -> list[Contender]:
    kernel = nbrt.kernel(saxpy)
    blocks = -(-problem.n // _BLOCK)
    with nbrt.device("cpu:0"):
        x, y = (nbrt.to(vector, "cpu:0", copy=True) for vector in (problem.x, problem.y))
        out = nbrt.zeros(problem.n)
        configured = kernel[blocks, _BLOCK, nbrt.default_stream("cpu:0")]

        def on_host() -> None:
            configured(problem.out, FACTOR, problem.x, problem.y)

        return [
            problem.contender("nbrt", lambda: configured(out, FACTOR, x, y), out, "nbrt arrays"),
            problem.contender("nbrt, np.empty arrays", on_host, note="not from nbrt's pool"),
        ]


def _numpy(problem: Problem) -> list[Contender]:
    x, y, out = problem.x, problem.y, problem.out

    def whole() -> None:
        np.multiply(x, FACTOR, out=out)
        np.add(out, y, out=out)

    def in_pieces() -> None:
        for start in range(0, x.size, 1 << 14):
            piece = slice(start, start + (1 << 14))
            np.multiply(x[piece], FACTOR, out=out[piece])
            np.add(out[piece], y[piece], out=out[piece])

    return [
        problem.contender("NumPy", whole, note="multiply and add, into out"),
        problem.contender("NumPy in pieces", in_pieces, note="64 KiB at a time, one thread"),
    ]


def _numba(problem: Problem, cores: int) -> list[Contender]:
    import numba

    @numba.njit(fastmath={"contract"})
    def serial(out: Any, a: Any, x: Any, y: Any) -> None:
        for i in range(out.size):
            out[i] = a * x[i] + y[i]

    @numba.njit(parallel=True, fastmath={"contract"})
    def parallel(out: Any, a: Any, x: Any, y: Any) -> None:
        for i in numba.prange(out.size):
            out[i] = a * x[i] + y[i]

    numba.set_num_threads(min(cores, numba.config.NUMBA_NUM_THREADS))
    arguments = (problem.out, FACTOR, problem.x, problem.y)
    return [
        problem.contender("Numba prange", lambda: parallel(*arguments), note="written by hand"),
        problem.contender("Numba njit", lambda: serial(*arguments), note="one thread"),
    ]


def _opencl(problem: Problem) -> list[Contender]:
    devices, reason = opencl_devices()
    if not devices:
        return [absent("PoCL", reason)]
    found = []
    for device in devices:
        kernel = device.kernel(OPENCL, "saxpy")
        out = problem.aligned()
        buffers = [device.over(array) for array in (out, problem.x, problem.y)]
        arguments = (buffers[0], FACTOR, buffers[1], buffers[2], np.uint64(problem.n))
        call = device.launcher(kernel, (-(-problem.n // _BLOCK),), (_BLOCK,), arguments)
        found.append(problem.contender(device.name, call, out, f"block of {_BLOCK}"))
    return found


def _warp(problem: Problem) -> list[Contender]:
    warp, reason = find("warp", "warp-lang")
    if warp is None:
        return [absent("Warp", reason)]
    from benchmarks.saxpy_warp import warp_saxpy

    x, y, out = (warp.from_numpy(v, device="cpu") for v in (problem.x, problem.y, problem.out))
    command = warp.launch(
        warp_saxpy(warp),
        dim=problem.n,
        inputs=[out, float(FACTOR), x, y],
        device="cpu",
        record_cmd=True,
    )
    return [problem.contender("Warp", command.launch, out.numpy(), "recorded launch, one thread")]


def _torch(problem: Problem, cores: int) -> list[Contender]:
    torch, reason = find("torch")
    if torch is None:
        return [absent("torch.add", reason)]
    torch.set_num_threads(cores)
    x, y, out = map(torch.from_numpy, (problem.x, problem.y, problem.out))
    factor = float(FACTOR)
    return [problem.contender("torch.add", lambda: torch.add(y, x, alpha=factor, out=out))]


def _taichi(problem: Problem, cores: int) -> list[Contender]:
    taichi, name = find_taichi()
    if taichi is None:
        return [absent("Quadrants, Taichi", name)]
    from benchmarks.saxpy_taichi import taichi_saxpy

    kernel = taichi_saxpy(taichi, cores)
    arguments = (problem.out, float(FACTOR), problem.x, problem.y)
    return [problem.contender(name, lambda: kernel(*arguments))]
