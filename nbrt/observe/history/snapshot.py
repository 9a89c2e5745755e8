"""Snapshots of memory in torch's format: segments, blocks and the recorded events."""

from __future__ import annotations

import json
import pickle
import time
import uuid
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nbrt._version import __version__
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.history.hooks import StreamHandles
from nbrt.observe.history.recorder import current_history
from nbrt.observe.snapshot_schema import check_types
from nbrt.runtime.device import current_device, device_count, lookup
from nbrt.runtime.memory.registry import all_allocators, allocator_for

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from nbrt._internal.callsite import CallSite, Frame
    from nbrt._internal.device import Device
    from nbrt.backends.pools import SegmentInfo
    from nbrt.observe.history.recorder import MemoryEvent
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.runtime.memory.pool_impl import PoolImpl
    from nbrt.typing import DeviceLike

__all__ = ["History", "Snapshot", "dump_snapshot", "load_snapshot", "snapshot"]

_PICKLE_PROTOCOL = 4
"""The newest version that torch's viewer page reads."""


def snapshot(device: DeviceLike = None) -> dict[str, Any]:
    """Return the memory of a device, its segments and blocks, and the recorded history.

    The format is that of ``torch.cuda.memory._snapshot()``: plain dicts, lists, numbers and texts.
    torch's tools read it: ``python -m torch.cuda._memory_viz`` and the page
    https://pytorch.org/memory_viz, which opens files of `dump_snapshot`.

    Parameters
    ----------
    device : Device, str, int or None
        One device; all devices of the current device's kind by default.

    Returns
    -------
    snapshot : dict
        ``"segments"``: memory reserved from the system. The ``"blocks"`` of a segment cover it in
        address order: ``"active_allocated"`` (arrays hold it), ``"active_pending_free"`` (streams
        may still use it) or ``"inactive"``. ``"frames"`` is the stack of the allocation, innermost
        call first, if recorded. ``"device_traces"``: the recorded events of each device index
        (`record_memory_history`), the oldest first. ``"external_annotations"``: starts and ends of
        annotations. ``"allocator_settings"``. ``"nbrt"``: additions to torch's format: names and
        limits of pools, statistics. Sizes are bytes, times microseconds since 1970.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.empty(1000, "uint8", device="cpu:3")
    >>> segments = nbrt.memory.snapshot("cpu:3")["segments"]
    >>> [b["requested_size"] for s in segments for b in s["blocks"] if b["state"] != "inactive"]
    [1000]
    """
    history = current_history()
    if device is None:
        kind = current_device().kind
        allocators = [each for each in all_allocators() if each.device.kind == kind]
    else:
        kind = lookup(device)[0].kind
        allocators = [allocator_for(device)]
    if history is not None and not history.has_kind(kind):
        history = None
    return Snapshot(kind, allocators, history).as_dict()


class History(Protocol):
    """A record of memory events, as `MemoryHistory`."""

    max_entries: int

    def __len__(self) -> int: ...

    def events(self, device: Device) -> list[MemoryEvent]:
        """Return the events of a device and the annotations."""
        ...

    def mark_snapshot(self, device: Device) -> None:
        """Record that a snapshot was taken."""
        ...


class Snapshot:
    """The state of allocators, and the events that a history had then.

    Parameters
    ----------
    kind : str
        The kind of the devices.
    allocators : list of DeviceAllocator
        Their allocators.
    history : History or None
        The events; none without.
    is_complete : bool
        The history has ended, so that its events can be read when they are needed.
    """

    def __init__(
        self,
        kind: str,
        allocators: list[DeviceAllocator],
        history: History | None,
        *,
        is_complete: bool = False,
    ) -> None:
        self._kind = kind
        self._history = history
        self._time = time.time_ns()
        self._writer = _SnapshotWriter()
        self._count = device_count(kind)
        self._settings = _settings(allocators, history)
        self._devices: list[dict[str, Any]] = []
        self._states: list[tuple[Device, list[dict[str, Any]], list[MemoryEvent] | None]] = []
        for allocator in sorted(allocators, key=lambda each: each.device.index):
            index = allocator.device.index
            with allocator.lock:  # no frees between reading the blocks and the trace
                allocator.process_log()
                segments = [self._writer.segment(index, *each) for each in _segments(allocator)]
                events = None if is_complete else _events(history, allocator.device)
                self._devices.append(_device_entry(allocator))
            self._states.append((allocator.device, segments, events))

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot in torch's format."""
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self._count)]
        annotations: list[dict[str, Any]] = []
        for device, segments, known in self._states:
            index = device.index
            events = _events(self._history, device) if known is None else known
            traces[index] = self._writer.trace(events, segments)
            annotations += [  # in the format of torch's profiler
                {**{key: entry[key] for key in ("name", "stage", "time_us")}, "device": index}
                for entry in traces[index]
                if "stage" in entry
            ]
        return {
            "segments": [segment for _, segments, _ in self._states for segment in segments],
            "device_traces": traces,
            "allocator_settings": self._settings,
            "external_annotations": annotations,
            "nbrt": {
                "version": __version__,
                "kind": self._kind,
                "time_us": self._time // 1000,
                "devices": self._devices,
            },
        }


