"""The cost of a guard: target at most 1 µs over a context manager that sets one ContextVar."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

import nbrt
from benchmarks.harness import Contender, absent, each, measure
from benchmarks.peers import find
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_variable: ContextVar[object] = ContextVar("benchmark")


class _OneVariable:
    """The least that a guard of ambient state can do."""

    __slots__ = ("_token",)

    _token: Token[object]

    def __enter__(self) -> None:
        self._token = _variable.set(self)

    def __exit__(self, *_: object) -> None:
        _variable.reset(self._token)


def _entering(guard: Any) -> Callable[[int], None]:
    def batch(n: int) -> None:
        for _ in range(n):
            with guard:
                pass

    return batch


def _making(make: Callable[[], Any]) -> Callable[[int], None]:
    def batch(n: int) -> None:
        for _ in range(n):
            with make():
                pass

    return batch


def _peers() -> list[Contender]:
    found = []
    torch, reason = find("torch")
    if torch is None:
        found.append(absent("torch.device('cpu')", reason))
    else:
        found.append(Contender("torch.device('cpu')", _making(lambda: torch.device("cpu"))))
        found.append(Contender("torch.no_grad()", _making(torch.no_grad)))
    warp, reason = find("warp", "warp-lang")
    if warp is None:
        found.append(absent("warp.ScopedDevice('cpu')", reason))
    else:
        warp.config.quiet = True
        warp.init()
        found.append(
            Contender("warp.ScopedDevice('cpu')", _making(lambda: warp.ScopedDevice("cpu")))
        )
    cupy, reason = find("cupy")
    usable = cupy is not None and cupy.is_available()
    if usable:
        found.append(Contender("cupy.cuda.Device(0)", _making(lambda: cupy.cuda.Device(0))))
    else:
        found.append(absent("cupy.cuda.Device(0)", reason if cupy is None else "no CUDA device"))
    return found


def fill(report: Report, quick: bool) -> None:
    device, stream = nbrt.device("cpu:0"), nbrt.Stream("cpu:0")
    with nbrt.device("cpu:0"):
        nbrt.current_stream()
    contenders = [
        Contender("one ContextVar", _entering(_OneVariable()), note="the yardstick"),
        Contender("nbrt device guard", _entering(device), note="the guard object made once"),
        Contender("nbrt.device('cpu:0')", _making(lambda: nbrt.device("cpu:0"))),
        Contender("nbrt stream guard", _entering(nbrt.stream(stream)), note="made once"),
        Contender("nbrt.stream(s)", _making(lambda: nbrt.stream(stream))),
        Contender("nbrt MultiStreamGuard", _entering(nbrt.MultiStreamGuard(stream))),
        *_peers(),
    ]
    rows = measure(contenders, report.options)
    report.tables.append(Table("Enter and leave", rows, "one ContextVar"))
    for name, row in (("device", rows[1]), ("stream", rows[3])):
        report.targets.append(
            Target(
                f"{name} guard over one ContextVar: at most 1 µs",
                row.excess_over(rows[0]),
                1e-6,
                "s",
            )
        )
    asked = [
        Contender("ContextVar.get", each(_variable_get)),
        Contender("nbrt.current_device()", each(nbrt.current_device)),
        Contender("nbrt.current_stream()", each(nbrt.current_stream)),
    ]
    with nbrt.device("cpu:0"):
        report.tables.append(
            Table("Ask what is current", measure(asked, report.options), "ContextVar.get")
        )


def _variable_get() -> object:
    return _variable.get(None)


if __name__ == "__main__":
    run("guards", "Guards", fill)
