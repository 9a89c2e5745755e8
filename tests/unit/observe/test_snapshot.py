"""Snapshots: every byte accounted for, in the format of torch's viewer."""

from __future__ import annotations

import base64
import gc
import importlib.util
import json
import pickle
import pickletools
import random
import re
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.history.annotations import annotate
from nbrt.observe.history.recorder import memory_history
from nbrt.observe.history.snapshot import dump_snapshot, load_snapshot, snapshot
from nbrt.runtime.memory.functions import memory_stats
from nbrt.runtime.memory.pool import MemoryPool, use_pool
from nbrt.runtime.memory.recording import record_stream
from nbrt.testing.latch import Latch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

DEVICE = "cpu:3"
GOLDEN = Path(__file__).parents[2] / "data" / "torch_memory_viz.json"

# What the page torch/utils/viz/MemoryViz.js can read of pickle, at torch 2.13.
_OPCODES = re.findall(
    r"\w+",
    """
    PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE EMPTY_DICT DICT SETITEM
    SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    """,
)


def make(nbytes: int, **options: Any) -> Any:
    return nbrt.empty(nbytes, "uint8", device=DEVICE, **options)


def used(found: dict[str, Any], state: str = "active_allocated") -> list[dict[str, Any]]:
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    return [block for block in blocks if block["state"] == state]


@pytest.mark.parametrize("kind", ["caching", "expandable", "plain"])
def test_blocks_cover_segments_and_are_the_arrays(kind: str) -> None:
    rng = random.Random(7)
    pool = MemoryPool(DEVICE, kind)
    arrays: list[Any] = []
    with use_pool(pool):
        for _ in range(150):
            if arrays and rng.random() < 0.5:
                arrays.pop(rng.randrange(len(arrays)))
            else:
                arrays.append(make(rng.choice((1, 700, 9000, 1 << 20, 3 << 20, 17 << 20))))
        found = snapshot(DEVICE)
    mine = [each for each in found["segments"] if each["segment_pool_id"] == pool.id]
    for segment in mine:
        place = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == place
            assert block["size"] >= max(1, block["requested_size"])
            place += block["size"]
        assert place == segment["address"] + segment["total_size"]
        gaps = [block["state"] == "inactive" for block in segment["blocks"]]
        assert not any(both == (True, True) for both in pairwise(gaps))
    assert sum(each["total_size"] for each in mine) == pool.memory_reserved()
    assert sum(each["allocated_size"] for each in mine) == pool.memory_allocated()
    blocks = used({"segments": mine})
    places = sorted((block["address"], block["requested_size"]) for block in blocks)
    assert places == sorted((array.ctypes.data, array.nbytes) for array in arrays)


def test_agrees_with_the_statistics() -> None:
    kept = [make(nbytes) for nbytes in (100, 5000, 2 << 20)]
    found = snapshot(DEVICE)
    stats = memory_stats(DEVICE)
    for key, stat in (
        ("total_size", "reserved_bytes"),
        ("allocated_size", "allocated_bytes"),
        ("active_size", "active_bytes"),
        ("requested_size", "requested_bytes"),
    ):
        for pool in ("small", "large"):
            sizes = [each[key] for each in found["segments"] if each["segment_type"] == pool]
            assert sum(sizes) == stats[f"{stat}.{pool}_pool.current"]
    assert found["nbrt"]["devices"][0]["stats"] == stats
    assert len(used(found)) >= len(kept)


def test_frames_are_those_of_the_allocation_if_it_was_recorded() -> None:
    early = make(10)
    with memory_history(device=DEVICE):
        late = make(11)
        found = snapshot(DEVICE)
    frames = {block["address"]: block["frames"] for block in used(found)}
    assert frames[early.ctypes.data] == []
    names = [frame["name"] for frame in frames[late.ctypes.data][:2]]
    assert names == ["make", "test_frames_are_those_of_the_allocation_if_it_was_recorded"]


