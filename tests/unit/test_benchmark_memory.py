"""The benchmark of memory: simulated pools, traces and their replay, a crowd of threads."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.allocation_traces import SYNTHETIC, Event, load, most_asked_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB = 1 << 10, 1 << 20
SEGMENT = 2 * MIB
RECORDED = load()


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    names = ("allocation_traces", "memory_threads", "pool_policies", "record_traces", "report")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield {name: importlib.import_module(f"benchmarks.{name}") for name in names}
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.fixture
def policies(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["pool_policies"]


def test_cupy_takes_multiples_of_512_bytes_from_the_device(policies: ModuleType) -> None:
    pool = policies.SimulatedPool(policies.CUPY)
    chunks = [pool.allocate(nbytes) for nbytes in (1, 512, 513, 3 * MIB)]
    assert [chunk.nbytes for chunk in chunks] == [512, 512, 1024, 3 * MIB]
    assert pool.reserved == 512 + 512 + 1024 + 3 * MIB


def test_cupy_splits_the_smallest_chunk_that_fits_and_merges_it_again(policies: ModuleType) -> None:
    pool = policies.SimulatedPool(policies.CUPY)
    large, small = pool.allocate(8 * KIB), pool.allocate(4 * KIB)
    pool.free(large)
    pool.free(small)
    first = pool.allocate(3 * KIB)
    assert first is small
    rest = pool.allocate(1 * KIB)
    assert rest is first.after
    assert pool.reserved == 12 * KIB
    # In pieces the 4 KiB cannot serve 4 KiB, so those come from the 8; as a whole they can.
    assert pool.allocate(4 * KIB) is large
    pool.free(first)
    pool.free(rest)
    assert pool.allocate(4 * KIB) is first
    assert pool.allocate(4 * KIB) is large.after
    assert pool.reserved == 12 * KIB


def test_cupy_keeps_chunks_for_their_stream(policies: ModuleType) -> None:
    pool = policies.SimulatedPool(policies.CUPY)
    pool.free(pool.allocate(MIB, stream=1))
    pool.allocate(MIB, stream=2)
    assert pool.reserved == 2 * MIB
    pool.allocate(MIB, stream=1)
    assert pool.reserved == 2 * MIB


def test_cupy_takes_more_for_sizes_that_grow(policies: ModuleType) -> None:
    events = [event for n in range(1, 5) for event in (Event(n, n * MIB), Event(n, 0))]
    assert policies.peak_reserved(policies.CUPY, events) == (1 + 2 + 3 + 4) * MIB
    # 2 MiB segments serve the first; 20 MiB ones the rest.
    assert policies.peak_reserved(policies.TORCH, events) == 22 * MIB


def test_torch_serves_small_and_large_requests_from_segments_of_their_own(
    policies: ModuleType,
) -> None:
    pool = policies.SimulatedPool(policies.TORCH)
    assert pool.allocate(100).nbytes == 512
    assert pool.reserved == 2 * MIB
    assert pool.allocate(MIB).nbytes == MIB
    assert pool.reserved == 2 * MIB
    assert pool.allocate(MIB + 1).nbytes == MIB + 512
    assert pool.reserved == 22 * MIB
    assert pool.allocate(11 * MIB).nbytes == 11 * MIB
    assert pool.reserved == 22 * MIB
    pool.allocate(13 * MIB)
    assert pool.reserved == 36 * MIB


def test_torch_leaves_a_mebibyte_with_a_large_chunk(policies: ModuleType) -> None:
    pool = policies.SimulatedPool(policies.TORCH)
    pool.free(pool.allocate(12 * MIB))
    assert pool.allocate(11 * MIB).nbytes == 12 * MIB
    pool.free(pool.allocate(20 * MIB))
    assert pool.allocate(19 * MIB - 512).nbytes == 19 * MIB - 512


@pytest.mark.parametrize("name", SYNTHETIC)
def test_simulated_chunks_of_a_segment_are_its_bytes(name: str, policies: ModuleType) -> None:
    events = list(SYNTHETIC[name]())
    for policy in (policies.CUPY, policies.TORCH):
        pool = policies.SimulatedPool(policy)
        chunks: dict[int, Any] = {}
        heads: dict[int, Any] = {}
        for block, nbytes, stream in events:
            if nbytes:
                chunk = chunks[block] = pool.allocate(nbytes, stream)
                assert chunk.nbytes >= nbytes
                while chunk.before is not None:
                    chunk = chunk.before
                heads[id(chunk)] = chunk
            else:
                pool.free(chunks.pop(block))
        total = 0
        for head in heads.values():
            chunk = head
            while chunk is not None:
                total += chunk.nbytes
                assert chunk.after is None or not (chunk.is_free and chunk.after.is_free)
                chunk = chunk.after
        assert total == pool.reserved >= most_asked_for(events)


def test_traces_come_back_as_they_were_saved(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    traces = modules["allocation_traces"]
    events = [Event(0, 2**40, 3), Event(1, 1), Event(0, 0)]
    traces.save(tmp_path / "traces.npz", {"a b": events})
    assert traces.load(tmp_path / "traces.npz") == {"a b": events}
    assert most_asked_for(events) == 2**40 + 1


def test_recorded_traces_are_of_notebooks_and_whole() -> None:
    notebooks = {f"notebook {path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert RECORDED
    assert RECORDED.keys() <= notebooks
    for events in RECORDED.values():
        alive: set[int] = set()
        for block, nbytes, _ in events:
            if nbytes:
                assert block not in alive
                alive.add(block)
            else:
                alive.remove(block)


def test_a_recorder_writes_down_what_is_allocated_and_freed(
    modules: dict[str, ModuleType],
) -> None:
    side = nbrt.Stream("cpu:0")
    with modules["record_traces"].Recorder() as recorder:
        kept = nbrt.empty(3000, "uint8", device="cpu:0")
        other = nbrt.empty(70, "float32", stream=side)
        view = kept[5:]
        del kept
        del other
        del view
        nbrt.empty(5, "uint8", device="cpu:0")
    nbrt.empty(6, "uint8", device="cpu:0")
    expected = [Event(0, 3000), Event(1, 280, 1), Event(1, 0), Event(0, 0), Event(2, 5)]
    assert recorder.events == [*expected, Event(2, 0)]


@pytest.mark.parametrize("name", [*RECORDED, *SYNTHETIC])
def test_expandable_memory_holds_little_more_than_was_asked_for(name: str) -> None:
    events = RECORDED[name] if name in RECORDED else list(SYNTHETIC[name]())
    arrays: dict[int, Any] = {}
    reserved = 0
    with nbrt.MemoryPool("cpu:0", "expandable") as pool, nbrt.use_pool(pool):
        for block, nbytes, _ in events:
            if nbytes:
                arrays[block] = nbrt.empty(nbytes, "uint8", device="cpu:0")
                reserved = max(reserved, pool.memory_reserved())
            else:
                del arrays[block]
        stats = pool.stats()
    asked = most_asked_for(events)
    assert stats["requested_bytes.all.peak"] == asked
    assert stats["reserved_bytes.all.peak"] == reserved
    assert stats["allocated.all.allocated"] == sum(event.nbytes > 0 for event in events)
    # Small blocks have separate segments, which large ones cannot use.
    small = {event.block for event in events if 0 < event.nbytes <= MIB}
    both = most_asked_for(event for event in events if event.block in small) + most_asked_for(
        event for event in events if event.block not in small
    )
    assert asked <= reserved <= 1.1 * both + 2 * SEGMENT
    if name in SYNTHETIC:
        assert reserved <= 1.1 * asked


def test_a_crowd_counts_what_it_made_and_sees_what_was_spoilt(
    modules: dict[str, ModuleType],
) -> None:
    crowd_of = modules["memory_threads"].Crowd
    with nbrt.MemoryPool("cpu:0") as pool:

        def make(nbytes: int) -> Any:
            with nbrt.use_pool(pool):
                return nbrt.empty(nbytes, "uint8", device="cpu:0")

        crowd = crowd_of(make, seconds=0.05, threads=4)
        assert crowd.run() > 0
        stats = pool.stats()
    assert crowd.spoilt == 0
    assert stats["allocated.all.allocated"] == stats["allocated.all.freed"] == crowd.made
    assert stats["requested_bytes.all.freed"] == crowd.nbytes
    # One buffer for all: the last write spoils the other arrays.
    shared = np.empty(1 << 24, np.uint8)
    careless = crowd_of(lambda nbytes: shared[:nbytes], seconds=0.05, threads=4)
    careless.run()
    assert careless.spoilt > 0


def test_a_crowd_tells_of_a_thread_that_failed(modules: dict[str, ModuleType]) -> None:
    def make(nbytes: int) -> Any:
        raise MemoryError("planted")

    with pytest.raises(MemoryError, match="planted"):
        modules["memory_threads"].Crowd(make, seconds=0.01, threads=2).run()


def test_a_sheet_has_a_column_for_every_number(modules: dict[str, ModuleType]) -> None:
    sheet = modules["report"].Sheet(
        "Sizes", ("bytes", "x"), [("a", (1234567.0, 0.5)), ("b", (1.0, None))]
    )
    assert sheet.as_json() == {
        "heading": "Sizes",
        "rows": [
            {"name": "a", "bytes": 1234567.0, "x": 0.5},
            {"name": "b", "bytes": 1.0, "x": None},
        ],
    }
    assert sheet.as_markdown().splitlines()[2:] == [
        "| | bytes | x |",
        "|---|---:|---:|",
        "| a | 1,234,567 | 0.5 |",
        "| b | 1 | - |",
    ]
