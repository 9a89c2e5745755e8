"""The block function: a record for the block, a coroutine for each thread, and the scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Literal

from nbrt.backends.cpu.simt.coroutines.suspend_points import (
    KINDS,
    WARP_OPERATIONS,
    calls_marker,
    operation,
    waits,
)
from nbrt.backends.cpu.simt.coroutines.thread import (
    SHARED_PARAMETERS,
    shared_parameters,
    thread_coroutine,
    uniform_parameters,
)
from nbrt.backends.cpu.simt.coroutines.yields import insert_yields
from nbrt.backends.cpu.simt.llvm.model import THREAD_PARAMETERS, Function, Operand, ThreadIR
from nbrt.backends.cpu.simt.llvm.parse import parse_function
from nbrt.backends.cpu.simt.llvm.polls import polled_thread
from nbrt.backends.cpu.simt.placeholders import (
    ACTIVEMASK,
    GRID_SYNC,
    PREFIX,
    SHARED,
    SHARED_BYTES,
    SHARED_DYNAMIC,
    WARP_SIZE,
    YIELD,
    shared_extent,
)
from nbrt.backends.cpu.simt.stop_codes import (
    ATTEND,
    CALLING_CONVENTION,
    DEADLOCKED,
    STOPPED,
    WAIT_INTERRUPTED,
)
from nbrt.errors import ArgumentError, UnsupportedConstructError

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.spins import Spin

__all__ = [
    "Order",
    "Resumed",
    "coroutine_block",
    "coroutine_grid",
    "coroutine_resident",
]

Order = Literal["linear", "seeded"]

_PATIENT_SWEEPS = 32
"""Turns of the resident blocks before further blocks begin, although threads change memory: they
may only count attempts."""

_PATIENT_ROUNDS = 1000
"""Turns without a change after which the OS thread sleeps between turns."""

_HERE = Path(__file__).parent
_CACHE_LINE = 64
_MAX_THREADS = WARP_SIZE * 32
"""The warps of a block are the bits of one 32-bit number."""

_WARP_FIELDS = ("[32 x i32]", "[32 x i32]", "[32 x i32]", "[32 x i64]", "[32 x i64]")

_NO_WARP_OPERATIONS = """
define internal i32 @simt.warp.resolve(ptr %block, i32 %warp) alwaysinline {
  ret i32 0
}
"""

_NO_RESUMED = """
define internal void @simt.resumed(ptr %block, i32 %rank) alwaysinline {
  ret void
}
"""

_RESUMED = """
declare void @${symbol}(i64, i64, i64)