def test_trace_of_one_device_with_annotations() -> None:
    gc.collect()  # else arrays of other tests may die meanwhile
    pool = MemoryPool(DEVICE)
    with memory_history(skip_actions=["segment_alloc"]), use_pool(pool):
        with annotate("epoch 1"), annotate("step 2"):
            array = make(100)
        del array
        nbrt.empty(10, "uint8", device="cpu:2")
        with nbrt.device("cpu:0"):
            found = snapshot()
    assert len(found["device_traces"]) == nbrt.device_count("cpu")
    trace = found["device_traces"][3]
    assert [entry["action"] for entry in trace] == [
        "annotate",
        "annotate",
        "alloc",
        "annotate",
        "annotate",
        "free_requested",
        "free_completed",
    ]
    assert trace[2]["user_metadata"] == "epoch 1 / step 2"
    assert [entry["user_metadata"] for entry in trace[-2:]] == ["", ""]
    notes = [note for note in found["external_annotations"] if note["device"] == 3]
    assert [(note["stage"], note["name"]) for note in notes] == [
        ("START", "epoch 1"),
        ("START", "step 2"),
        ("END", "step 2"),
        ("END", "epoch 1"),
    ]
    assert [note["time_us"] for note in notes] == sorted(note["time_us"] for note in notes)
    sizes = [e["size"] for e in found["device_traces"][2] if e["action"] == "alloc"]
    assert sizes == [10]
    assert found["device_traces"][1] == []


def test_what_waits_for_a_stream_is_pending() -> None:
    side = nbrt.Stream(DEVICE)
    with Latch() as latch:
        array = make(12345)
        latch.hold(side)
        record_stream(array, side)
        address = array.ctypes.data
        del array
        pending = used(snapshot(DEVICE), "active_pending_free")
        assert [(each["address"], each["requested_size"]) for each in pending] == [(address, 12345)]
        latch.release()
        side.synchronize()
    assert used(snapshot(DEVICE), "active_pending_free") == []


def test_a_snapshot_leaves_a_mark_in_the_next() -> None:
    with memory_history(device=DEVICE):
        first, second = snapshot(DEVICE), snapshot(DEVICE)
    actions = [[e["action"] for e in each["device_traces"][3]] for each in (first, second)]
    assert actions == [[], ["snapshot"]]


@pytest.mark.parametrize("suffix", [".json", ".pickle"])
def test_files_hold_the_same(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_history(device=DEVICE):
        kept = make(100)
        found = snapshot(DEVICE)
    assert kept.nbytes == 100
    monkeypatch.setattr("nbrt.observe.history.snapshot.snapshot", lambda _device: found)
    path = tmp_path / f"memory{suffix}"
    dump_snapshot(path)
    loaded = load_snapshot(path)
    assert loaded == found
    assert list(tmp_path.iterdir()) == [path]


def test_a_dump_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.pickle"
    path.write_bytes(b"before")

    def full(_path: Path, _data: bytes) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        dump_snapshot(path, DEVICE)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.pickle", pickle.dumps(Path("x")), "it asks for pathlib"),
        ("b.pickle", b"no pickle", "cannot be read"),
        ("c.pickle", b"", "cannot be read"),
        ("d.pickle", pickle.dumps({"segments": []}), "device_traces"),
        ("e.json", b"{", "JSON"),
        ("f.json", b"[1]", "not a mapping"),
    ],
)
def test_refuses_files_that_are_no_snapshots(
    name: str, data: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArgumentError, match=words):
        load_snapshot(tmp_path / name)


def rich_snapshot(folder: Path) -> Path:
    """Write a snapshot with every action and state in it."""
    side = nbrt.Stream(DEVICE)
    path = folder / "memory.pickle"
    pool = MemoryPool(DEVICE, "expandable", limit=64 << 20, name="grows")
    with use_pool(MemoryPool(DEVICE)), memory_history(device=DEVICE), Latch() as latch:
        with annotate("first"), use_pool(pool):
            kept = [make(1000), make(9 << 20), make(20 << 20)]
            with pytest.raises(nbrt.errors.OutOfMemoryError):
                make(1 << 30)
        del kept[1]
        waiting = make(5 << 20)
        make(17 << 20)  # stays in the pool until the cache is emptied
        latch.hold(side)
        record_stream(waiting, side)
        del waiting
        nbrt.empty_cache(DEVICE)
        snapshot(DEVICE)
        dump_snapshot(path, DEVICE)
        latch.release()
        side.synchronize()
    return path


