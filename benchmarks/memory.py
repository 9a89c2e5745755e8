"""Memory: allocate and free, history, traces of real programs, many threads, and the GPU's pools.

``np.empty`` gives large blocks back to the system at once, so every use pays again for mapping and
for a page fault per 4 KiB. The pool hands the same pages out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, Options, absent, each, measure
from benchmarks.memory_cuda import fill_cuda
from benchmarks.memory_history import fill_history
from benchmarks.memory_replay import fill_replays
from benchmarks.memory_threads import fill_threads
from benchmarks.peers import find
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZES = [(4, "KiB"), (64, "KiB"), (1, "MiB"), (16, "MiB"), (64, "MiB"), (256, "MiB")]
_QUICK_SIZES = [(64, "KiB")]
_KEPT_BY_GLIBC = 32 << 20
"""glibc raises its mmap threshold to at most this, and keeps smaller blocks once one was freed."""

_SCALE = {"KiB": 1 << 10, "MiB": 1 << 20}
_BYTE = np.dtype(np.uint8)
_MAX_OVERHEAD = 1.5e-6
_MAX_PINNED = 1.1


def _touched(make: Callable[[], Any], page: int = 4096) -> Callable[[], None]:
    def call() -> None:
        make()[::page] = 1

    return call


def _filled(make: Callable[[], Any]) -> Callable[[], None]:
    def call() -> None:
        make().fill(1)

    return call


def _makers(nbytes: int) -> list[tuple[str, Callable[[], Any] | None, str]]:
    makers: list[tuple[str, Callable[[], Any] | None, str]] = [
        ("nbrt.empty", lambda: nbrt.empty(nbytes, _BYTE, device="cpu:0"), ""),
        ("np.empty", lambda: np.empty(nbytes, _BYTE), ""),
    ]
    torch, reason = find("torch")
    if torch is None:
        makers.append(("torch.empty", None, reason))
    else:
        makers.append(("torch.empty", lambda: torch.empty(nbytes, dtype=torch.uint8).numpy(), ""))
    return makers


def _contenders(
    nbytes: int, use: Callable[[Callable[[], Any]], Callable[[], None]]
) -> list[Contender]:
    return [
        absent(name, note) if make is None else Contender(name, each(use(make)), note=note)
        for name, make, note in _makers(nbytes)
    ]


def _guarded(call: Callable[[], object]) -> Callable[[int], None]:
    batch = each(call)

    def guarded(n: int) -> None:
        with nbrt.device("cpu:0"):
            batch(n)

    return guarded


def _small(options: Options) -> Table:
    shape, kind = (256,), np.dtype(np.float32)
    stream = nbrt.default_stream("cpu:0")
    torch, reason = find("torch")
    contenders = [
        Contender("nbrt.empty, in a guard", _guarded(lambda: nbrt.empty(shape, kind))),
        Contender("nbrt.empty, no guard", each(lambda: nbrt.empty(shape, kind)))
        if nbrt.current_device().kind == "cpu"
        else absent("nbrt.empty, no guard", f"that is {nbrt.current_device()} here"),
        Contender(
            "nbrt.empty, device named", each(lambda: nbrt.empty(shape, kind, device="cpu:0"))
        ),
        Contender("nbrt.empty, stream given", each(lambda: nbrt.empty(shape, kind, stream=stream))),
        Contender("np.empty", each(lambda: np.empty(shape, kind))),
        Contender("torch.empty", each(lambda: torch.empty(256)))
        if torch is not None
        else absent("torch.empty", reason),
    ]
    rows = measure(contenders, options)
    return Table("Allocate and free 1 KiB, untouched", rows, "np.empty")


def _fill_small(report: Report) -> None:
    table = _small(report.options)
    report.tables.append(table)
    bare = table.row("np.empty")
    assert bare is not None
    for name in ("in a guard", "no guard", "stream given"):
        row = table.row(f"nbrt.empty, {name}")
        text = f"allocate and free 1 KiB, {name}: above np.empty by at most 1.5 µs"
        median = None if row is None else row.excess_over(bare)
        least = None if row is None else row.least - bare.least
        report.targets.append(Target(f"{text} (medians)", median, _MAX_OVERHEAD, "s"))
        report.targets.append(Target(f"{text} (least of the passes)", least, _MAX_OVERHEAD, "s"))


def _fill_large(report: Report) -> None:
    """A cached large block, against mapping one and touching it for the first time."""
    nbytes = 64 << 20
    contenders = [
        Contender("nbrt.empty", each(lambda: nbrt.empty(nbytes, _BYTE, device="cpu:0"))),
        *_contenders(nbytes, _touched)[1:],
    ]
    nbrt.zeros(nbytes, _BYTE, device="cpu:0")
    rows = measure(contenders, report.options)
    heading = "Allocate and free 64 MiB: nbrt cached, the others with their first touch"
    report.tables.append(Table(heading, rows, "nbrt.empty"))
    report.targets.append(
        Target(
            "nbrt.empty over np.empty and first touch, 64 MiB: at most 1/20 of the time",
            rows[0].ratio_to(rows[1]),
            1 / 20,
            "x",
        )
    )


def _fill_touched(report: Report, quick: bool) -> None:
    for size, unit in _QUICK_SIZES if quick else _SIZES:
        nbytes = size * _SCALE[unit]
        rows = measure(_contenders(nbytes, _touched), report.options)
        heading = f"Allocate {size} {unit}, touch every page once, free"
        report.tables.append(Table(heading, rows, "nbrt.empty"))
        if nbytes > _KEPT_BY_GLIBC:
            text = f"nbrt.empty over np.empty, {size} {unit} touched: less time"
            report.targets.append(Target(text, rows[0].ratio_to(rows[1]), 1.0, "x"))
    filled = measure(_contenders(16 << 20, _filled), report.options)
    heading = "Allocate 16 MiB, write every byte, free"
    report.tables.append(Table(heading, filled, "nbrt.empty", nbytes=16 << 20))
    report.notes.append(
        "Everything is measured warm, and with statistics, which are always on. glibc keeps freed "
        "blocks of up to 32 MiB for np.empty, as long as nothing was allocated behind them, so "
        "there the pool cannot gain; larger blocks it gives back to the system each time."
    )


def _fill_pinned(report: Report) -> None:
    """Page-locked memory that no cache holds, against the first touch of ordinary memory."""
    nbytes = 256 << 20

    def pinned() -> Any:
        nbrt.memory.empty_host_cache("cpu:0")
        return nbrt.empty_pinned(nbytes, _BYTE, device="cpu:0")

    contenders = [
        Contender("nbrt.empty_pinned", each(_filled(pinned))),
        Contender("np.empty", each(_filled(lambda: np.empty(nbytes, _BYTE)))),
    ]
    rows = measure(contenders, report.options)
    heading = "Map 256 MiB, page-locked or not, write every byte, free"
    report.tables.append(Table(heading, rows, "nbrt.empty_pinned", nbytes=nbytes))
    text = "nbrt.empty_pinned over np.empty, 256 MiB mapped and written: the same time"
    report.targets.append(Target(text, rows[0].ratio_to(rows[1]), _MAX_PINNED, "x"))


def fill(report: Report, quick: bool) -> None:
    _fill_small(report)
    _fill_large(report)
    _fill_touched(report, quick)
    _fill_pinned(report)
    fill_history(report)
    fill_replays(report, quick)
    fill_threads(report, quick)
    fill_cuda(report)


if __name__ == "__main__":
    run("memory", "Memory", fill)
