"""One measurement of `benchmarks.compile`, in a new process: ``python -m benchmarks.compile_systems
SYSTEM ...`` prints JSON.

Times begin after the imports of the system. The folder of kernels (``write_kernels``) and the
folders of compiled code are arguments, so that a second process can load what the first has left.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compile_kernels import BLOCKS, FORTY, source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["main", "write_kernels"]


def write_kernels(folder: Path) -> None:
    """Write the modules of all kernels in all forms, and one module with all kernels of Warp."""
    for form in ("cuda", "njit", "warp"):
        for name, body, dtype in FORTY:
            text = source(form, name, body, dtype)
            (folder / f"{form}_{name}.py").write_text(text, encoding="utf-8")
    texts = [source("warp", *kernel) for kernel in FORTY]
    (folder / "warp_all.py").write_text("\n".join(texts), encoding="utf-8")


def _functions(form: str, chosen: argparse.Namespace) -> Iterator[tuple[Any, str, Any]]:
    """Yield the functions of a form, with their signatures and blocks."""
    for name, body, dtype in FORTY[: chosen.most]:
        module = importlib.import_module(f"{form}_{name}")
        yield getattr(module, name), body.signature(dtype), BLOCKS[body.indices]


def _library() -> Iterator[tuple[Any, str, Any]]:
    """Yield the kernels of `nbrt_kernels`, with barriers, shared memory and warps."""
    from nbrt_kernels import KERNELS

    for spec in KERNELS.values():
        for signature in spec.signatures:
            block = spec.block or BLOCKS.get(spec.dimensions, 256)
            yield spec.function, f"void({', '.join(signature)})", block


class _Clock:
    """Wall and CPU time from `start`; the CPU time of compile processes is added."""

    def __init__(self) -> None:
        self.laps: list[float] = []

    def start(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.process_time()

    def lap(self) -> None:
        self.laps.append(time.perf_counter() - self._begin)

    def stop(self, processes: tuple[int, ...] = ()) -> dict[str, Any]:
        wall, here = time.perf_counter() - self._begin, time.process_time() - self._cpu
        others = sum(map(_cpu_seconds, processes))
        first = self.laps[0] if self.laps else wall
        found = {"wall": wall, "here": here, "cpu": here + others}
        return found | {"first": first, "kernels": len(self.laps)}


def _cpu_seconds(process: int) -> float:
    """Return the CPU time of a process and of those of its children that have ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    ticks = text.rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


class _MemoryWatch:
    """The most memory of the server and of each worker, by looking every 20 ms."""

    def __init__(self, processes: Callable[[], list[int]]) -> None:
        self._processes = processes
        self._begin = time.perf_counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.found: dict[int, dict[str, float]] = {}
        self._thread.start()

    def stop(self) -> list[dict[str, float]]:
        self._ended.set()
        self._thread.join()
        return list(self.found.values())

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            for number, process in enumerate(self._processes()):
                seen = self.found.setdefault(process, {"seen": time.perf_counter() - self._begin})
                seen["is_server"] = float(number == 0)
                for key, nbytes in _memory(process).items():
                    seen[key] = max(seen.get(key, 0.0), nbytes)


