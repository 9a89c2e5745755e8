"""Snapshots of memory as torch writes them: every segment, every block, and what happened."""

from __future__ import annotations

import json
import pickle
import time
import uuid
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt._version import __version__
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.history.format import check_file_schema
from nbrt.observe.history.hooks import raw_stream
from nbrt.observe.history.recorder import current_history
from nbrt.runtime.device import current_device, device_count, lookup
from nbrt.runtime.memory.device_allocator import all_allocators, allocator_for

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from nbrt._internal.callsite import CallSite, Frame
    from nbrt._internal.device import Device
    from nbrt.backends.pools import SegmentInfo
    from nbrt.observe.history.recorder import MemoryEvent, MemoryHistory
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.core import PoolImpl
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.typing import DeviceLike

__all__ = ["dump_snapshot", "load_snapshot", "snapshot"]

_PICKLE_PROTOCOL = 4
"""The newest that torch's viewer page reads."""


def snapshot(device: DeviceLike = None) -> dict[str, Any]:
    """Return what memory a device has, how it is cut up, and what was recorded of its past.

    The format is that of ``torch.cuda.memory._snapshot()``, of plain dicts, lists, numbers and
    texts, so torch's tools read it: ``python -m torch.cuda._memory_viz`` and the page
    https://pytorch.org/memory_viz, which opens files of `dump_snapshot`.

    Parameters
    ----------
    device : Device, str, int or None
        One device; all devices of the current device's kind by default.

    Returns
    -------
    snapshot : dict
        ``"segments"``: pieces of memory held from the system, each with its ``"blocks"`` in order
        of address, which cover it: ``"active_allocated"`` (arrays hold it),
        ``"active_pending_free"`` (streams may still use it) or ``"inactive"``. ``"frames"`` are the
        calls of the allocation, innermost first, if they were recorded.
        ``"device_traces"``: for each device index the recorded events (`record_memory_history`),
        the oldest first. ``"external_annotations"``: where annotations begin and end.
        ``"allocator_settings"``. ``"nbrt"``: what torch has no place for: pools with their names
        and limits, statistics. Sizes are bytes, times microseconds since 1970.

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
        shelf = [books for books in all_allocators() if books.device.kind == kind]
    else:
        kind = lookup(device)[0].kind
        shelf = [allocator_for(device)]
    writer = _SnapshotWriter(history)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device_count(kind))]
    segments: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    described: list[dict[str, Any]] = []
    for books in sorted(shelf, key=lambda each: each.device.index):
        with books.lock:  # nothing is freed between the blocks and the trace
            books.settle()
            found = [writer.segment(books, *each) for each in _segments(books)]
            events = _events(history, books.device)
            described.append(_described(books))
        segments += found
        index = books.device.index
        traces[index] = writer.trace(events, found)
        notes += writer.external_annotations(events, index)
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": _settings(shelf, history),
        "external_annotations": notes,
        "nbrt": {
            "version": __version__,
            "kind": kind,
            "time_us": time.time_ns() // 1000,
            "devices": described,
        },
    }


def dump_snapshot(path: str | os.PathLike[str], device: DeviceLike = None) -> None:
    """Write a snapshot to a file, whole or not at all.

    Parameters
    ----------
    path : str or path
        As JSON if it ends in ``.json``; else as a pickle, which torch's tools open.
    device : Device, str, int or None
        As of `snapshot`.

    Raises
    ------
    ArgumentError
        If the path names no file.
    OSError
        If the file cannot be written; what was there before is still there then.

    Examples
    --------
    >>> import nbrt, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nbrt.memory.dump_snapshot(f"{folder}/memory.pickle", "cpu:0")
    ...     sorted(nbrt.memory.load_snapshot(f"{folder}/memory.pickle"))[:2]
    ['allocator_settings', 'device_traces']
    """
    target = _file(path)
    found = snapshot(device)
    if _is_json(target):
        data = json.dumps(found).encode()
    else:
        data = pickle.dumps(found, protocol=_PICKLE_PROTOCOL)
    # Other threads may write the same file, and a name can be as long as the system allows.
    unfinished = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def load_snapshot(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a snapshot that `dump_snapshot` or torch wrote.

    Parameters
    ----------
    path : str or path
        Read as JSON if it ends in ``.json``, else as a pickle of plain data: one that names any
        class or function is refused, so that a file from elsewhere runs no code.

    Raises
    ------
    ArgumentError
        If the file holds something else.
    OSError
        If it cannot be read.
    """
    source = _file(path)
    form = "JSON" if _is_json(source) else "a pickle of plain data"
    with source.open("rb") as file:
        try:
            found: dict[str, Any] = (
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
        check_file_schema(found)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"expected a memory snapshot in {str(source)!r}, with segments and device_traces, got "
            f"{form} of another form: {error}; write one with nbrt.memory.dump_snapshot"
        ) from error
    for segment in found["segments"]:  # JSON has no tuples
        if "segment_pool_id" in segment:
            segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    for event in (event for trace in found["device_traces"] for event in trace):
        if "pool_id" in event:
            event["pool_id"] = tuple(event["pool_id"])
    return found


def _file(path: str | os.PathLike[str]) -> Path:
    try:
        found = Path(path)
    except TypeError as error:
        raise ArgumentTypeError(f"expected the path of a file, got {path!r}") from error
    if not found.name:
        raise ArgumentError(f"expected the path of a file, got {str(path)!r}")
    return found


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