def dump_snapshot(path: str | os.PathLike[str], device: DeviceLike = None) -> None:
    """Write a snapshot to a file atomically.

    Parameters
    ----------
    path : str or path
        JSON if it ends in ``.json``; otherwise a pickle, which torch's tools open.
    device : Device, str, int or None
        See `snapshot`.

    Raises
    ------
    ArgumentError
        If the path names no file.
    OSError
        If the file cannot be written; an existing file does not change.

    Examples
    --------
    >>> import nbrt, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nbrt.memory.dump_snapshot(f"{folder}/memory.pickle", "cpu:0")
    ...     sorted(nbrt.memory.load_snapshot(f"{folder}/memory.pickle"))[:2]
    ['allocator_settings', 'device_traces']
    """
    target = _file(path)
    if _is_json(target):
        data = json.dumps(snapshot(device)).encode()
    else:
        data = pickle.dumps(snapshot(device), protocol=_PICKLE_PROTOCOL)
    # A random name: other threads may write the same file, whose name may have maximal length.
    temporary = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a snapshot written by `dump_snapshot` or torch.

    Parameters
    ----------
    path : str or path
        JSON if it ends in ``.json``; otherwise a pickle of plain data. A pickle that refers to
        classes or functions is refused, so that a foreign file cannot run code.

    Raises
    ------
    ArgumentError
        If the file contains no snapshot.
    OSError
        If it cannot be read.
    """
    source = _file(path)
    form = "JSON" if _is_json(source) else "a pickle of plain data"
    with source.open("rb") as file:
        try:
            loaded: dict[str, Any] = (
                json.load(file) if _is_json(source) else _PlainUnpickler(file).load()
            )
        except OSError:
            raise
        except Exception as error:  # a damaged pickle can make the unpickler raise anything
            raise ArgumentError(
                f"expected a memory snapshot in {str(source)!r}, got a file that cannot be read as "
                f"{form}: {error!r}; write one with nbrt.memory.dump_snapshot"
            ) from error
    try:
        check_types(loaded)
    except ValueError as error:
        raise ArgumentError(
            f"expected a memory snapshot in {str(source)!r}, got {form} in which {error}; write "
            f"one with nbrt.memory.dump_snapshot"
        ) from error
    for segment in loaded["segments"]:  # JSON has no tuples
        if "segment_pool_id" in segment:
            segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    for event in (event for trace in loaded["device_traces"] for event in trace):
        if "pool_id" in event:
            event["pool_id"] = tuple(event["pool_id"])
    return loaded


def _file(path: str | os.PathLike[str]) -> Path:
    try:
        file = Path(path)
    except TypeError as error:
        raise ArgumentTypeError(f"expected the path of a file, got {path!r}") from error
    if not file.name:
        raise ArgumentError(f"expected the path of a file, got {str(path)!r}")
    return file


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class _SnapshotWriter:
    """Converts allocations and events to dicts; equal stacks share one list."""

    def __init__(self) -> None:
        self._handles = StreamHandles()
        self._frames: dict[int, tuple[CallSite, list[Frame]]] = {}

    def frames(self, site: CallSite | None) -> list[Frame]:
        if site is None:
            return []
        known = self._frames.get(id(site))
        if known is None:
            known = self._frames[id(site)] = (site, site.frames())
        return known[1]

    def segment(
        self,
        index: int,
        pool: PoolImpl,
        info: SegmentInfo | None,
        inside: list[tuple[Allocation, str]],
    ) -> dict[str, Any]:
        """Return a segment with its blocks; `info` is None for memory without a segment."""
        blocks: list[dict[str, Any]] = []
        extent = info or inside[0][0]
        address, end = extent.address, extent.address + extent.nbytes
        for allocation, state in inside:
            if allocation.address > address:
                blocks.append(_inactive_block(address, allocation.address))
            blocks.append(self._block(allocation, state))
            address = allocation.address + allocation.nbytes
        if address < end:
            blocks.append(_inactive_block(address, end))
        live = [block for block in blocks if block["state"] == "active_allocated"]
        active = [block for block in blocks if block["state"] != "inactive"]
        return {
            "device": index,
            "address": extent.address,
            "total_size": extent.nbytes,
            "allocated_size": sum(block["size"] for block in live),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in live),
            "stream": 0 if info is None else info.stream,
            "segment_type": "small" if extent.is_small else "large",
            "segment_pool_id": pool.state.id,
            "is_expandable": info is not None and info.is_expandable,
            "frames": [],
            "blocks": blocks,
        }

    def _block(self, allocation: Allocation, state: str) -> dict[str, Any]:
        stream = allocation.stream
        return {
            "address": allocation.address,
            "size": allocation.nbytes,
            "requested_size": allocation.requested,
            "state": state,
            "frames": self.frames(allocation.site),
            "stream": 0 if stream is None else self._handles[stream.id],
        }

    def trace(
        self, events: Iterable[MemoryEvent], segments: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the events of one device."""
        pools = {segment["address"]: segment["segment_pool_id"] for segment in segments}
        trace: list[dict[str, Any]] = []
        for event in events:
            entry: dict[str, Any] = {
                "action": event.action,
                "device_free" if event.action == "oom" else "addr": event.address,
                "size": event.nbytes,
                "stream": event.stream,
                "time_us": event.time // 1000,
                "user_metadata": " / ".join(annotation.name for annotation in event.annotations),
                "pool_id": event.pool or pools.get(event.address, (0, 0)),
                "frames": self.frames(event.site),
            }
            if event.label:
                entry["stage"], entry["name"] = event.label.split(" ", 1)
            trace.append(entry)
        return trace