def test_a_pickle_has_nothing_that_the_viewer_page_cannot_read(tmp_path: Path) -> None:
    data = rich_snapshot(tmp_path).read_bytes()
    names = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert names <= set(_OPCODES)
    assert data[1] == 4  # protocol: the page refuses a newer one


@pytest.mark.parametrize("kind", ["caching", "expandable", "plain"])
def test_the_past_can_be_replayed_from_the_end(kind: str) -> None:
    """As the viewer's page does to draw a moment: undo events, find each block in a segment."""
    rng = random.Random(11)
    arrays: list[Any] = []
    with memory_history(device=DEVICE), use_pool(MemoryPool(DEVICE, kind)):
        for _ in range(60):
            if arrays and rng.random() < 0.4:
                arrays.pop()
            else:
                arrays.append(make(rng.choice((700, 1 << 20, 3 << 20, 17 << 20))))
        found = snapshot(DEVICE)
        arrays.clear()
    held = {
        page
        for segment in found["segments"]
        for page in range(segment["address"], segment["address"] + segment["total_size"], 4096)
    }
    blocks = {block["address"]: block["requested_size"] for block in used(found)}
    for entry in reversed(found["device_traces"][3]):
        place, size = entry["addr"], entry["size"]
        pages = set(range(place, place + size, 4096))
        match entry["action"]:
            case "alloc":
                assert blocks.pop(place) == size
            case "free_completed":
                assert blocks.setdefault(place, size) == size
            case "segment_alloc" | "segment_map":
                assert pages <= held
                held -= pages
            case "segment_free" | "segment_unmap":
                assert not pages & held
                held |= pages
        assert all(begin & -4096 in held for begin in blocks)