class _SnapshotWriter:
    """Turns what was found into dicts; stacks that are the same become the same list."""

    def __init__(self, history: MemoryHistory | None) -> None:
        self._history = history
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
        books: DeviceAllocator,
        core: PoolImpl,
        info: SegmentInfo | None,
        inside: list[tuple[Allocation, str]],
    ) -> dict[str, Any]:
        """Return a segment with its blocks; `info` is None of memory that came without one."""
        blocks: list[dict[str, Any]] = []
        first = inside[0][0] if inside else None
        begin, size, is_small = _extent(info or first)
        place = begin
        for allocation, state in inside:
            if allocation.address > place:
                blocks.append(_gap(place, allocation.address))
            blocks.append(self._block(allocation, state))
            place = allocation.address + allocation.nbytes
        if place < begin + size:
            blocks.append(_gap(place, begin + size))
        live = [each for each in blocks if each["state"] == "active_allocated"]
        active = [each for each in blocks if each["state"] != "inactive"]
        return {
            "device": books.device.index,
            "address": begin,
            "total_size": size,
            "allocated_size": sum(each["size"] for each in live),
            "active_size": sum(each["size"] for each in active),
            "requested_size": sum(each["requested_size"] for each in live),
            "stream": 0 if info is None else info.stream,
            "segment_type": "small" if is_small else "large",
            "segment_pool_id": core.id,
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
            "stream": 0 if stream is None else raw_stream(stream),
        }

    def trace(
        self, events: Iterable[MemoryEvent], segments: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the events of one device."""
        pools = {each["address"]: each["segment_pool_id"] for each in segments}
        trace: list[dict[str, Any]] = []
        for event in events:
            entry: dict[str, Any] = {
                "action": event.action,
                "device_free" if event.action == "oom" else "addr": event.address,
                "size": event.nbytes,
                "stream": event.stream,
                "time_us": event.time // 1000,
                "user_metadata": " / ".join(each.name for each in event.annotations),
                "pool_id": event.pool or pools.get(event.address, (0, 0)),
                "frames": self.frames(event.site),
            }
            if event.label:
                entry["stage"], entry["name"] = event.label.split(" ", 1)
            trace.append(entry)
        return trace

    def external_annotations(
        self, events: Iterable[MemoryEvent], index: int
    ) -> list[dict[str, Any]]:
        """Return the beginnings and ends of annotations, as torch's profiler writes them."""
        notes: list[dict[str, Any]] = []
        for event in events:
            if event.label:
                stage, name = event.label.split(" ", 1)
                microseconds = event.time // 1000
                notes.append(
                    {"name": name, "stage": stage, "device": index, "time_us": microseconds}
                )
        return notes


def _events(history: MemoryHistory | None, device: Device) -> list[MemoryEvent]:
    """Return what happened on a device, and mark the snapshot behind it."""
    if history is None:
        return []
    events = history.events(device)
    history.mark_snapshot(device)
    # Annotations are of no device: they belong where something happened beside them.
    return events if any(event.device is not None for event in events) else []


Used: TypeAlias = "list[tuple[Allocation, str]]"


def _segments(books: DeviceAllocator) -> list[tuple[PoolImpl, SegmentInfo | None, Used]]:
    """Return each segment with the allocations in it and their states, in order of address."""
    used: Used = [(each, "active_allocated") for each in books.live_allocations()]
    used += [(each, "active_pending_free") for each, _ in books.pending.waiting]
    used.sort(key=lambda pair: pair[0].address)
    found: list[tuple[PoolImpl, SegmentInfo | None, Used]] = []
    for core in books.pools:
        infos = sorted(core.backend.segments(), key=lambda info: info.address)
        starts = [info.address for info in infos]
        inside: list[Used] = [[] for _ in infos]
        alone: list[Used] = []
        for pair in used:
            if pair[0].pool is core:
                address = pair[0].address
                place = bisect_right(starts, address) - 1
                if place >= 0 and address < starts[place] + infos[place].nbytes:
                    inside[place].append(pair)
                else:
                    alone.append([pair])
        found += [(core, info, each) for info, each in zip(infos, inside, strict=True)]
        found += [(core, None, each) for each in alone]
    return found


def _extent(place: SegmentInfo | Allocation | None) -> tuple[int, int, bool]:
    assert place is not None
    return place.address, place.nbytes, place.is_small


def _gap(begin: int, end: int) -> dict[str, Any]:
    return {
        "address": begin,
        "size": end - begin,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }


def _settings(shelf: list[DeviceAllocator], history: MemoryHistory | None) -> dict[str, Any]:
    expandable = any(core.kind == "expandable" for books in shelf for core in books.pools)
    return {
        "expandable_segments": expandable,
        "garbage_collection_threshold": 0.0,
        "max_split_size": -1,
        "trace_alloc_max_entries": 0 if history is None else history.max_entries,
        "trace_alloc_overflowed": history is not None and len(history) >= history.max_entries,
    }


def _described(books: DeviceAllocator) -> dict[str, Any]:
    books.note_split()
    return {
        "index": books.device.index,
        "limit": books.limit,
        "stats": books.statistics.as_dict(),
        "pools": [
            {"id": list(core.id), "kind": core.kind, "name": core.name, "limit": core.limit}
            for core in books.pools
        ],
    }
