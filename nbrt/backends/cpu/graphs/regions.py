"""`Region`: chains that may run at once, and the decision whether that pays."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.cpu.block_scheduler import LaunchRecord
from nbrt.backends.cpu.graphs.chains import makespan, regions_of
from nbrt.backends.cpu.graphs.layout import ChainTable, ThreadState
from nbrt.backends.cpu.helpers import NativeLock
from nbrt.backends.cpu.interrupts import STOP
from nbrt.backends.cpu.waiting import wait_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.graphs.chains import Chain

__all__ = ["Region", "SharedRecord", "Stage", "new_state", "regions", "stages"]

_MIN_GAIN_NS = 60_000
"""Least time that several threads must save: waking a helper takes some tens of microseconds."""

_MEASURED_RUNS = 2
"""Runs in one thread before the decision; kernels of several blocks are timed in the first one."""

_RUNS_OF_DECISION = 16
"""Runs on several threads that follow from the times of one: a decision takes microseconds."""

_RUNS_BETWEEN = 256
"""Runs in one thread after which the times are measured again."""


class Stage(NamedTuple):
    """Part of a run: a range of instructions, or a region and the number of its threads."""

    begin: int
    end: int
    region: Region | None = None
    threads: int = 1


class Region:
    """Chains that are all done before the next region begins.

    Parameters
    ----------
    chains : sequence of Chain
        All chains of the program.
    numbers : range
        Those of the region.
    bounds : sequence of int
        The first instruction of each chain, and the number of all instructions.
    """

    def __init__(self, chains: Sequence[Chain], numbers: range, bounds: Sequence[int]) -> None:
        self.begin, self.end = bounds[numbers.start], bounds[numbers.stop]
        self.is_single = len(numbers) == 1
        self._chains, self._numbers = chains, numbers
        self._runs = 0
        inside: list[list[int]] = [
            [before - numbers.start for before in chains[number].before if before in numbers]
            for number in numbers
        ]
        followers: list[list[int]] = [[] for _ in numbers]
        for number, before in enumerate(inside):
            for each in before:
                followers[each].append(number)
        count = len(numbers)
        first = [number + 1 for number, before in enumerate(inside) if not before]
        waits = [len(before) for before in inside]
        state = _words([*first, *[0] * (count - len(first)), *waits])
        self._arrays = {
            "ready": state[:count],
            "begins": _words([bounds[number] for number in numbers]),
            "ends": _words([bounds[number + 1] for number in numbers]),
            "remaining": state[count:],
            "elapsed": _words([0] * count),
            "follower_begins": _words([0, *np.cumsum([len(each) for each in followers])]),
            "followers": _words([each for after in followers for each in after]),
        }
        addresses = {name: array.ctypes.data for name, array in self._arrays.items()}
        self.table = ChainTable(count=count, tail=len(first), **addresses)
        # What a run changes, and its first values: the table, and the arrays `state`.
        self._address = ctypes.addressof(self.table)
        self._changed = (self._address, bytes(self.table)), (state.ctypes.data, state.tobytes())
        self._decision = Stage(self.begin, self.end)
        self._decided_for = self._next_decision = 0

    def reset(self) -> int:
        """Prepare a run; return the address of the table."""
        for address, values in self._changed:
            ctypes.memmove(address, values, len(values))
        return self._address

    def times(self) -> list[int]:
        """Return the nanoseconds that each chain took in the last run by `run_chains`."""
        times: list[int] = self._arrays["elapsed"].tolist()
        return times

    def stage(self, threads: int) -> Stage:
        """Return the stage of the next run, which is counted."""
        if self.is_single or threads == 1:
            return Stage(self.begin, self.end)
        self._runs += 1
        if self._runs <= _MEASURED_RUNS:
            return Stage(self.begin, self.end, self)
        if self._runs >= self._next_decision or threads != self._decided_for:
            self._decided_for = threads
            self._decide(min(threads, len(self._numbers)))
        return self._decision

    def _decide(self, threads: int) -> None:
        """Choose the stage of this run and of those before `_next_decision`."""
        times = self.times()
        if sum(times) - makespan(self._chains, self._numbers, times, threads) >= _MIN_GAIN_NS:
            self._decision = Stage(self.begin, self.end, self, threads)
            self._next_decision = self._runs + _RUNS_OF_DECISION
            return
        last = self._runs % _RUNS_BETWEEN
        self._decision = Stage(self.begin, self.end, None if last else self)
        self._next_decision = self._runs + (_RUNS_BETWEEN - last if last else 1)


def regions(chains: Sequence[Chain], ends: Sequence[int]) -> list[Region]:
    """Return the regions of a program.

    Parameters
    ----------
    chains : sequence of Chain
        The chains, in the order of their instructions.
    ends : sequence of int
        The instruction behind each node, in the same order.
    """
    bounds, done = [0], 0
    for chain in chains:
        done += len(chain.nodes)
        bounds.append(ends[done - 1])
    return [Region(chains, numbers, bounds) for numbers in regions_of(chains)]


def stages(parts: Sequence[Region], threads: int) -> list[Stage]:
    """Return the stages of the next run; what one thread runs in sequence is one stage."""
    merged: list[Stage] = []
    for part in parts:
        stage = part.stage(threads)
        if stage.region is None and merged and merged[-1].region is None:
            merged[-1] = merged[-1]._replace(end=stage.end)
        else:
            merged.append(stage)
    return merged


def new_state() -> ThreadState:
    """Return the state of a thread that runs instructions."""
    state = ThreadState()
    state.lock = NativeLock()  # lives as long as the state
    state.record.done = state.lock.address
    state.record.failed[0] = -1
    state.record.wait = wait_address()
    return state


class SharedRecord(LaunchRecord):
    """The record by which several threads run a region.

    Each thread has a record for its kernels: the end of the launch reaches all, a tick of the main
    thread its own.

    Parameters
    ----------
    states : sequence of ThreadState
        The states of the threads, that of the caller first.
    """

    def __init__(self, states: Sequence[ThreadState]) -> None:
        super().__init__(len(states), 1, 1, len(states), 1, 0)
        self._records = [state.record for state in states]
        for record in self._records[1:]:
            record.stop = 0

    @property
    def stop(self) -> int:
        """The stop word of the caller."""
        return self._records[0].stop

    @stop.setter
    def stop(self, value: int) -> None:
        for record in self._records if value == STOP else self._records[:1]:
            record.stop = value


def _words(values: Sequence[int]) -> Any:
    return np.array(values, np.int64)