def _events(history: History | None, device: Device) -> list[MemoryEvent]:
    """Return the events of a device, and record the snapshot."""
    if history is None:
        return []
    events = history.events(device)
    history.mark_snapshot(device)
    # Annotations have no device. They are part of every device that has other events.
    return events if any(event.device is not None for event in events) else []


_Allocations: TypeAlias = "list[tuple[Allocation, str]]"
"""Allocations with their states."""


def _segments(
    allocator: DeviceAllocator,
) -> list[tuple[PoolImpl, SegmentInfo | None, _Allocations]]:
    """Return each segment with its allocations in address order."""
    active: _Allocations = [(each, "active_allocated") for each in allocator.live_allocations()]
    active += [(each, "active_pending_free") for each, _ in allocator.pending.waiting]
    active.sort(key=lambda pair: pair[0].address)
    segments: list[tuple[PoolImpl, SegmentInfo | None, _Allocations]] = []
    for pool in allocator.pools:
        infos = sorted(pool.backend.segments(), key=lambda info: info.address)
        starts = [info.address for info in infos]
        inside: list[_Allocations] = [[] for _ in infos]
        outside: list[_Allocations] = []
        for pair in active:
            if pair[0].pool is pool.state:
                address = pair[0].address
                index = bisect_right(starts, address) - 1
                if index >= 0 and address < starts[index] + infos[index].nbytes:
                    inside[index].append(pair)
                else:
                    outside.append([pair])
        segments += [(pool, info, pairs) for info, pairs in zip(infos, inside, strict=True)]
        segments += [(pool, None, pairs) for pairs in outside]
    return segments


def _inactive_block(begin: int, end: int) -> dict[str, Any]:
    return {
        "address": begin,
        "size": end - begin,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }


def _settings(allocators: list[DeviceAllocator], history: History | None) -> dict[str, Any]:
    expandable = any(pool.state.kind == "expandable" for each in allocators for pool in each.pools)
    return {
        "expandable_segments": expandable,
        "garbage_collection_threshold": 0.0,
        "max_split_size": -1,
        "trace_alloc_max_entries": 0 if history is None else history.max_entries,
        "trace_alloc_overflowed": history is not None and len(history) >= history.max_entries,
    }


def _device_entry(allocator: DeviceAllocator) -> dict[str, Any]:
    allocator.update_split()
    return {
        "index": allocator.device.index,
        "limit": allocator.limit,
        "stats": allocator.statistics.as_dict(),
        "pools": [
            {
                "id": list(pool.state.id),
                "kind": pool.state.kind,
                "name": pool.state.name,
                "limit": pool.limit,
            }
            for pool in allocator.pools
        ],
    }
