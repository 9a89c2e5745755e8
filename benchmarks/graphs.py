"""Graphs: the cost of a captured node, beside eager launches and Warp's graphs on the CPU.

Rows of one table are measured in one process, pass by pass. On the default stream of a CPU device,
a replay is done when the call returns.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

import nbrt
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, absent, each, measure
from benchmarks.peers import find
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_NODES = (1, 100, 1000)
_THREADS = (1, 256)
_LARGE = 1 << 22
_TURNS = 6_000_000
_LIMITS = {1: 0.076e-6, 256: 0.137e-6}
"""Seconds per node of Warp 1.19, by threads, on the machine of the targets."""

_MAX_CAPTURE = 3e-6
"""Seconds per node."""


@nbrt.kernel
def add(x: Any, value: Any) -> None:
    """Add a value to every element."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


@nbrt.kernel
def long_sum(x: Any, turns: Any) -> None:
    """Keep one thread busy for some milliseconds; a launch of one block uses one core."""
    total = 0.0
    for turn in range(turns):
        total += turn * x[0]
    x[0] = total


def _captured(nodes: int, threads: int) -> tuple[Any, Callable[[], None], Callable[[], Any]]:
    """Return a graph of equal launches, a function that launches them, and one that captures."""
    x = nbrt.zeros(threads, "float32")
    launch, value = add[1, threads], np.float32(1)
    launch(x, value)

    def eager() -> None:
        for _ in range(nodes):
            launch(x, value)

    def capture() -> Any:
        with nbrt.graph() as graph:
            eager()
        return graph

    return capture(), eager, capture


def _nodes(nodes: int, threads: int) -> list[Contender]:
    graph, eager, _ = _captured(nodes, threads)
    rows = [Contender("nbrt", each(graph.replay)), Contender("nbrt, eager", each(eager))]
    warp, reason = find("warp", "warp-lang")
    if warp is None:
        return [*rows, absent("Warp", reason)]
    from benchmarks.graphs_warp import warp_graph

    replay, _ = warp_graph(warp, nodes, threads)
    return [*rows, Contender("Warp", each(replay), note="capture_launch")]


class _Abandoned(Exception):  # noqa: N818  # ends a block
    """Ends a capture without a graph."""


def _captures() -> list[Contender]:
    _, eager, capture = _captured(_NODES[-1], 1)

    def record() -> None:
        with contextlib.suppress(_Abandoned), nbrt.graph():
            eager()
            raise _Abandoned

    def capture_and_reset() -> None:
        capture().reset()

    rows = [
        Contender("nbrt", each(record), note="the block, without a graph at its end", most=50),
        Contender("nbrt, in all", each(capture_and_reset), note="with instantiation", most=50),
    ]
    warp, reason = find("warp", "warp-lang")
    if warp is None:
        return [*rows, absent("Warp", reason)]
    from benchmarks.graphs_warp import warp_graph

    return [*rows, Contender("Warp", each(warp_graph(warp, _NODES[-1], 1)[1]), most=50)]


def _on_a_stream() -> list[Contender]:
    graph, eager, _ = _captured(_NODES[-1], 1)
    stream = nbrt.Stream("cpu:0")

    def replay() -> None:
        graph.replay(stream=stream)
        stream.synchronize()

    def launches() -> None:
        with nbrt.stream(stream):
            eager()
        stream.synchronize()

    return [Contender("nbrt", each(replay)), Contender("nbrt, eager", each(launches))]


