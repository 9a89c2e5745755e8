"""Memory snapshots in torch's format, made without a device.

`Heap` is a plain first-fit allocator that writes its own trace and knows, by adding and
subtracting at each event, what is alive: the model that timelines are held against.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

__all__ = ["Heap", "frame", "large_snapshot", "training_heap"]

MIB = 2**20
LIBRARY = {"filename": "/x/site-packages/nbrt/runtime/arrays.py", "line": 9, "name": "empty"}


def frame(filename: str, line: int, name: str = "step") -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


class Heap:
    """One device: segments, blocks and a trace, with a clock of a few microseconds per event."""

    def __init__(self, *, seed: int = 0, base: int = 0x7F00_0000_0000) -> None:
        self.trace: list[dict[str, Any]] = []
        self.alive: Counter[str] = Counter()  # bytes by file name and line
        self.states: list[tuple[int, dict[str, int], int]] = []  # after each event
        self.reserved = 0
        self._segments: dict[int, int] = {}
        self._blocks: dict[int, tuple[int, int, list[dict[str, Any]], str]] = {}
        self._next = base
        self._time = 1_700_000_000_000_000
        self._random = np.random.default_rng(seed)

    def _log(self, action: str, size: int, *, key: str = "addr", at: int = 0, **more: Any) -> None:
        self._time += int(self._random.integers(1, 40))
        event = {"action": action, "size": size, "stream": 0, "time_us": self._time, "frames": []}
        self.trace.append(event | {key: at} | more)
        self.states.append((self._time, +self.alive, self.reserved))

    def grow(self, nbytes: int) -> int:
        address, self._next = self._next, self._next + nbytes + 16 * MIB
        self._segments[address] = nbytes
        self.reserved += nbytes
        self._log("segment_alloc", nbytes, at=address)
        return address

    def shrink(self, address: int) -> None:
        nbytes = self._segments.pop(address)
        self.reserved -= nbytes
        self._log("segment_free", nbytes, at=address)

    def _place(self, rounded: int) -> int:
        for start, total in self._segments.items():
            at = start
            for block in sorted(b for b in self._blocks if start <= b < start + total):
                if block - at >= rounded:
                    return at
                at = block + self._blocks[block][0]
            if start + total - at >= rounded:
                return at
        return self.grow(max(rounded, (2 if rounded < MIB else 20) * MIB))

    def alloc(self, nbytes: int, site: dict[str, Any]) -> int:
        rounded = -(-nbytes // 512) * 512
        at = self._place(rounded)
        frames = [LIBRARY, site, frame("/home/me/main.py", 1, "<module>")]
        self._blocks[at] = rounded, nbytes, frames, "active_allocated"
        self.alive[f"{site['filename']}:{site['line']}"] += nbytes
        self._log("alloc", nbytes, at=at, frames=frames)
        return at

    def request(self, at: int) -> None:
        rounded, nbytes, frames, _ = self._blocks[at]
        self._blocks[at] = rounded, nbytes, frames, "active_awaiting_free"
        self._log("free_requested", nbytes, at=at)

    def complete(self, at: int) -> None:
        _, nbytes, frames, _ = self._blocks.pop(at)
        self.alive[f"{frames[1]['filename']}:{frames[1]['line']}"] -= nbytes
        self._log("free_completed", nbytes, at=at)

    def free(self, at: int) -> None:
        self.request(at)
        self.complete(at)

    def annotate(self, name: str) -> None:
        self._log("annotate", 0, name=name)

    def fail(self, nbytes: int, free: int) -> None:
        self._log("oom", nbytes, key="device_free", at=free)

    def _gapless(self, start: int, total: int) -> list[dict[str, Any]]:
        blocks, at = [], start
        for block in [
            *sorted(b for b in self._blocks if start <= b < start + total),
            start + total,
        ]:
            if block > at:
                gap = {"size": block - at, "requested_size": 0, "address": at, "state": "inactive"}
                blocks.append({**gap, "frames": []})
            if block < start + total:
                size, asked, frames, state = self._blocks[block]
                blocks.append(
                    {"size": size, "requested_size": asked, "address": block, "state": state}
                    | {"frames": frames}
                )
                at = block + size
        return blocks

    def snapshot(self, *, since: int = 0) -> dict[str, Any]:
        """Return the snapshot; the trace forgets its first `since` events."""
        segments = []
        for start, total in self._segments.items():
            blocks = self._gapless(start, total)
            active = [block["size"] for block in blocks if block["state"] != "inactive"]
            allocated = [b["size"] for b in blocks if b["state"] == "active_allocated"]
            segments.append({
                "device": 0, "address": start, "total_size": total, "stream": 0,
                "segment_type": "small" if total <= 2 * MIB else "large",
                "segment_pool_id": (0, 0), "allocated_size": sum(allocated),
                "active_size": sum(active), "blocks": blocks,
            })  # fmt: skip
        return {"segments": segments, "device_traces": [self.trace[since:]]}


def training_heap(steps: int = 6) -> Heap:
    """Weights that stay, activations that grow and shrink in each step, buffers that leak."""
    heap = Heap(seed=1)
    weights = [heap.alloc((3 + k % 4) * MIB, frame("/home/me/model.py", 10 + k)) for k in range(5)]
    heap.annotate("warm-up done")
    for step in range(steps):
        heap.annotate(f"epoch {step}")
        live = [
            heap.alloc(
                int((1 + 2 * abs(np.sin(step + k))) * MIB), frame("/home/me/model.py", 40 + k % 7)
            )
            for k in range(20)
        ]
        heap.alloc(700_001, frame("<ipython-input-3-abcdef>", 2, "<module>"))  # leaks
        small = [heap.alloc(900 + 512 * k, frame("/home/me/data.py", 7)) for k in range(12)]
        for at in live[::-1] + small[::2]:
            heap.free(at)
    heap.fail(300 * MIB, 50 * MIB)
    heap.request(weights[0])
    return heap


def large_snapshot(events: int) -> dict[str, Any]:
    """Return a snapshot of `events` events with 300 call sites, quickly made."""
    random = np.random.default_rng(7)
    frames = [[LIBRARY, frame(f"/p/file{k % 30}.py", k)] for k in range(300)]
    sizes = random.integers(512, 4 * MIB, events)
    trace: list[dict[str, Any]] = []
    live: list[int] = []
    for number in range(events // 2 + 1):
        at = 64 * MIB * number
        base = {"addr": at, "size": int(sizes[number]), "stream": 0, "frames": frames[number % 300]}
        trace.append({"action": "alloc", "time_us": 7 * len(trace), **base})
        live.append(number)
        if len(live) > 200:
            gone = live.pop(int(random.integers(len(live))))
            trace.append({
                "action": "free_completed", "addr": 64 * MIB * gone, "size": int(sizes[gone]),
                "stream": 0, "frames": [], "time_us": 7 * len(trace),
            })  # fmt: skip
    segments = []
    for number in live:
        size = int(sizes[number])
        block = {"address": 64 * MIB * number, "size": size, "requested_size": size}
        segments.append({
            "device": 0, "address": 64 * MIB * number, "total_size": 4 * MIB, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "allocated_size": size,
            "active_size": size, "blocks": [
                block | {"state": "active_allocated", "frames": frames[number % 300]},
                {"address": 64 * MIB * number + size, "size": 4 * MIB - size,
                 "requested_size": 0, "state": "inactive", "frames": []},
            ],
        })  # fmt: skip
    return {"segments": segments, "device_traces": [trace[:events]]}
