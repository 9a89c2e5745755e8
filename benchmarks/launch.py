"""What submitting work costs: target at most 3 µs for one block of 256 threads, run and done.

On the default stream of a CPU device the work is done when the call returns, so that row is launch
and work together. On a stream with a worker only the submission is timed; the work is waited for
off the clock.
"""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, Options, absent, each, measure
from benchmarks.peers import find, opencl_devices
from benchmarks.report import Report, Table, Target, run
from nbrt_kernels.elementwise import saxpy

if TYPE_CHECKING:
    from collections.abc import Callable

_N = 256
_FACTOR = np.float32(2.5)
_MOST_QUEUED = 2000


def _vectors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.zeros(_N, np.float32), np.ones(_N, np.float32), np.ones(_N, np.float32)


def _nothing() -> None:
    pass


def _nbrt() -> list[Contender]:
    kernel = nbrt.kernel(saxpy)
    configured = kernel[1, _N]
    out, x, y = (nbrt.asarray(vector, device="cpu:0") for vector in _vectors())

    def whole() -> None:
        kernel[1, _N](out, _FACTOR, x, y)

    def prepared() -> None:
        configured(out, _FACTOR, x, y)

    def forall() -> None:
        kernel.forall(_N)(out, _FACTOR, x, y)

    return [
        Contender("nbrt", each(whole), note="k[1, 256](...)"),
        Contender("nbrt, configured", each(prepared), note="c = k[1, 256] made once"),
        Contender("nbrt forall", each(forall), note="k.forall(256)(...)"),
    ]


def _host_peers() -> list[Contender]:
    import numba

    out, x, y = _vectors()

    @numba.njit
    def serial(out: Any, a: Any, x: Any, y: Any) -> None:
        for i in range(out.size):
            out[i] = a * x[i] + y[i]

    @numba.njit(parallel=True)
    def parallel(out: Any, a: Any, x: Any, y: Any) -> None:
        for i in numba.prange(out.size):
            out[i] = a * x[i] + y[i]

    def numpy() -> None:
        np.multiply(x, _FACTOR, out=out)
        np.add(out, y, out=out)

    return [
        Contender("NumPy", each(numpy), note="multiply and add, into out"),
        Contender("Numba njit", each(lambda: serial(out, _FACTOR, x, y))),
        Contender("Numba prange", each(lambda: parallel(out, _FACTOR, x, y))),
    ]


def _kernel_peers() -> list[Contender]:
    out, x, y = _vectors()
    found = []
    warp, reason = find("warp", "warp-lang")
    if warp is None:
        found.append(absent("Warp", reason))
    else:
        from benchmarks.saxpy_warp import warp_saxpy

        kernel = warp_saxpy(warp)
        inputs = [warp.from_numpy(v, device="cpu") for v in (out, x, y)]
        inputs.insert(1, float(_FACTOR))
        options = {"dim": _N, "inputs": inputs, "device": "cpu"}
        command = warp.launch(kernel, record_cmd=True, **options)
        found.append(Contender("Warp", each(lambda: warp.launch(kernel, **options))))
        found.append(Contender("Warp, recorded", each(command.launch)))
    devices, reason = opencl_devices()
    if not devices:
        found.append(absent("PoCL", reason))
    for device in devices:
        found.append(Contender(device.name, each(_opencl_launch(device)), note="and finish"))
    torch, reason = find("torch")
    if torch is None:
        found.append(absent("torch.add", reason))
    else:
        a, b, c = map(torch.from_numpy, (x, y, out))
        found.append(Contender("torch.add", each(lambda: torch.add(b, a, alpha=2.5, out=c))))
    return found


def _opencl_launch(device: Any) -> Callable[[], None]:
    from benchmarks.saxpy_peers import OPENCL

    buffers = [device.over(vector) for vector in _vectors()]
    arguments = (buffers[0], _FACTOR, buffers[1], buffers[2], np.uint64(_N))
    call: Callable[[], None] = device.launcher(device.kernel(OPENCL, "saxpy"), _N, _N, arguments)
    return call


def _submissions() -> list[Contender]:
    stream = nbrt.Stream("cpu:0")
    launch = nbrt.kernel(saxpy)[1, _N, stream]
    event, timed = nbrt.Event(), nbrt.Event(enable_timing=True)
    other = nbrt.Stream("cpu:0")
    event.record(other)
    out, x, y = (nbrt.asarray(vector, device="cpu:0") for vector in _vectors())
    pool = ThreadPoolExecutor(1)
    bare: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def queued(name: str, call: Callable[[], object], note: str = "") -> Contender:
        return Contender(name, each(call), stream.synchronize, note, _MOST_QUEUED)

    return [
        Contender("SimpleQueue.put", each(lambda: bare.put(_nothing)), lambda: _drain(bare)),
        Contender(
            "ThreadPoolExecutor.submit",
            each(lambda: pool.submit(_nothing)),
            lambda: pool.submit(_nothing).result(),
            "one worker",
            _MOST_QUEUED,
        ),
        queued("nbrt launch", lambda: launch(out, _FACTOR, x, y)),
        queued("nbrt host call", lambda: stream.call(_nothing)),
        queued("nbrt event record", lambda: event.record(stream)),
        queued("nbrt timed event record", lambda: timed.record(stream)),
        queued("nbrt event wait", lambda: event.wait(stream), "the event is done already"),
    ]


def _drain(bare: queue.SimpleQueue[Any]) -> None:
    while not bare.empty():
        bare.get()


def _round_trips() -> list[Contender]:
    stream = nbrt.Stream("cpu:0")
    pool = ThreadPoolExecutor(1)

    def through_stream() -> None:
        stream.call(_nothing)
        stream.synchronize()

    return [
        Contender("nbrt call and synchronize", each(through_stream)),
        Contender(
            "ThreadPoolExecutor, submit and result",
            each(lambda: pool.submit(_nothing).result()),
            note="one worker",
        ),
    ]


def fill(report: Report, quick: bool) -> None:
    with nbrt.device("cpu:0"):
        contenders = [*_nbrt(), *_host_peers(), *_kernel_peers()]
        rows = measure(contenders, report.options)
        report.tables.append(Table("One block of 256 threads: launched, run, done", rows, "nbrt"))
        report.targets.append(
            Target("launch of one 256-thread block: at most 3 µs", rows[0].median, 3e-6, "s")
        )
        timed = Table(
            "Submission to a stream with a worker thread (the default stream runs work at once)",
            measure(_submissions(), _short(report.options)),
            "SimpleQueue.put",
        )
        report.tables.append(timed)
        report.tables.append(
            Table(
                "There and back: one empty call, waited for",
                measure(_round_trips(), report.options),
                "nbrt call and synchronize",
            )
        )


def _short(options: Options) -> Options:
    """Return options under which a queue never holds more than a few milliseconds of work."""
    return replace(options, sample_seconds=min(options.sample_seconds, 0.01))


if __name__ == "__main__":
    run("launch", "Launches and submissions", fill)