def _large() -> list[Contender]:
    x = nbrt.zeros(_LARGE, "float32")
    launch, value = add[_LARGE // 256, 256], np.float32(1)
    launch(x, value)
    with nbrt.graph() as graph:
        launch(x, value)
    return [
        Contender("nbrt", each(graph.replay)),
        Contender("nbrt, eager", each(lambda: launch(x, value))),
    ]


def _branches() -> list[Contender]:
    side = nbrt.Stream("cpu:0")
    arrays = [nbrt.zeros(1), nbrt.zeros(1)]

    def work() -> None:
        main = nbrt.current_stream()
        side.wait_stream(main)
        for stream, x in zip((main, side), arrays, strict=True):
            with nbrt.stream(stream):
                long_sum[1, 1](x, _TURNS)
        main.wait_stream(side)

    work()
    nbrt.synchronize()
    with nbrt.graph() as graph:
        work()
    with nbrt.graph(deterministic=True) as ordered:
        work()
    for _ in range(3):  # the first replays measure the branches
        graph.replay()
    return [
        Contender("nbrt", each(graph.replay), note="two branches"),
        Contender("nbrt, deterministic", each(ordered.replay), note="one after the other"),
        Contender("two threads", _two_threads(arrays), note="the same launches without a graph"),
    ]


def _two_threads(arrays: list[Any]) -> Callable[[int], None]:
    """Return the launches of two branches in two threads: what the cores allow at this load."""
    begin, end = threading.Semaphore(0), threading.Semaphore(0)
    launch = long_sum[1, 1]

    def serve() -> None:
        stream = nbrt.Stream("cpu:0")
        with nbrt.stream(stream):
            while begin.acquire():
                launch(arrays[1], _TURNS)
                stream.synchronize()
                end.release()

    def both() -> None:
        begin.release()
        launch(arrays[0], _TURNS)
        end.acquire()

    threading.Thread(target=serve, daemon=True).start()
    return each(both)


def worker(cores: int, quick: bool) -> dict[str, list[Measurement]]:
    """Measure in this process: nodes on one core, streams and branches on two."""
    options = Options.quick() if quick else Options()
    with nbrt.device("cpu:0"):
        if cores == 1:
            found = {
                f"{nodes} {threads}": measure(_nodes(nodes, threads), options)
                for nodes in _NODES
                for threads in _THREADS
            }
            return found | {"capture": measure(_captures(), options)}
        return {
            "stream": measure(_on_a_stream(), options),
            "large": measure(_large(), options),
            "branches": measure(_branches(), options),
        }


def fill(report: Report, quick: bool) -> None:
    """Add the tables and targets."""
    flags = ["--quick"] if quick else []
    found = run_pinned("benchmarks.graphs", 1, *flags)
    two_cores = len(os.sched_getaffinity(0)) > 1
    if two_cores:
        found |= run_pinned("benchmarks.graphs", 2, *flags)
    rows = {key: [Measurement.from_json(row) for row in rows] for key, rows in found.items()}
    most = _NODES[-1]
    for nodes in _NODES:
        for threads in _THREADS:
            heading = f"Replay of {nodes} launches of {threads} threads (one core)"
            report.tables.append(Table(heading, rows[f"{nodes} {threads}"], items=nodes))
    for threads, limit in _LIMITS.items():
        measured = rows[f"{most} {threads}"][0].median / most
        text = f"a node of {threads} threads, of {most}: at most {limit * 1e6:.3f} µs"
        report.targets.append(Target(text, measured, limit, "s"))
        warp = next((row for row in rows[f"{most} {threads}"] if row.name == "Warp"), None)
        ratio = rows[f"{most} {threads}"][0].ratio_to(warp) if warp and warp.seconds else None
        report.targets.append(Target("the same over Warp's in this run: at most 1", ratio, 1.0))
    heading = f"Capture of {most} launches (one core)"
    report.tables.append(Table(heading, rows["capture"], items=most))
    text = f"capture of a node, of {most}: at most {_MAX_CAPTURE * 1e6:.0f} µs"
    captured = rows["capture"][0]
    for name, seconds in ("medians", captured.median), ("least", captured.least):
        report.targets.append(Target(f"{text} ({name})", seconds / most, _MAX_CAPTURE, "s"))
    if not two_cores:
        report.notes.append("Streams and branches were not measured: the process may use one core.")
        return
    heading = f"Replay of {most} launches on a stream with a thread, and synchronize"
    report.tables.append(Table(heading, rows["stream"]))
    text = f"replay of {most} nodes on a stream, and synchronize: at most 150 µs"
    report.targets.append(Target(text, rows["stream"][0].median, 150e-6, "s"))
    report.tables.append(Table(f"One launch of {_LARGE} threads (two cores)", rows["large"]))
    ratio = rows["large"][0].ratio_to(rows["large"][1])
    text = "replay of one large kernel over the eager launch: at most 1.02"
    report.targets.append(Target(text, ratio, 1.02))
    report.tables.append(Table("Fork and join of two equal branches (two cores)", rows["branches"]))
    ratio = rows["branches"][0].ratio_to(rows["branches"][1])
    text = "two branches over one after the other: at most 0.6 (0.5 is perfect overlap)"
    report.targets.append(Target(text, ratio, 0.6))
    ratio = rows["branches"][0].ratio_to(rows["branches"][2])
    text = "two branches over the same launches in two threads: at most 1.1"
    report.targets.append(Target(text, ratio, 1.1))


if __name__ == "__main__":
    run("graphs", "Graphs: captured once, replayed", fill)
