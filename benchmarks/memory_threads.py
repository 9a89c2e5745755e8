"""Sixteen threads that allocate, hand arrays to each other and free them: nothing may get lost."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.report import Report, Sheet, Target

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Crowd", "fill_threads"]

_THREADS = 16
_HELD = 24
_STRIDE = 64


@dataclass
class Crowd:
    """The results of the threads.

    Attributes
    ----------
    make : callable
        Returns an array of so many bytes.
    seconds : float
        How long they go on.
    threads : int
        How many.
    made, nbytes : int
        Arrays, and bytes in them.
    spoilt : int
        Arrays that did not keep what was written into them.
    """

    make: Callable[[int], Any]
    seconds: float
    threads: int = _THREADS
    made: int = 0
    nbytes: int = 0
    spoilt: int = 0
    failures: list[BaseException] = field(default_factory=list)

    def run(self) -> float:
        """Let the threads work; return the arrays made and freed per second."""
        mail: list[deque[Any]] = [deque() for _ in range(self.threads)]
        lock = threading.Lock()
        start = threading.Barrier(self.threads + 1)

        def work(place: int) -> None:
            try:
                start.wait()
                found = self._work(place, mail[place], mail[(place + 1) % self.threads])
            except BaseException as error:  # noqa: BLE001  # told below, in the thread that reports
                self.failures.append(error)
                return
            with lock:
                self.made, self.nbytes = self.made + found[0], self.nbytes + found[1]
                self.spoilt += found[2]

        workers = [threading.Thread(target=work, args=(place,)) for place in range(self.threads)]
        for worker in workers:
            worker.start()
        start.wait()
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - began
        if self.failures:
            raise self.failures[0]
        for letters in mail:
            while letters:
                self.spoilt += not _is_intact(*letters.popleft())
        return self.made / took

    def _work(self, place: int, inbox: deque[Any], outbox: deque[Any]) -> tuple[int, int, int]:
        chance = random.Random(place)
        held: list[tuple[Any, int]] = []
        made = total = spoilt = 0
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            for _ in range(_STRIDE):
                nbytes = int(2 ** chance.uniform(4, 20 if made % 64 else 24))
                array = self.make(nbytes)
                mark = (place + _THREADS * made) & 0xFF
                array[0] = array[-1] = mark
                made, total = made + 1, total + nbytes
                if made % 8 == 0 and len(outbox) < _HELD:
                    outbox.append((array, mark))
                else:
                    held.append((array, mark))
                del array
                if len(held) > _HELD:
                    spoilt += not _is_intact(*held.pop(chance.randrange(_HELD)))
                if inbox:
                    spoilt += not _is_intact(*inbox.popleft())
        return made, total, spoilt + sum(not _is_intact(*each) for each in held)


def _is_intact(array: Any, mark: int) -> bool:
    return bool(array[0] == mark and array[-1] == mark)


def fill_threads(report: Report, quick: bool) -> None:
    """Add a sheet of arrays per second, and what must be right afterwards."""
    seconds = 2.0 if quick else 60.0
    if report.limit is not None:
        seconds = min(seconds, report.limit / 10)
    byte = np.dtype(np.uint8)
    rows: list[tuple[str, tuple[float, ...]]] = []
    for kind in ("caching", "expandable"):
        with nbrt.MemoryPool("cpu:0", kind) as pool, nbrt.device("cpu:0"):

            def make(nbytes: int, pool: nbrt.MemoryPool = pool) -> Any:
                with nbrt.use_pool(pool):
                    return nbrt.empty(nbytes, byte)

            crowd = Crowd(make, seconds)
            rate = crowd.run()
            stats = pool.stats()
            pool.empty_cache()
            rows.append((f"nbrt, {kind}", (rate, crowd.made, crowd.nbytes / 2**30)))
            left = pool.memory_reserved() + stats["allocated_bytes.all.current"]
            asked = stats["requested_bytes.all.allocated"], stats["requested_bytes.all.freed"]
            counts = stats["allocated.all.allocated"], stats["allocated.all.freed"]
            text = f"{_THREADS} threads, {seconds:g} s, {kind} pool: "
            report.targets += [
                Target(text + "bytes in use or reserved at the end", left, 0),
                Target(text + "bytes too many or too few in the statistics",
                       sum(abs(each - crowd.nbytes) for each in asked), 0),
                Target(text + "events too many or too few in the statistics",
                       sum(abs(each - crowd.made) for each in counts), 0),
                Target(text + "arrays that others wrote into", crowd.spoilt, 0),
            ]  # fmt: skip
    alone = Crowd(lambda nbytes: np.empty(nbytes, byte), min(seconds, 10.0))
    rows.append(("np.empty", (alone.run(), alone.made, alone.nbytes / 2**30)))
    columns = ("arrays made and freed per second", "arrays", "GiB")
    report.sheets.append(Sheet(f"{_THREADS} threads", columns, rows))
