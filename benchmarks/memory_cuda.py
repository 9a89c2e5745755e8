"""A GPU's memory: nbrt beside CuPy's pool and torch's allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.harness import Contender, absent, each, measure
from benchmarks.peers import find
from benchmarks.report import Report, Table, Target

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["fill_cuda"]

_SIZES = [("1 KiB", 1 << 10), ("64 KiB", 1 << 16), ("64 MiB", 64 << 20)]
_BYTE = np.dtype(np.uint8)


def fill_cuda(report: Report) -> None:
    """Add a table of each size, and the targets; without a GPU the rows say why they are empty."""
    reason = "" if nbrt.is_available("cuda") else "no CUDA device"
    for label, nbytes in _SIZES:
        rows = measure(_contenders(nbytes, reason), report.options)
        table = Table(f"Allocate and free {label} on cuda, untouched", rows, "nbrt.empty")
        report.tables.append(table)
        mine = table.row("nbrt.empty")
        for name, limit in (("cupy.empty", 1.2), ("torch.empty", 1.0)):
            other = table.row(name)
            ratio = None if mine is None or other is None else mine.ratio_to(other)
            text = f"nbrt.empty over {name}, {label} on cuda"
            report.targets.append(Target(text, ratio, limit, "x"))


def _contenders(nbytes: int, reason: str) -> list[Contender]:
    cupy, cupy_reason = _peer("cupy", reason)
    torch, torch_reason = _peer("torch", reason)
    if torch is not None and not torch.cuda.is_available():
        torch, torch_reason = None, "built without CUDA"
    return [
        absent("nbrt.empty", reason)
        if reason
        else Contender("nbrt.empty", each(lambda: nbrt.empty(nbytes, _BYTE, device="cuda:0"))),
        absent("nbrt.empty, stream given", reason) if reason else _with_stream(nbytes),
        absent("cupy.empty", cupy_reason)
        if cupy is None
        else Contender("cupy.empty", each(lambda: cupy.empty(nbytes, _BYTE))),
        absent("torch.empty", torch_reason)
        if torch is None
        else Contender(
            "torch.empty",
            each(lambda: torch.empty(nbytes, dtype=torch.uint8, device="cuda")),
        ),
    ]


def _peer(name: str, reason: str) -> tuple[ModuleType | Any, str]:
    module, missing = find(name)
    return (None, missing) if module is None else (None if reason else module, reason)


def _with_stream(nbytes: int) -> Contender:
    stream = nbrt.default_stream("cuda:0")
    return Contender(
        "nbrt.empty, stream given", each(lambda: nbrt.empty(nbytes, _BYTE, stream=stream))
    )
