"""The cost of memory history for an allocation, while it records and while it does not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

import nbrt
from benchmarks.harness import Contender, each, measure
from benchmarks.report import Report, Table, Target
from nbrt.observe.history.recorder import memory_history
from nbrt.runtime import commands

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fill_history"]

_DEPTH = 16
_CHECKS = 16
_KEPT = 10_000


def _recorded(batch: Callable[[int], object]) -> Callable[[int], None]:
    def recorded(n: int) -> None:
        with memory_history(max_entries=_KEPT):
            batch(n)

    return recorded


class _Idle:
    """A hook that does nothing."""

    def before(self, stream: object, command: object) -> None: ...

    def after(self, stream: object, command: object, result: object) -> None: ...

    def on_event(self, event: object) -> None: ...


def _hooked(batch: Callable[[int], object]) -> Callable[[int], None]:
    hook = _Idle()

    def hooked(n: int) -> None:
        with commands.install_hook(hook, ("allocate", "free")):
            batch(n)

    return hooked


def _deep(batch: Callable[[int], object], depth: int) -> Callable[[int], None]:
    def call(n: int, left: int) -> None:
        if left:
            call(n, left - 1)
        else:
            batch(n)

    return lambda n: call(n, depth)


def _events_per_call(batch: Callable[[int], object], calls: int = 100) -> float:
    with memory_history(max_entries=_KEPT) as history:
        batch(calls)
    return len(history) / calls


def _test_for_hooks() -> Callable[[int], None]:
    """Return a batch of tests, many in a turn of its loop, so that the loop hardly counts."""
    lines = ["def batch(n):", f"    for _ in repeat(None, n // {_CHECKS}):"]
    lines += ["        if commands.hooks: raise RuntimeError"] * _CHECKS
    names = {"commands": commands, "repeat": itertools.repeat}
    exec("\n".join(lines), names)
    return names["batch"]  # type: ignore[return-value]


def fill_history(report: Report) -> None:
    """Add the table, and targets per event."""
    kind = np.dtype(np.float32)
    allocate = each(lambda: nbrt.empty((256,), kind, device="cpu:0"))
    contenders = [
        Contender("off", allocate),
        Contender("an idle hook", _hooked(allocate)),
        Contender("history on", _recorded(allocate)),
        Contender(f"history on, {_DEPTH} calls deeper", _recorded(_deep(allocate, _DEPTH))),
    ]
    off, idle, *on = measure(contenders, report.options)
    table = Table("Allocate and free 1 KiB, watched", [off, idle, *on], "off")
    report.tables.append(table)
    events = _events_per_call(allocate)
    for row in on:
        for below, name in ((off, "in all"), (idle, "its own part")):
            text = f"{row.name}, {name}: at most 2 µs for each of the {events:.3g} events"
            report.targets += [
                Target(f"{text} (medians)", row.excess_over(below) / events, 2e-6, "s"),
                Target(f"{text} (least)", (row.least - below.least) / events, 2e-6, "s"),
            ]
    (check,) = measure([Contender("the test for hooks", _test_for_hooks())], report.options)
    report.tables.append(Table("What history costs an event while it is off", [check], check.name))
    text = "history off: at most 50 ns for each event"
    report.targets.append(Target(text, check.median, 50e-9, "s"))
