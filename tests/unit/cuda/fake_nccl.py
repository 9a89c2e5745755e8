"""NCCL on paper: ranks are threads, and memory is the host's, addressed by plain numbers."""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from helpers.clocks import HANG_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {
    "INT8": np.int8, "UINT8": np.uint8, "INT32": np.int32, "UINT32": np.uint32,
    "INT64": np.int64, "UINT64": np.uint64, "FLOAT16": np.float16, "FLOAT32": np.float32,
    "FLOAT64": np.float64, "BFLOAT16": ml_dtypes.bfloat16,
}  # fmt: skip
UFUNCS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
SECONDS = HANG_TIMEOUT


class NcclError(RuntimeError):
    pass


class FakeNccl:
    """Stand-in for `cupy.cuda.nccl`; constants are the names behind ``NCCL_``.

    `where` tells the device that is current, for the log of calls (name, stream, device).
    """

    NcclError = NcclError
    available = True

    def __init__(self, where: Callable[[], int] = lambda: -1) -> None:
        for name in (*DTYPES, *UFUNCS):
            setattr(self, f"NCCL_{name}", name)
        self.worlds: dict[Any, SimpleNamespace] = {}
        self.calls: list[tuple[str, int, int]] = []
        self.where = where
        self.async_error: Exception | None = None
        self.group = threading.local()
        self._keys = itertools.count()
        self._lock = threading.Lock()

    def get_unique_id(self) -> bytes:
        return next(self._keys).to_bytes(128, "little")

    def world(self, key: Any, size: int) -> SimpleNamespace:
        with self._lock:
            if key not in self.worlds:
                self.worlds[key] = SimpleNamespace(
                    size=size, barrier=threading.Barrier(size), said={}, mail={}
                )
            found = self.worlds[key]
            assert found.size == size
            return found

    def NcclCommunicator(self, size: int, key: Any, rank: int) -> FakeCommunicator:
        assert isinstance(key, bytes)
        assert len(key) == 128
        if size > 100:
            raise NcclError("too many")
        return FakeCommunicator(self, self.world(key, size), rank)

    def groupStart(self) -> None:
        self.group.pending = []

    def groupEnd(self) -> None:
        # All sends are under way before the first receive waits, as in a group of NCCL.
        pending, self.group.pending = self.group.pending, None
        for work in sorted(pending, key=lambda work: work[0] == "recv"):
            work[1]()

    def box(self, world: Any, sender: int, taker: int) -> queue.Queue[bytes]:
        with self._lock:
            return world.mail.setdefault((sender, taker), queue.Queue())

    def log(self, name: str, stream: int) -> None:
        with self._lock:
            self.calls.append((name, stream, self.where()))


class FakeCommunicator:
    def __init__(self, nccl: FakeNccl, world: Any, rank: int) -> None:
        self.nccl, self.world, self.rank, self.is_open = nccl, world, rank, True
        self.is_aborted = False
        world.barrier.wait(SECONDS)

    def check_async_error(self) -> None:
        if self.nccl.async_error is not None:
            raise self.nccl.async_error

    def destroy(self) -> None:
        assert self.is_open or self.is_aborted
        self.is_open = False

    def abort(self) -> None:
        self.is_open, self.is_aborted = False, True

    def broadcast(
        self, source: int, to: int, count: int, dtype: str, root: int, stream: int
    ) -> None:
        parts = self._meet("broadcast", stream, (count, dtype, root), source, count, dtype)
        _write(to, parts[root])

    def allGather(self, source: int, to: int, count: int, dtype: str, stream: int) -> None:
        parts = self._meet("allGather", stream, (count, dtype), source, count, dtype)
        _write(to, np.concatenate(parts))

    def allReduce(self, source: int, to: int, count: int, dtype: str, op: str, stream: int) -> None:
        parts = self._meet("allReduce", stream, (count, dtype, op), source, count, dtype)
        _write(to, _reduced(parts, op))

    def reduceScatter(
        self, source: int, to: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        size = self.world.size
        said = count, dtype, op
        parts = self._meet("reduceScatter", stream, said, source, size * count, dtype)
        _write(to, _reduced([part.reshape(size, count)[self.rank] for part in parts], op))

    def send(self, source: int, count: int, dtype: str, peer: int, stream: int) -> None:
        self.nccl.log("send", stream)
        data = _read(source, count, dtype).tobytes()
        box = self.nccl.box(self.world, self.rank, peer)
        self.nccl.group.pending.append(("send", lambda: box.put(data)))

    def recv(self, to: int, count: int, dtype: str, peer: int, stream: int) -> None:
        box = self.nccl.box(self.world, peer, self.rank)

        def take() -> None:
            data = np.frombuffer(box.get(timeout=SECONDS), DTYPES[dtype])
            assert data.size == count
            _write(to, data)

        self.nccl.group.pending.append(("recv", take))

    def _meet(self, name: str, stream: int, said: Any, source: int, count: int, dtype: str) -> Any:
        assert self.is_open
        self.nccl.log(name, stream)
        self.world.said[self.rank] = (name, said, _read(source, count, dtype))
        self.world.barrier.wait(SECONDS)
        every = [self.world.said[rank] for rank in range(self.world.size)]
        assert {(name, said) for name, said, _ in every} == {(name, said)}
        self.world.barrier.wait(SECONDS)
        return [part for _, _, part in every]


def _read(address: int, count: int, dtype: str) -> Any:
    raw = ctypes.string_at(address, count * np.dtype(DTYPES[dtype]).itemsize)
    return np.frombuffer(raw, DTYPES[dtype])


def _write(address: int, values: Any) -> None:
    ctypes.memmove(address, values.tobytes(), values.nbytes)


def _reduced(parts: list[Any], op: str) -> Any:
    total = parts[0].copy()
    for part in parts[1:]:
        UFUNCS[op](total, part, out=total)
    return total