def _memory(process: int) -> dict[str, float]:
    """Return the memory of a process in bytes: resident, its share, and its own."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:  # it has ended
        return {}
    lines = (line.split() for line in text.splitlines()[1:])
    found = {words[0]: 1024.0 * int(words[1]) for words in lines}
    own = found["Private_Clean:"] + found["Private_Dirty:"]
    return {"rss": found["Rss:"], "pss": found["Pss:"], "own": own}


def _nbrt(chosen: argparse.Namespace) -> dict[str, Any]:
    """`nbrt.compile` in a pool, or in place with ``--workers 0``."""
    importlib.import_module("numba.cuda")
    import nbrt

    kernels = list(_library() if chosen.library else _functions("cuda", chosen))[: chosen.most]
    device = None if chosen.targets else "cpu"
    clock = _Clock()
    with nbrt.AsyncCompile(chosen.workers) as pool:
        watch = _MemoryWatch(pool.processes) if chosen.memory else None
        clock.start()
        futures = [
            pool.compile(
                nbrt.kernel(function),
                signature,
                block=block,
                device=device,
                targets=chosen.targets,
            )
            for function, signature, block in kernels
        ]
        clock.lap()
        for future in futures:
            if watch is None:
                future.result()
            else:  # without compilations in this process
                future.wait()
        found = clock.stop(tuple(pool.processes()))
        if watch is not None:
            found["memory"] = watch.stop()
    return found | {"outcomes": _outcomes(futures)}


def _outcomes(futures: list[Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for future in futures:
        for outcome in future.outcomes or ("loaded",):
            status = getattr(outcome, "status", outcome)
            counts[status] = counts.get(status, 0) + 1
    return counts


def _nbrt_load(chosen: argparse.Namespace) -> dict[str, Any]:
    """Load stored code: each kernel alone."""
    importlib.import_module("numba.cuda")
    import nbrt

    device = None if chosen.targets else "cpu"
    kernels = [(nbrt.kernel(function), *rest) for function, *rest in _functions("cuda", chosen)]
    clock = _Clock()
    with nbrt.AsyncCompile(workers=0):
        clock.start()
        for kernel, signature, block in kernels:
            future = nbrt.compile(
                kernel, signature, block=block, device=device, targets=chosen.targets
            )
            if future.jobs:
                raise RuntimeError(f"expected stored code of {kernel!r}, got none")
            future.result()
            clock.lap()
    return clock.stop()


def _nbrt_warm(chosen: argparse.Namespace) -> dict[str, Any]:
    """`nbrt.warm` of a function that launches all kernels."""
    importlib.import_module("numba.cuda")
    import nbrt
    from nbrt.compilation.pool import default_pool

    kernels = [(nbrt.kernel(each), *rest) for each, *rest in _functions("cuda", chosen)]

    def program() -> None:
        for (kernel, _, block), (_, body, dtype) in zip(kernels, FORTY[: chosen.most], strict=True):
            kernel[1, block](*_arguments(nbrt, body, dtype))

    clock = _Clock()
    clock.start()
    with nbrt.device("cpu"):
        result = nbrt.warm(program, targets=chosen.targets, workers=None, progress=False)
    found = clock.stop(tuple(default_pool().processes()))
    if len(result) != len(kernels) or result.failed:
        raise RuntimeError(f"expected {len(kernels)} compiled kernels, got\n{result}")
    return found


def _arguments(nbrt: Any, body: Any, dtype: str) -> Iterator[Any]:
    import numpy as np

    for _, kind in body.kinds():
        element = "int32" if kind[-1] == "i" else dtype
        if len(kind) == 1:
            yield np.dtype(element).type(1)
        else:
            yield nbrt.zeros((8,) * int(kind[0]), element)


def _njit(chosen: argparse.Namespace) -> dict[str, Any]:
    """``numba.njit(cache=True)`` and its method `compile`, in threads with ``--workers``."""
    import numba

    njit = numba.njit(cache=True)
    kernels = [(njit(each), signature) for each, signature, _ in _functions("njit", chosen)]
    return _in_threads(chosen.workers, lambda pair: pair[0].compile(pair[1]), kernels)


def _numba_cuda(chosen: argparse.Namespace) -> dict[str, Any]:
    """`numba.cuda.compile_ptx`, in threads with ``--workers``."""
    from numba import cuda

    from nbrt._internal.gpus import capability_of

    capabilities = [capability_of(each)[:2] for each in chosen.targets]
    jobs = [
        (function, signature, capability)
        for function, signature, _ in _functions("cuda", chosen)
        for capability in capabilities
    ]
    return _in_threads(
        chosen.workers, lambda job: cuda.compile_ptx(job[0], job[1], cc=job[2]), jobs
    )


def _in_threads(threads: int | None, call: Callable[[Any], object], jobs: list[Any]) -> Any:
    clock = _Clock()
    clock.start()
    if threads:
        with ThreadPoolExecutor(threads) as executor:
            list(executor.map(call, jobs))
    else:
        for job in jobs:
            call(job)
            clock.lap()
    return clock.stop()


def _warp(chosen: argparse.Namespace) -> dict[str, Any]:
    """Warp's `load_module` of one module, or `force_load` of 40 modules in threads."""
    import warp as wp

    wp.config.quiet = True
    wp.config.kernel_cache_dir = os.environ["NBRT_CACHE_DIR"]
    wp.init()
    if chosen.workers is None:
        names = ["warp_all"]
    else:
        names = [f"warp_{name}" for name, _, _ in FORTY[: chosen.most]]
    for name in names:
        importlib.import_module(name)
    modules = [wp.get_module(name) for name in names]
    clock = _Clock()
    clock.start()
    if chosen.each:
        for module in modules:
            wp.force_load("cpu", modules=[module])
            clock.lap()
    else:
        wp.force_load("cpu", modules=modules, max_workers=chosen.workers or 0)
    return clock.stop()


def _starts(_: argparse.Namespace) -> dict[str, float]:
    """Return the times from a request to a worker that is ready, without a pool."""
    from nbrt.backends.cpu.compile_worker import CpuWorker
    from nbrt.compilation.processes import Server

    seconds = {}
    begin = time.perf_counter()
    server = Server()
    server.preload(CpuWorker.preload)
    for name in ("the first process", "a further process"):
        worker = server.fork()
        while not worker.channel.receive():
            select.select([worker], [], [])
        seconds[name] = time.perf_counter() - begin
        begin = time.perf_counter()
    server.close(at_once=False)
    return seconds


_SYSTEMS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "nbrt": _nbrt,
    "nbrt-load": _nbrt_load,
    "nbrt-warm": _nbrt_warm,
    "njit": _njit,
    "starts": _starts,
    "numba-cuda": _numba_cuda,
    "warp": _warp,
}


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_systems")
    parser.add_argument("system", choices=_SYSTEMS)
    parser.add_argument("kernels", help="folder of `write_kernels`")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--targets", nargs="*", default=())
    parser.add_argument("--library", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--each", action="store_true", help="load modules one after the other")
    parser.add_argument("--most", type=int, help="the first kernels only")
    chosen = parser.parse_args()
    sys.path.insert(0, chosen.kernels)
    print(json.dumps(_SYSTEMS[chosen.system](chosen)))


if __name__ == "__main__":
    main()