def torch_viewer() -> ModuleType:
    """Torch's script, which runs without torch; found, not imported, as that takes seconds."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed: its memory viewer cannot be run")
    script = Path(torch.origin).parent / "cuda" / "_memory_viz.py"
    spec = importlib.util.spec_from_file_location("torch_memory_viz", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torch_opens_a_snapshot(tmp_path: Path) -> None:
    viewer = torch_viewer()
    data = rich_snapshot(tmp_path).read_bytes()

    def fresh() -> Any:
        return pickle.loads(data)

    found = fresh()
    sizes = [each["total_size"] for each in found["segments"]]
    assert f"segments: {len(sizes)}\n" in viewer.segsum(fresh())
    assert f"total_reserved: {viewer.Bytes(sum(sizes))}\n" in viewer.segsum(fresh())
    assert f"{len(found['device_traces'][3])} entries" in viewer.trace(fresh())
    check_flame_graph(viewer.segments(fresh(), str), found)
    check_flame_graph(viewer.memory(fresh(), str), found)
    assert viewer.compare([], fresh()["segments"], str).count("only_after;") > len(sizes)
    for page in (viewer.trace_plot(fresh()), viewer.segment_plot(fresh())):
        encoded = re.search(r'"base64": "([^"]+)"', page)
        assert encoded is not None
        assert pickle.loads(base64.b64decode(encoded[1])) == found


def check_flame_graph(text: str, found: dict[str, Any]) -> None:
    """Every byte held from the system is in some line, as those lines end in sizes."""
    assert sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines()) == sum(
        segment["total_size"] for segment in found["segments"]
    )


def test_torch_opened_the_kept_snapshot() -> None:
    kept = json.loads(GOLDEN.read_text())
    after, printed = kept["snapshots"]["after"], kept["printed"]
    assert f"segments: {len(after['segments'])}\n" in printed["stats"]
    assert f"{len(after['device_traces'][0])} entries" in printed["trace"]
    assert "raise OutOfMemoryError # 1.0GiB requested" in printed["trace"]
    check_flame_graph(printed["segments"], after)
    check_flame_graph(printed["memory"], after)
    assert "train.py:11:make" in printed["memory"]


def test_a_snapshot_has_the_form_of_the_one_that_torch_opened(tmp_path: Path) -> None:
    kept = json.loads(GOLDEN.read_text())["snapshots"]["after"]
    found = json.loads(json.dumps(load_snapshot(rich_snapshot(tmp_path))))
    assert forms(found) == forms(kept)


def forms(found: dict[str, Any]) -> dict[str, set[Any]]:
    """Return which keys, with values of which types, the parts of a snapshot have."""
    traces = [entry for trace in found["device_traces"] for entry in trace]
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    frames = [frame for holder in (*blocks, *traces) for frame in holder["frames"]]
    form = {
        "whole": {form_of(found)},
        "settings": {form_of(found["allocator_settings"])},
        "segments": {form_of(each) for each in found["segments"]},
        "blocks": {(each["state"], form_of(each)) for each in blocks},
        "frames": {form_of(each) for each in frames},
        "annotations": {form_of(each) for each in found["external_annotations"]},
    }
    by_action = {(each["action"], form_of(each)) for each in traces}
    return {**form, "traces": by_action}


def form_of(found: dict[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((key, type(value).__name__) for key, value in found.items())


def test_threads_that_write_one_file_leave_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    dump_snapshot(path, "cpu:0")
    barrier = threading.Barrier(4)
    failures: list[Exception] = []

    def work(step: Callable[[], object]) -> None:
        barrier.wait(HANG_TIMEOUT)
        try:
            for _ in range(25):
                step()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    steps = [lambda: dump_snapshot(path, "cpu:0")] * 3 + [lambda: load_snapshot(path)]
    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = tmp_path / f"{'x' * 250}.JSON"
    dump_snapshot(longest, "cpu:0")
    assert longest.read_bytes()[:1] == b"{"
    assert load_snapshot(longest)["nbrt"]["kind"] == "cpu"
    monkeypatch.chdir(tmp_path)
    for function in (dump_snapshot, load_snapshot):
        with pytest.raises(ArgumentError, match="expected the path of a file, got"):
            function("")
        with pytest.raises(ArgumentTypeError, match="expected the path of a file, got None"):
            function(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ([], r"the snapshot is \[\], not a mapping"),
        ({"segments": 5, "device_traces": []}, r"\['segments'\] is 5, not a list"),
        ({"segments": [5], "device_traces": []}, r"\['segments'\]\[0\] is 5, not a mapping"),
        ({"segments": [{}], "device_traces": []}, r"\['segments'\]\[0\] has no 'address'"),
        ({"segments": [], "device_traces": [5]}, r"\['device_traces'\]\[0\] is 5, not a list"),
        (
            {"segments": [], "device_traces": [[5]]},
            r"\['device_traces'\]\[0\]\[0\] is 5, not a mapping",
        ),
        (
            {"segments": [], "device_traces": [[{"action": "alloc", "pool_id": 5}]]},
            r"\['pool_id'\] is 5, not two numbers",
        ),
        (
            {"segments": [], "device_traces": [[{"action": "alloc", "frames": [{}]}]]},
            r"\['frames'\]\[0\] has no 'filename'",
        ),
    ],
)
def test_a_loaded_file_is_validated(found: object, what: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ArgumentError, match=f"in '.*other.json', got .* in which .*{what}"):
        load_snapshot(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("deep.json", b"[" * 100_000),  # RecursionError
        ("build.pickle", b"\x80\x04}}b."),  # AttributeError
        ("reduce.pickle", b"\x80\x04K\x01)R."),  # TypeError
        ("long.pickle", b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f"),  # OverflowError
        ("huge.pickle", b"\x80\x04\x8e" + (1 << 46).to_bytes(8, "little")),  # MemoryError
    ],
)
def test_whatever_reading_raises_names_the_file(name: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ArgumentError, match=f"expected a memory snapshot in '.*{name}'"):
        load_snapshot(path)
