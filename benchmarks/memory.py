"""Host memory: nbrt's pool beside np.empty, allocated, touched once and freed.

``np.empty`` gives large blocks back to the system at once, so every use pays again for mapping and
for a page fault per 4 KiB. The pool hands the same pages out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, Options, absent, each, measure
from benchmarks.peers import find
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZES = [(4, "KiB"), (64, "KiB"), (1, "MiB"), (16, "MiB"), (64, "MiB"), (256, "MiB")]
_KEPT_BY_GLIBC = 32 << 20
"""glibc raises its mmap threshold to at most this, and keeps smaller blocks once one was freed."""

_SCALE = {"KiB": 1 << 10, "MiB": 1 << 20}


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
        ("nbrt.empty", lambda: nbrt.empty(nbytes, np.uint8, device="cpu:0"), ""),
        ("np.empty", lambda: np.empty(nbytes, np.uint8), ""),
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


def _small(options: Options) -> Table:
    shape, kind = (256,), np.dtype(np.float32)
    stream = nbrt.default_stream("cpu:0")
    contenders = [
        Contender("nbrt.empty", each(lambda: nbrt.empty(shape, kind))),
        Contender(
            "nbrt.empty, device named", each(lambda: nbrt.empty(shape, kind, device="cpu:0"))
        ),
        Contender("nbrt.empty, stream given", each(lambda: nbrt.empty(shape, kind, stream=stream))),
        Contender("np.empty", each(lambda: np.empty(shape, kind))),
    ]
    torch, reason = find("torch")
    if torch is None:
        contenders.append(absent("torch.empty", reason))
    else:
        contenders.append(Contender("torch.empty", each(lambda: torch.empty(256))))
    cupy, reason = find("cupy")
    if cupy is None or not cupy.is_available():
        why = reason if cupy is None else "no CUDA device"
        contenders.append(absent("cupy.empty", why))
    else:
        contenders.append(Contender("cupy.empty", each(lambda: cupy.empty(shape, kind))))
    with nbrt.device("cpu:0"):
        rows = measure(contenders, options)
    return Table("Allocate and free 1 KiB, untouched", rows, "nbrt.empty")


def fill(report: Report, quick: bool) -> None:
    small = _small(report.options)
    report.tables.append(small)
    row = small.row("nbrt.empty")
    report.targets.append(
        Target(
            "allocate and free a small array: at most 2.5 µs (an aim)",
            None if row is None else row.median,
            2.5e-6,
            "s",
        )
    )
    for size, unit in _SIZES[: 5 if quick else None]:
        nbytes = size * _SCALE[unit]
        rows = measure(_contenders(nbytes, _touched), report.options)
        heading = f"Allocate {size} {unit}, touch every page once, free"
        report.tables.append(Table(heading, rows, "nbrt.empty"))
        if nbytes > _KEPT_BY_GLIBC:
            text = f"nbrt.empty over np.empty, {size} {unit} touched: less time"
            report.targets.append(Target(text, rows[0].ratio_to(rows[1]), 1.0, "x"))
    size, unit = _SIZES[3]
    nbytes = size * _SCALE[unit]
    rows = measure(_contenders(nbytes, _filled), report.options)
    heading = f"Allocate {size} {unit}, write every byte, free"
    report.tables.append(Table(heading, rows, "nbrt.empty", nbytes=nbytes))
    report.notes.append(
        "Everything is measured warm. glibc keeps freed blocks of up to 32 MiB for np.empty, as "
        "long as nothing was allocated behind them, so there the pool cannot gain; larger blocks "
        "it gives back to the system each time."
    )


if __name__ == "__main__":
    run("memory", "Host memory", fill)
