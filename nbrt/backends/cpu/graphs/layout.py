"""The structures that Python fills and the native loop of a replay reads."""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np

from nbrt.backends.cpu.block_scheduler import LaunchRecord

__all__ = [
    "INSTRUCTION",
    "ChainTable",
    "Image",
    "Operation",
    "Status",
    "ThreadState",
]


class Operation(IntEnum):
    """Kinds of instructions.

    The field `next` of every instruction is the number of the one to go on with.
    """

    SKIP = 0
    """Nothing: a disabled node."""
    LAUNCH = 1
    """Run all blocks of a kernel in this thread."""
    TIMED = 2
    """The same; becomes `CALL`, which may use all cores, once a launch takes long."""
    COPY = 3
    """Copy `b` bytes from address `source` to `target`."""
    FILL = 4
    """Repeat the `a` bytes at `source` over the `b` bytes at `target`."""
    CALL = 5
    """Call back into Python."""
    TEST = 6
    """Go to `b` if the element of `a` bytes at `target` is 0."""
    LOOP = 7
    """Set the counter at `source` to 0."""
    TURN = 8
    """Go to `b` if the element of `a` bytes at `target` is 0; count a turn, `c` at most."""
    SELECT = 9
    """Go to the entry of the table of `b` numbers at `source` that the element at `target` says."""
    ADVANCE = 10
    """Add `b` to the word at `target`."""
    SHARED = 11
    """Run the blocks of a kernel in this thread and in idle helpers, `c` at a time.

    Becomes `CALL` once a launch is short.
    """


class Status(IntEnum):
    """Result of a replay."""

    DONE = 0
    KERNEL = 1
    """A kernel returned the code in `ThreadState.code`."""
    PYTHON = 2
    """A function raised an exception, which is set."""
    LIMIT = 3
    """A loop is beyond its limit."""
    STOPPED = 4
    """The stop word ended the replay."""
    INTERRUPTED = 5
    """A signal handler raised an exception, which is set."""


INSTRUCTION = np.dtype(
    {
        "names": [
            "operation", "next", "target", "source", "a", "b", "c", "shared",
            "grid", "total", "entry", "trampoline",
        ],
        "formats": [
            "i8", "i8", "u8", "u8", "i8", "i8", "i8", "i8",
            ("i8", 3), "i8", "u8", "u8",
        ],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64, 88, 96, 104],
        "itemsize": 128,
    }
)  # fmt: skip
"""One instruction. `source` of a launch is the address of its arguments."""


class ThreadState(ctypes.Structure):
    """State of one OS thread that takes part in a replay."""

    _fields_ = (
        ("record", LaunchRecord),
        ("error", ctypes.c_void_p),
        ("code", ctypes.c_int64),
        ("failed_at", ctypes.c_int64),
    )

    record: LaunchRecord
    """Grid and stop word of the kernel that the thread runs."""
    error: int | None
    """Numba's description of the exception that a kernel raised."""
    code: int
    """Status of the kernel that failed."""
    failed_at: int
    """Number of the instruction that failed."""


class ChainTable(ctypes.Structure):
    """Chains of instructions that several threads run; each address is that of an int64 array."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("tail", ctypes.c_int64),
        ("failed", ctypes.c_int64),
        ("ready", ctypes.c_void_p),
        ("begins", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("remaining", ctypes.c_void_p),
        ("elapsed", ctypes.c_void_p),
        ("follower_begins", ctypes.c_void_p),
        ("followers", ctypes.c_void_p),
    )

    count: int
    """Number of chains."""
    head: int
    """Entries of `ready` that threads have claimed."""
    tail: int
    """Entries of `ready` that are in use."""
    failed: int
    """Not 0 once a chain has failed."""
    ready: int
    """Numbers of the chains that can run, plus 1, in the order in which they became ready."""
    begins: int
    """First instruction of each chain."""
    ends: int
    """Last instruction of each chain, plus 1."""
    remaining: int
    """Chains that each chain still waits for."""
    elapsed: int
    """Nanoseconds that the last run of each chain took."""
    follower_begins: int
    """First of the followers of each chain, and the number of all followers."""
    followers: int
    """Chains that wait for a chain."""


class Image(ctypes.Structure):
    """A program as native code sees it."""

    _fields_ = (
        ("instructions", ctypes.c_void_p),
        ("callback", ctypes.c_void_p),
        ("max_short_ns", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("slot_count", ctypes.c_int64),
        ("share", ctypes.c_void_p),
    )

    instructions: int
    """Address of the first instruction."""
    callback: int | None
    """Address of a Python object that is called with the number of an instruction."""
    max_short_ns: int
    """A timed launch that takes longer uses all cores the next time."""
    slots: int | None
    """Address of the slots of helper threads."""
    slot_count: int
    """Number of the slots to use."""
    share: int | None
    """As `LaunchRecord.share`."""
