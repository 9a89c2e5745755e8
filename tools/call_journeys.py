"""Count the Python calls, and the files they lie in, of the operations that users do most.

    python tools/call_journeys.py [--page docs/architecture.md] [--calls NAME]

Prints a table; with ``--page`` it replaces the table between the marks of that page; with
``--calls`` it lists the calls of one journey in their order. Only functions of nbrt count. Run it
where the default device is a CPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numba import cuda

import nbrt
from nbrt import distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

__all__ = ["Journey", "journeys", "main", "trace"]

_PACKAGE = str(Path(nbrt.__file__).parent)
_REPETITIONS = 20
_BEGIN, _END = "<!-- call journeys: begin -->", "<!-- call journeys: end -->"


class Journey(NamedTuple):
    """An operation to trace.

    Attributes
    ----------
    name : str
        Its name in the table.
    prepare : callable
        Returns the operation, a function without parameters.
    is_warm : bool
        Whether repetitions come before the one that counts.
    before : str
        Calls and files in the commit c2f603c, counted by this script.
    until : str
        End of the qualified name of the function of ``nbrt/random`` at which counting stops; empty:
        none.
    """

    name: str
    prepare: Callable[[], Callable[[], object]]
    is_warm: bool
    before: str
    until: str = ""


@nbrt.kernel(check=False)
def _add(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        y[i] += x[i]


def _launch() -> Callable[[], object]:
    x, y = nbrt.zeros(1024), nbrt.zeros(1024)
    return lambda: _add[4, 256](x, y)


def _zeros() -> Callable[[], object]:
    nbrt.zeros(1000)
    return lambda: nbrt.zeros(1000)


def _cold_allocation() -> Callable[[], object]:
    # A size class that no array has used, in a pool that has room for it.
    sizes = iter(range(77_777, 10**6, 5_000))
    kept = [nbrt.empty(next(sizes), "uint8")]
    return lambda: kept.append(nbrt.empty(next(sizes), "uint8"))


def _normal() -> Callable[[], object]:
    generator = nbrt.Generator(0)
    generator.standard_normal(100)
    return lambda: generator.standard_normal(100)


def _distributed_rand() -> Callable[[], object]:
    mesh = distributed.init_device_mesh("cpu", (1,))
    placements = [distributed.Shard(0)]
    return lambda: distributed.rand(8, 4, device_mesh=mesh, placements=placements)


def _record() -> Callable[[], object]:
    stream, event = nbrt.Stream(), nbrt.Event()

    def operation() -> None:
        with nbrt.stream(stream):
            event.record()

    return operation


def journeys() -> list[Journey]:
    """Return the journeys of the table."""
    return [
        Journey("`kernel[grid, block](x, y)`, several blocks", _launch, True, "13 in 8"),
        Journey("`nbrt.zeros(n)`", _zeros, True, "13 in 11"),
        Journey("an allocation of a new size class, cold", _cold_allocation, False, "88 in 16"),
        Journey("`generator.standard_normal(n)`", _normal, True, "26 in 18"),
        Journey(
            "`distributed.rand(...)` before the draw",
            _distributed_rand,
            True,
            "56 in 19",
            "._draw",
        ),
        Journey("`with nbrt.stream(s): event.record()`", _record, True, "17 in 9"),
    ]


def trace(journey: Journey) -> list[tuple[str, str]]:
    """Return the file and the qualified name of each function of nbrt that the journey calls."""
    operation = journey.prepare()
    for _ in range(_REPETITIONS if journey.is_warm else 0):
        operation()
    codes: list[CodeType] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            codes.append(frame.f_code)

    sys.setprofile(profile)
    try:
        operation()
    finally:
        sys.setprofile(None)
    calls = [(code.co_filename.removeprefix(_PACKAGE + "/"), code.co_qualname) for code in codes]
    ends = (
        number
        for number, (file, name) in enumerate(calls)
        if file.startswith("random") and name.endswith(journey.until)
    )
    return calls[: next(ends)] if journey.until else calls


def table() -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield "| Journey, warm unless named cold | calls | files | calls before |"
    yield "|---|---|---|---|"
    for journey in journeys():
        calls = trace(journey)
        files = {file for file, _ in calls}
        yield f"| {journey.name} | {len(calls)} | {len(files)} | {journey.before} files |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the table, or print the calls of one journey; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", type=Path, help="page whose table to replace")
    parser.add_argument("--calls", help="print the calls of the journeys whose name has this")
    options = parser.parse_args(arguments)
    if options.calls is not None:
        for journey in journeys():
            if options.calls in journey.name:
                print(journey.name)
                print("\n".join(f"  {name:44} {file}" for file, name in trace(journey)))
        return 0
    lines = "\n".join(table())
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        before, _, rest = text.partition(_BEGIN)
        after = rest.partition(_END)[2]
        options.page.write_text(f"{before}{_BEGIN}\n{lines}\n{_END}{after}", encoding="utf-8")
    print(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
