"""Work for the benchmark of streams: launches of a microsecond and of 0.1 ms, and bare threads."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, each
from nbrt.backends.cpu.block_scheduler import set_num_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LONG_SECONDS", "bare_spin_kernel", "long_contenders", "short_contenders", "spin_kernel"]

LONG_SECONDS = 1e-4
_STREAMS = 8
_BURST = 1_000
_GRID, _BLOCK = 2, 128
_LONG_GRID, _LONG_BLOCK = 16, 64


def spin_kernel() -> nbrt.Kernel:
    """Return a kernel that computes for a given number of turns."""
    from numba import cuda

    @nbrt.kernel
    def spin(out: Any, rounds: Any) -> None:
        i = cuda.grid(1)
        value = out[i]
        for _ in range(rounds):
            value = value * 0.999 + 0.25
        out[i] = value

    return spin


def bare_spin_kernel() -> Any:
    """Return the same work as a function of Numba, which releases the interpreter's lock."""
    import numba

    def spin(out: Any, rounds: Any) -> None:
        for i in range(out.size):
            value = out[i]
            for _ in range(rounds):
                value = value * 0.999 + 0.25
            out[i] = value

    return numba.njit(nogil=True, error_model="numpy")(spin)


def _add_kernel() -> nbrt.Kernel:
    from numba import cuda

    @nbrt.kernel
    def add(x: Any, y: Any, factor: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] += factor * x[i]

    return add


