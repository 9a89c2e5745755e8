"""The memory of the process while a program needs terabytes of fake GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import nbrt

if TYPE_CHECKING:
    from nbrt.planning.plan import MemoryPlan

__all__ = ["NEEDED", "Resident", "resident_memory"]

NEEDED = 10**13
_DEVICES = 8
_ARRAYS = 10


class Resident(NamedTuple):
    """Bytes of the process, and those that the program needs of its devices.

    Attributes
    ----------
    before, after : int
        Resident bytes before the block, and at its end with all arrays alive.
    most : int
        The most resident bytes until then.
    peak : int
        Bytes on all devices at once.
    """

    before: int
    after: int
    most: int
    peak: int


def resident_memory() -> Resident:
    """Run the program once small, then large; call this in a new process."""
    _run(1 << 10)
    before = _status("VmRSS")
    plan, after = _run(-(-NEEDED // (_DEVICES * _ARRAYS * 4)))
    peak = sum(peak.allocated for peak in plan.peaks.values())
    return Resident(before, after, max(before, _status("VmHWM")), peak)


def _run(elements: int) -> tuple[MemoryPlan, int]:
    """Return the plan of a program, and the resident bytes at its end."""
    kept: list[Any] = []
    with nbrt.fake("cuda", gpu="H100 SXM", devices=_DEVICES) as plan:
        for index in range(_DEVICES):
            with nbrt.device(f"cuda:{index}"):
                for _ in range(_ARRAYS):
                    x = nbrt.empty((2, elements // 2), "float32")
                    nbrt.random.normal_(x)
                    halves = x[:, ::2] * 2.0
                    nbrt.copy(x[:, 1::2], halves[:, : x[:, 1::2].shape[1]])
                    kept.append(x)
        resident = _status("VmRSS")
    return plan, resident


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"expected a line {name} in /proc/self/status, got none")
