"""The cost of submitting work: target at most 3 µs for one block of 256 threads, run and done.

On the default stream of a CPU device, the call returns when the work is done, so that row includes
the work. On a stream with a worker thread, only the submission is timed.
"""

from __future__ import annotations

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, absent, each, measure
from benchmarks.peers import find, opencl_devices
from benchmarks.report import Report, Table, Target, run
from nbrt_kernels.elementwise import saxpy

if TYPE_CHECKING:
    from collections.abc import Callable

_N = 256
_FACTOR = np.float32(2.5)
_MAX_QUEUED = 1000


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
    found += map(_opencl, devices)
    torch, reason = find("torch")
    if torch is None:
        found.append(absent("torch.add", reason))
    else:
        a, b, c = map(torch.from_numpy, (x, y, out))
        found.append(Contender("torch.add", each(lambda: torch.add(b, a, alpha=2.5, out=c))))
    return found


def _opencl(device: Any) -> Contender:
    try:
        launch = _opencl_launch(device)
    except Exception as error:  # noqa: BLE001  # a compiler may fail for the chosen processor
        return absent(device.name, f"{type(error).__name__}: {error}"[:80])
    return Contender(device.name, each(launch), note="and finish")


def _opencl_launch(device: Any) -> Callable[[], None]:
    from benchmarks.saxpy_peers import OPENCL

    buffers = [device.over(vector) for vector in _vectors()]
    arguments = (buffers[0], _FACTOR, buffers[1], buffers[2], np.uint64(_N))
    kernel = device.kernel(OPENCL, "saxpy")
    call: Callable[[], None] = device.launcher(kernel, (1,), (_N,), arguments)
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
        return Contender(name, each(call), stream.synchronize, note, _MAX_QUEUED)

    return [
        Contender("SimpleQueue.put", each(lambda: bare.put(_nothing)), lambda: _drain(bare)),
        Contender(
            "ThreadPoolExecutor.submit",
            each(lambda: pool.submit(_nothing)),
            lambda: pool.submit(_nothing).result(),
            "one worker",
            _MAX_QUEUED,
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


def worker(cores: int, quick: bool) -> dict[str, list[Measurement]]:
    """Measure in this process: launches on one core, work between threads on two."""
    options = Options.quick() if quick else Options()
    with nbrt.device("cpu:0"):
        if cores == 1:
            return {"launch": measure([*_nbrt(), *_host_peers(), *_kernel_peers()], options)}
        submissions, round_trips = _submissions(), _round_trips()
        return {
            "submission": measure(submissions, options),
            "round trip": measure(round_trips, options),
        }


def fill(report: Report, quick: bool) -> None:
    flags = ["--quick"] if quick else []
    found = run_pinned("benchmarks.launch", 1, *flags)
    if len(os.sched_getaffinity(0)) > 1:
        found |= run_pinned("benchmarks.launch", 2, *flags)
    rows = {key: [Measurement.from_json(row) for row in rows] for key, rows in found.items()}
    heading = "One block of 256 threads: launched, run, done (one core)"
    report.tables.append(Table(heading, rows["launch"]))
    launch = rows["launch"][0]
    report.targets.append(
        Target("launch of one 256-thread block: at most 3 µs", launch.median, 3e-6, "s")
    )
    if "submission" not in rows:
        report.notes.append("Submissions were not measured: the process may use one core only.")
        return
    report.tables += [
        Table(
            "Submission to a stream with a worker thread (the default stream runs work at once)",
            rows["submission"],
            "SimpleQueue.put",
        ),
        Table(
            "There and back: one empty call, waited for",
            rows["round trip"],
            "nbrt call and synchronize",
        ),
    ]


if __name__ == "__main__":
    run("launch", "Launches and submissions", fill)