define internal void @simt.resumed(ptr %block, i32 %rank) alwaysinline {
  %number.at = getelementptr inbounds %simt.block, ptr %block, i32 0, i32 2, i32 6
  %number = load i64, ptr %number.at
  %rank.wide = zext i32 %rank to i64
  call void @${symbol}(i64 ${context}, i64 %number, i64 %rank.wide)
  ret void
}
"""

_CLAIMS = (
    Operand("ptr", "%simt.next"),
    Operand("i64", "%simt.count"),
    Operand("ptr", "%simt.order"),
    Operand("ptr", "%simt.activity"),
    Operand("i64", "%simt.limit"),
    Operand("ptr", "%simt.wait"),
)
"""Parameters of the function of resident blocks, after those of a block function."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A native function that is called when a thread starts or continues.

    Attributes
    ----------
    symbol : str
        Its name; it takes three ``i64``: `context`, the number of the block in the grid and the
        rank of the thread in the block.
    context : int
        A constant.
    """

    symbol: str
    context: int

    def text(self) -> str:
        """Return LLVM assembly of ``@simt.resumed``."""
        return Template(_RESUMED).substitute(symbol=self.symbol, context=self.context)


def coroutine_block(
    code: ThreadIR,
    *,
    order: Order = "linear",
    resumed: Resumed | None = None,
) -> str:
    """Return the function that runs one block, each thread a coroutine.

    Parameters
    ----------
    code : ThreadIR
        The thread function, with markers.
    order : {"linear", "seeded"}
        The order of threads that can run: by index, or pseudo-random from an additional last
        parameter ``i64`` of the block function.
    resumed : Resumed, optional
        Called when a thread starts or continues.

    Returns
    -------
    str
        LLVM assembly of a module that defines ``<name>.block``. It returns the status of the first
        thread that failed, 0 if none did, and -1, Numba's for an exception that Python has set,
        if there is no memory for the threads.
    """
    writer = _BlockWriter(code, order, resumed)
    if writer.has_grid_barrier:
        raise ArgumentError(
            f"expected code whose threads wait for their block only, got {code.name!r}, which "
            "waits for the grid: use coroutine_grid"
        )
    return writer.module("block.ll")


def coroutine_grid(
    code: ThreadIR,
    *,
    order: Order = "linear",
    resumed: Resumed | None = None,
) -> str:
    """Return the function that runs a whole grid whose blocks wait for each other.

    Parameters
    ----------
    code : ThreadIR
        The thread function, with markers.
    order, resumed
        As for `coroutine_block`.

    Returns
    -------
    str
        LLVM assembly of a module that defines ``<name>.grid``, with the parameters of a block
        function. The index of the block and the dynamic shared memory are ignored (each block
        allocates its memory), and ``where`` is six ``i32``: the indices of thread and block.
    """
    return _BlockWriter(code, order, resumed).module("grid.ll")


def coroutine_resident(
    code: ThreadIR,
    spins: list[Spin],
    *,
    order: Order = "linear",
    resumed: Resumed | None = None,
) -> tuple[str, list[str]]:
    """Return the function that runs several blocks at once, for threads that spin.

    Parameters
    ----------
    code : ThreadIR
        The thread function, with markers, including those of source locations.
    spins : list of Spin
        Its loops that spin.
    order, resumed
        As for `coroutine_block`.

    Returns
    -------
    module : str
        LLVM assembly of a module that defines ``<name>.resident``. It has the parameters of a
        block function (the place of the block and the dynamic shared memory are ignored), where
        ``where`` is seven ``i32``: the thread's index, the block's and, for `DEADLOCKED`, the
        number of the site that the thread waits at. Behind them, the address of the next block to
        claim, the number of blocks, the address of their numbers in the order in which to begin
        them (or null), the address of the launch's activity, the most blocks to be resident, and
        a function ``i64 (i64)``. That is called where no thread makes progress,
        with the number of times in a row that this is so in all OS threads of the launch; it gives
        0 to continue, 1 to end the launch as deadlocked and 2 to end it as interrupted.
    places : list of str
        Source location of each site, from 1.
    """
    writer = _BlockWriter(code, order, resumed, spins)
    return writer.module("resident.ll"), writer.places


class _BlockWriter:
    """Assembles the text of a module."""

    def __init__(
        self,
        code: ThreadIR,
        order: Order,
        resumed: Resumed | None,
        spins: list[Spin] | None = None,
    ) -> None:
        self._code = code
        self._seeded = order == "seeded"
        self._resumed = resumed
        yielding = [spin.header.removeprefix("%") for spin in spins or ()]
        text = polled_thread(code.module, code.name, yielding)
        self._function = parse_function(text, code.name)
        self._threads = code.block[0] * code.block[1] * code.block[2]
        if not 1 <= self._threads <= _MAX_THREADS:
            raise ArgumentError(
                f"expected a block of 1 to {_MAX_THREADS} threads, got {code.block}: use more "
                "and smaller blocks"
            )
        if re.search(rf'\bcall [^@]*@"?{re.escape(PREFIX)}', self._function.outside):
            raise UnsupportedConstructError(
                f"expected code with all that waits or uses shared memory inlined, got "
                f"{code.name!r}, which calls a function that does: is it recursive? Write a loop"
            )
        self._waits = [operation(item) for item in waits(self._function)]
        self._is_resident = spins is not None
        self.places = insert_yields(self._function, spins or []) if spins is not None else []
        """Source location of each site at which a thread of resident blocks waits."""
        self._shared, self._shared_bytes, self._alignment = _lay_out_shared(self._function)

    @property
    def has_grid_barrier(self) -> bool:
        """Whether a thread waits for the grid."""
        return GRID_SYNC in self._waits

    def module(self, entry: str) -> str:
        """Return the module, with the file of its entry function."""
        used = [name for name in WARP_OPERATIONS if name in self._waits]
        names = self._names(used)
        pieces = [
            _file("record.ll", names),
            _NO_RESUMED if self._resumed is None else self._resumed.text(),
            _file("warp.ll", names) if used else _NO_WARP_OPERATIONS,
            _file("scheduler.ll", names),
            thread_coroutine(self._function, self._code.block, self._shared),
            _file(entry, names),
        ]
        return _joined(self._function.outside, "\n".join(pieces))

    def _names(self, used: list[str]) -> dict[str, object]:
        """Return the values of the placeholders in the files."""
        warps = -(-self._threads // WARP_SIZE)
        operations = [(KINDS[name], "simt." + name.removeprefix(PREFIX)) for name in used]
        return {
            "above": self._alignment - 1,
            "arguments": ", ".join(item.type for item in shared_parameters(self._function)),
            "activemask": KINDS[ACTIVEMASK],
            "attend": f"{CALLING_CONVENTION} i32 @{ATTEND}",
            "alignment": self._alignment,
            "begin": KINDS[YIELD] if self._is_resident else 1,
            "deadlocked": DEADLOCKED,
            "has_grid": "true" if self.has_grid_barrier else "false",
            "interrupted": WAIT_INTERRUPTED,
            "patient_rounds": _PATIENT_ROUNDS,
            "patient_sweeps": _PATIENT_SWEEPS,
            "stopped": STOPPED,
            "cases": "\n".join(f"    i32 {k}, label %op{k}" for k, _ in operations),
            "every_warp": (1 << warps) - 1,
            "height": self._code.block[1],
            "lanes": "<" + ", ".join(f"i32 {lane}" for lane in range(WARP_SIZE)) + ">",
            "last_lanes": (1 << (self._threads - WARP_SIZE * (warps - 1))) - 1,
            "last_warp": warps - 1,
            "name": f'@"{self._code.name}',
            "operations": "\n".join(
                f"op{k}:\n  %r{k} = call <32 x i64> @{name}(ptr %record, i32 %group)\n"
                "  br label %store"
                for k, name in operations
            ),
            "parameters": self._parameters(),
            "results": ", ".join(f"[ %r{k}, %op{k} ]" for k, _ in operations),
            "seed": "%simt.seed" if self._seeded else "0",
            "seeded": "true" if self._seeded else "false",
            "shared": self._shared_bytes,
            "threads": self._threads,
            "warp": ", ".join(_WARP_FIELDS if used else _WARP_FIELDS[:1]),
            "warps": warps,
            "width": self._code.block[0],
            **self._argument_names(),
        }

    def _parameters(self) -> str:
        """Return the parameters of a block function."""
        where = [Operand("ptr", "%simt.where")]
        seed = [Operand("i64", "%simt.seed")] if self._seeded else []
        claims = _CLAIMS if self._is_resident else ()
        items = [*self._function.parameters, *SHARED_PARAMETERS, *where, *claims, *seed]
        return ", ".join(f"{item.type} {item.text}" for item in items)

    def _argument_names(self) -> dict[str, object]:
        """Return the names of the block's index, and the code that stores all arguments."""
        place = uniform_parameters(self._function)[THREAD_PARAMETERS : THREAD_PARAMETERS + 6]
        keys = [f"{kind}_{axis}" for kind in ("block", "grid") for axis in "xyz"]
        stores = []
        for index, item in enumerate(shared_parameters(self._function)):
            path = f"i32 0, i32 3, i32 {index}"
            at = f"%simt.at{index}"
            stores.append(
                f"  {at} = getelementptr inbounds %simt.block, ptr %simt.block, {path}\n"
                f"  store {item.type} {item.text}, ptr {at}"
            )
        return {
            "store_arguments": "\n".join(stores),
            "shared_field": len(stores) - len(SHARED_PARAMETERS),
            "stop_field": len(stores) - 1,
            "block_field": THREAD_PARAMETERS,
            **{key: item.text for key, item in zip(keys, place, strict=True)},
        }


