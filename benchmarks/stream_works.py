"""Work for the benchmark of streams: launches of a microsecond and of 0.1 ms, and bare threads."""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, each
from nbrt.backends.cpu.block_scheduler import set_num_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "BURST",
    "LONG_BURST",
    "LONG_SECONDS",
    "bare_spin_kernel",
    "long_contenders",
    "short_contenders",
    "spin_kernel",
]

LONG_SECONDS = 1e-4
_STREAMS = 8
BURST = 200
"""Launches of a burst."""

LONG_BURST = 20
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
    launches: Sequence[Callable[[], object]],
    waits: Sequence[Callable[[], object]],
    count: int = BURST,
) -> Callable[[], None]:
    """Return a function that makes launches on one stream after the other, and waits for all."""

    def burst() -> None:
        for launch in itertools.islice(itertools.cycle(launches), count):
            launch()
        for wait in waits:
            wait()

    return burst


def _in_threads(works: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """Return a function that does several works at once, in a thread each."""

    def run() -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


class _ShortWork:
    """Launches of two small blocks, on several streams and by bare threads."""

    def __init__(self) -> None:
        import numba

        add = _add_kernel()
        streams = [nbrt.Stream("cpu:0") for _ in range(_STREAMS)]
        default = nbrt.default_stream("cpu:0")
        x, *arrays = (nbrt.zeros(_GRID * _BLOCK, device="cpu:0") for _ in range(_STREAMS + 1))
        nbrt.synchronize("cpu:0")

        def on(stream: nbrt.Stream, y: Any) -> Callable[[], None]:
            configured = add[_GRID, _BLOCK, stream]
            return lambda: configured(x, y, 2.0)

        def add_bare(x: Any, y: Any, factor: Any) -> None:
            for i in range(x.size):
                y[i] += factor * x[i]

        self.launches = [on(stream, y) for stream, y in zip(streams, arrays, strict=True)]
        self.waits = [stream.synchronize for stream in streams]
        self.by_default = on(default, arrays[0])
        self.wait_default = default.synchronize
        self.bare_add: Any = numba.njit(nogil=True, error_model="numpy")(add_bare)
        zeros = [np.zeros(_GRID * _BLOCK, np.float32) for _ in range(2)]
        self.args: tuple[Any, ...] = (*zeros, 2.0)
        self.bare, self.pool = _BareThread(), ThreadPoolExecutor(1)
        for launch, wait in zip(self.launches, self.waits, strict=True):
            _in_turn(launch, wait)(30)  # then it is known that they are brief

    def put(self) -> None:
        self.bare.put(self.bare_add, *self.args)

    def submit(self) -> Future[Any]:
        return self.pool.submit(self.bare_add, *self.args)

    def burst_of_executor(self) -> None:
        for future in [self.submit() for _ in range(BURST)]:
            future.result()

    def burst_of(self, streams: int, count: int = BURST) -> Callable[[], None]:
        return _burst(self.launches[:streams], self.waits[:streams], count)

    def in_threads(self, threads: int) -> Callable[[], None]:
        """Return a burst by several threads with a stream each."""
        pairs = list(zip(self.launches, self.waits, strict=True))[:threads]
        return _in_threads([_burst([one], [wait], BURST // threads) for one, wait in pairs])


def short_contenders() -> tuple[list[Contender], list[Contender]]:
    """Return launches of two small blocks: single ones, and bursts of `BURST`."""
    work = _ShortWork()
    single = [
        Contender("default stream", _in_turn(work.by_default, work.wait_default)),
        Contender("a stream", _in_turn(work.launches[0], work.waits[0])),
        Contender("bare thread", _in_turn(work.put, work.bare.wait), note="SimpleQueue"),
        Contender("executor", each(lambda: work.submit().result()), note="one thread"),
    ]
    bursts = {
        "default stream": _burst([work.by_default], [work.wait_default]),
        "a stream": work.burst_of(1),
        "8 streams": work.burst_of(_STREAMS),
        "2 threads, a stream each": work.in_threads(2),
        "4 threads, a stream each": work.in_threads(4),
        "bare thread": _burst([work.put], [work.bare.wait]),
        "executor": work.burst_of_executor,
    }
    return single, [Contender(name, each(burst)) for name, burst in bursts.items()]


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
    """Return launches of 0.1 ms; a call makes `LONG_BURST` of them."""
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

    def by_two() -> None:
        set_num_threads(2)
        try:
            for _ in range(LONG_BURST):
                shared(arrays[0], rounds)
        finally:
            set_num_threads(1)

    def in_turn(streams: int, count: int) -> list[Callable[[], None]]:
        pairs = list(zip(launches, waits, strict=True))[:streams]
        return [functools.partial(_in_turn(*pair), count) for pair in pairs]

    def burst_on(streams: int) -> Callable[[], None]:
        return _burst(launches[:streams], waits[:streams], LONG_BURST)

    bare_spin = bare_spin_kernel()
    zeros = [np.zeros(size, np.float32) for _ in range(2)]
    bare_rounds = _calibrated(lambda rounds: bare_spin(zeros[0], rounds))
    bare = [_BareThread() for _ in range(2)]
    puts = [
        lambda thread=thread, array=array: thread.put(bare_spin, array, bare_rounds)
        for thread, array in zip(bare, zeros, strict=True)
    ]
    works = {
        "default stream": _burst([lambda: alone(arrays[0], rounds)], [], LONG_BURST),
        "default stream, shared by 2 OS threads": by_two,
        "a stream, synchronized each": in_turn(1, LONG_BURST)[0],
        "a stream": burst_on(1),
        "2 streams": burst_on(2),
        "8 streams": burst_on(_STREAMS),
        "2 threads, a stream each, synchronized each": _in_threads(in_turn(2, LONG_BURST // 2)),
        "a bare thread": _burst(puts[:1], [bare[0].wait], LONG_BURST),
        "2 bare threads": _burst(puts, [thread.wait for thread in bare], LONG_BURST),
    }
    return [Contender(name, each(work)) for name, work in works.items()]