class _BareThread:
    """A thread that runs functions from a queue: the least that handing work over can cost."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            function, args = self._calls.get()
            function(*args)

    def put(self, function: Callable[..., object], *args: Any) -> None:
        self._calls.put((function, args))

    def wait(self) -> None:
        done = threading.Lock()
        done.acquire()
        self.put(done.release)
        done.acquire()


def _in_turn(launch: Callable[[], object], wait: Callable[[], object]) -> Callable[[int], None]:
    def batch(n: int) -> None:
        for _ in itertools.repeat(None, n):
            launch()
            wait()

    return batch


def _burst(
    launches: Sequence[Callable[[], object]], waits: Sequence[Callable[[], object]]
) -> Callable[[int], None]:
    """Return the batch that makes n launches in bursts, on one stream after the other."""

    def batch(n: int) -> None:
        for first in range(0, n, _BURST):
            for launch in itertools.islice(itertools.cycle(launches), min(n - first, _BURST)):
                launch()
            for wait in waits:
                wait()

    return batch


def _in_threads(batches: Sequence[Callable[[int], None]]) -> Callable[[int], None]:
    """Return the batch that makes n calls in several threads at once."""

    def batch(n: int) -> None:
        share = -(-n // len(batches))
        threads = [threading.Thread(target=each, args=(share,)) for each in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return batch


def short_contenders() -> list[Contender]:
    """Return launches of two small blocks, handed over in several ways; a call is a launch."""
    import numba

    add = _add_kernel()
    streams = [nbrt.Stream("cpu:0") for _ in range(_STREAMS)]
    default = nbrt.default_stream("cpu:0")
    x, *arrays = (nbrt.zeros(_GRID * _BLOCK, device="cpu:0") for _ in range(_STREAMS + 1))
    nbrt.synchronize("cpu:0")

    def on(stream: nbrt.Stream, y: Any) -> Callable[[], None]:
        configured = add[_GRID, _BLOCK, stream]
        return lambda: configured(x, y, 2.0)

    launches = [on(stream, y) for stream, y in zip(streams, arrays, strict=True)]
    waits = [stream.synchronize for stream in streams]
    by_default = on(default, arrays[0])
    bursts = [_burst([launch], [wait]) for launch, wait in zip(launches, waits, strict=True)]

    def add_bare(x: Any, y: Any, factor: Any) -> None:
        for i in range(x.size):
            y[i] += factor * x[i]

    bare_add: Any = numba.njit(nogil=True, error_model="numpy")(add_bare)
    bare, pool = _BareThread(), ThreadPoolExecutor(1)
    zeros = [np.zeros(_GRID * _BLOCK, np.float32) for _ in range(2)]
    args: tuple[Any, ...] = (*zeros, 2.0)

    def executed(n: int) -> None:
        for future in [pool.submit(bare_add, *args) for _ in range(n)]:
            future.result()

    return [
        Contender("launch, synchronize: default", _in_turn(by_default, default.synchronize)),
        Contender("launch, synchronize: a stream", _in_turn(launches[0], waits[0])),
        Contender("put, wait: bare thread", _in_turn(lambda: bare.put(bare_add, *args), bare.wait)),
        Contender(
            "submit, result: executor", _in_turn(lambda: pool.submit(bare_add, *args).result(), int)
        ),
        Contender("burst: default", _burst([by_default], [default.synchronize])),
        Contender("burst: a stream", bursts[0]),
        Contender("burst: 8 streams", _burst(launches, waits)),
        Contender(
            "burst: bare thread",
            _burst([lambda: bare.put(bare_add, *args)], [bare.wait]),
        ),
        Contender("burst: executor", executed, most=10_000),
        Contender("2 threads, a stream each", _in_threads(bursts[:2])),
        Contender("4 threads, a stream each", _in_threads(bursts[:4])),
    ]


def _calibrated(launch: Callable[[int], object]) -> int:
    """Return the turns with which a launch takes `LONG_SECONDS` in one thread."""
    rounds = 1_000
    for _ in range(5):
        times = []
        for _ in range(40):
            start = time.perf_counter()
            launch(rounds)
            times.append(time.perf_counter() - start)
        rounds = max(1, round(rounds * LONG_SECONDS / min(times)))
    return rounds


def long_contenders() -> list[Contender]:
    """Return launches of 0.1 ms; a call is one launch."""
    spin = spin_kernel()
    size = _LONG_GRID * _LONG_BLOCK
    default = nbrt.default_stream("cpu:0")
    streams = [nbrt.Stream("cpu:0") for _ in range(_STREAMS)]
    arrays = [nbrt.zeros(size, device="cpu:0") for _ in streams]
    nbrt.synchronize("cpu:0")
    alone = spin[_LONG_GRID, _LONG_BLOCK, default]
    rounds = _calibrated(lambda rounds: alone(arrays[0], rounds))

    def on(stream: nbrt.Stream, array: Any) -> Callable[[], None]:
        configured = spin[_LONG_GRID, _LONG_BLOCK, stream]
        return lambda: configured(array, rounds)

    launches = [on(stream, array) for stream, array in zip(streams, arrays, strict=True)]
    waits = [stream.synchronize for stream in streams]
    # Another configuration: what the launches with one thread have taken does not count.
    shared = spin[_LONG_GRID, (_LONG_BLOCK, 1, 1), default]

    def by_two(n: int) -> None:
        set_num_threads(2)
        try:
            for _ in itertools.repeat(None, n):
                shared(arrays[0], rounds)
        finally:
            set_num_threads(1)

    bare_spin = bare_spin_kernel()
    zeros = [np.zeros(size, np.float32) for _ in range(2)]
    bare_rounds = _calibrated(lambda rounds: bare_spin(zeros[0], rounds))
    bare = [_BareThread() for _ in range(2)]
    puts = [
        lambda thread=thread, array=array: thread.put(bare_spin, array, bare_rounds)
        for thread, array in zip(bare, zeros, strict=True)
    ]
    each_in_turn = [_in_turn(*pair) for pair in zip(launches, waits, strict=True)]
    return [
        Contender("default", each(lambda: alone(arrays[0], rounds))),
        Contender("default, shared by 2 OS threads", by_two),
        Contender("a stream, synchronized each", each_in_turn[0]),
        Contender("a stream", _burst(launches[:1], waits[:1])),
        Contender("2 streams", _burst(launches[:2], waits[:2])),
        Contender("8 streams", _burst(launches, waits)),
        Contender("2 Python threads, synchronized each", _in_threads(each_in_turn[:2])),
        Contender("a bare thread", _burst(puts[:1], [bare[0].wait])),
        Contender("2 bare threads", _burst(puts, [thread.wait for thread in bare])),
    ]