def _lay_out_shared(function: Function) -> tuple[dict[str, int], int, int]:
    """Return the layout of static shared arrays: offsets by marker, size, alignment."""
    markers = dict.fromkeys(
        item.detail
        for _, item in function.instructions()
        if calls_marker(item)
        and item.detail.startswith(SHARED)
        and item.detail not in (SHARED_DYNAMIC, SHARED_BYTES)
    )
    offsets, end, most = {}, 0, _CACHE_LINE
    for marker in markers:
        size, alignment = shared_extent(marker)
        offsets[marker] = -(-end // alignment) * alignment
        end = offsets[marker] + size
        most = max(most, alignment)
    return offsets, -(-end // _CACHE_LINE) * _CACHE_LINE, most


def _joined(outside: str, ours: str) -> str:
    """Join the thread's module, without markers, and ours, without duplicate declarations."""
    outside = re.sub(rf'^declare .*@"?{re.escape(PREFIX)}.*$', "", outside, flags=re.MULTILINE)
    known = set(re.findall(r"^(?:declare|define) [^@]*@([-\w.$]+)\(", outside, re.MULTILINE))
    kept = []
    for line in ours.splitlines():
        declared = re.match(r"declare [^@]*@([-\w.$]+)\(", line)
        if declared is None or declared[1] not in known:
            kept.append(line)
            known.update(declared.groups() if declared else ())
    return "\n".join([outside, *kept, ""])


def _file(name: str, names: dict[str, object]) -> str:
    return Template((_HERE / name).read_text(encoding="utf-8")).substitute(names)
