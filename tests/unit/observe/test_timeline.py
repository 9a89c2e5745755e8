"""Timelines against a simulated allocator at every event."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import nbrt
from helpers.memory_snapshots import MIB, Heap, frame, large_snapshot, training_heap
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.observe.call_sites import NO_STACK, CallSiteTable
from nbrt.observe.history.annotations import annotate
from nbrt.observe.history.recorder import memory_history
from nbrt.observe.history.snapshot import snapshot
from nbrt.observe.plots.lifetimes import active_blocks, read_lifetimes
from nbrt.observe.plots.segment_map import fragmentation, plot_segments
from nbrt.observe.plots.timeline import Timeline, plot_timeline, site_uses, timeline

SITES = [frame(f"/p/{name}.py", line) for name in "abc" for line in (3, 8)]


def random_heap(seed: int) -> Heap:
    """Allocations, frees that wait, segments that come and go, in random order."""
    random = np.random.default_rng(seed)
    heap = Heap(seed=seed)
    live: list[int] = []
    waiting: list[int] = []
    for _ in range(400):
        match int(random.integers(5)):
            case 0 | 1:
                nbytes = int(random.choice([100, 5_000, 700_000, 3 * MIB]))
                live.append(heap.alloc(nbytes, SITES[int(random.integers(len(SITES)))]))
            case 2 if live:
                waiting.append(live.pop(int(random.integers(len(live)))))
                heap.request(waiting[-1])
            case 3 if waiting:
                heap.complete(waiting.pop(int(random.integers(len(waiting)))))
            case 4 if random.random() < 0.2:
                heap.shrink(heap.grow(MIB))
    return heap


def by_site(lines: Timeline, point: int) -> dict[str, int]:
    return {
        f"/p/{site.partition(' ')[0]}": int(nbytes)
        for site, nbytes in zip(lines.sites, lines.nbytes[:, point], strict=True)
        if nbytes
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_point_is_the_state_after_an_event(seed: int) -> None:
    heap = random_heap(seed)
    lines = timeline(heap.snapshot())
    assert lines.times.size == len(heap.states) + 1
    assert by_site(lines, 0) == {}
    assert lines.reserved[0] == 0
    for point, (time, alive, reserved) in enumerate(heap.states, 1):
        assert lines.times[point] == time - heap.states[0][0]
        assert by_site(lines, point) == alive
        assert lines.reserved[point] == reserved


@pytest.mark.parametrize("since", [1, 100, 250])
def test_a_record_that_began_late_knows_what_was_there_before(since: int) -> None:
    heap = random_heap(5)
    lines = timeline(heap.snapshot(since=since))
    assert lines.sites[-1] == "before the record"
    assert lines.nbytes[-1, 0] == lines.total[0] == sum(heap.states[since - 1][1].values())
    assert lines.reserved[0] == heap.states[since - 1][2]
    for point, (_, alive, reserved) in enumerate(heap.states[since:], 1):
        assert lines.total[point] == sum(alive.values())
        assert lines.reserved[point] == reserved


def test_top_sites_have_the_highest_peaks_and_other_the_rest() -> None:
    heap = random_heap(2)
    whole, cut = timeline(heap.snapshot()), timeline(heap.snapshot(), top=2)
    peaks = whole.nbytes.max(axis=1)
    assert cut.sites == (*whole.sites[:2], "other", "before the record")
    assert (np.diff(peaks[:-2]) <= 0).all()
    assert np.array_equal(cut.total, whole.total)
    assert np.array_equal(cut.nbytes[2], whole.nbytes[2:].sum(axis=0))
    assert timeline(heap.snapshot(), top=0).nbytes.shape[0] == 2


def test_uses_of_sites_are_sums_over_the_trace() -> None:
    heap = random_heap(4)
    snapshot = heap.snapshot()
    whole = timeline(snapshot)
    uses = {use.label: use for use in site_uses(read_lifetimes(snapshot))}
    for row, site in enumerate(whole.sites[:-2]):
        events = [
            event["size"]
            for event in heap.trace
            if event["action"] == "alloc"
            and f"{event['frames'][1]['filename'][3:]}:{event['frames'][1]['line']} step" == site
        ]
        use = uses.pop(site)
        assert (use.allocations, use.total) == (len(events), sum(events))
        assert (use.peak, use.alive) == (whole.nbytes[row].max(), whole.nbytes[row, -1])
    assert uses == {}


def test_without_completions_a_request_ends_a_life() -> None:
    heap = random_heap(3)
    heap.alloc(64, SITES[0])
    snapshot = heap.snapshot()
    events = snapshot["device_traces"][0]
    shortened = [event for event in events if event["action"] != "free_completed"]
    last = timeline({**snapshot, "device_traces": [shortened]})
    held = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] != "inactive"]
    assert last.total[-1] == sum(block["requested_size"] for block in held)


def test_a_block_that_is_reused_at_once_counts_once() -> None:
    site = [frame("a.py", 1)]
    events = [
        {"action": "alloc", "addr": 8, "size": 100, "time_us": at, "frames": site}
        for at in range(5)
    ]
    snapshot = {"segments": [], "device_traces": [events]}
    assert site_uses(read_lifetimes(snapshot))[0].peak == 100
    assert timeline(snapshot).total.max() == 100


def test_sampling_keeps_the_peak_of_every_stretch() -> None:
    whole = timeline(large_snapshot(20_000))
    few = whole.sampled(100)
    assert 50 <= few.times.size <= 102
    assert np.isin(few.times, whole.times).all()
    assert (few.times[0], few.times[-1]) == (whole.times[0], whole.times[-1])
    stretch = whole.times * 99 // whole.times[-1]
    for number in np.unique(stretch):
        inside = (few.times * 99 // whole.times[-1]) == number
        assert few.total[inside].max() == whole.total[stretch == number].max()
    assert whole.sampled(10**6) is whole
    with pytest.raises(ArgumentError, match="at least 2"):
        whole.sampled(1)


def test_marks_are_failures_and_annotations() -> None:
    heap = Heap()
    heap.annotate("epoch 1")
    heap.fail(3 * MIB, MIB)
    first, second = timeline(heap.snapshot()).marks
    assert (first.kind, first.text, first.time) == ("note", "epoch 1", 0)
    assert (second.kind, second.text) == ("oom", "out of memory: 3.0 MiB asked, 1.0 MiB free")


def test_the_site_is_the_innermost_line_of_a_person() -> None:
    inside = [
        frame("/v/lib/python3.11/site-packages/cupy/_core/core.py", 2, "empty"),
        frame(nbrt.__file__, 4, "empty"),
        frame(r"C:\venv\site-packages\numpy\lib.py", 4, "pad"),
        frame("??", 0, "unknown"),
    ]
    user = frame("/home/nbrt/numpy/mine.py", 5, "load")
    table = CallSiteTable()
    stacks: list[list[dict[str, Any]]] = [
        [*inside, user, frame("main.py", 1)],
        [user],
        [*inside],
        [],
        [frame("/other/mine.py", 5, "load")],
        [frame("/tmp/ipykernel_77/123.py", 2, "<module>")],
    ]
    assert [table.number(stack) for stack in stacks] == [0, 0, 1, 2, 3, 4]
    assert table.labels() == [
        "numpy/mine.py:5 load", "core.py:2 empty", NO_STACK, "other/mine.py:5 load", "Cell 123:2",
    ]  # fmt: skip


def test_bad_arguments() -> None:
    snapshot = Heap().snapshot()
    with pytest.raises(ArgumentTypeError, match=r"nbrt\.memory\.snapshot"):
        timeline({"segments": []})
    with pytest.raises(ArgumentError, match="0 to 0, got 3"):
        timeline(snapshot, device=3)
    with pytest.raises(ArgumentError, match="top=-1"):
        timeline(snapshot, top=-1)


def test_an_empty_record_has_one_point() -> None:
    lines = timeline({"segments": [], "device_traces": []})
    assert lines.times.tolist() == lines.reserved.tolist() == lines.total.tolist() == [0]


def test_picture_has_an_area_for_each_site_and_marks() -> None:
    snapshot = training_heap().snapshot()
    lines = timeline(snapshot, top=4)
    figure = plot_timeline(snapshot, top=4)
    (axes,) = figure.axes
    _, labels = axes.get_legend_handles_labels()
    assert sorted(labels) == sorted([*lines.sites[:5], "reserved"])
    assert len(axes.collections) == 5
    assert "71.4 MiB" in axes.get_title()
    texts = [text.get_text() for text in axes.texts]
    assert "epoch 3" in texts
    assert "out of memory: 300.0 MiB asked, 50.0 MiB free" in texts
    figure.savefig(drawn := io.BytesIO())
    drawn.seek(0)
    assert len(np.unique(imread(drawn).reshape(-1, 4), axis=0)) > 10  # colours
    assert plot_timeline(snapshot, ax=figure.subplots()) is None
    assert figure.axes[1].get_title() == axes.get_title()


def test_pictures_without_matplotlib_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "nbrt._internal.notebook_figure", raising=False)
    with pytest.raises(NotSupportedError, match=r"nbrt\[viz\]"):
        plot_timeline(Heap().snapshot())


def test_a_snapshot_of_nbrt_itself() -> None:
    kept = nbrt.empty(3 * MIB, "uint8", device="cpu:2")
    with memory_history(device="cpu:2"):
        with annotate("load"):
            more = [nbrt.empty(5000, "uint8", device="cpu:2") for _ in range(3)]
        del more[0]
        taken = snapshot("cpu:2")
    lines = timeline(taken, device=2)
    (site,) = (row for row, name in enumerate(lines.sites) if name.startswith("test_timeline.py:"))
    assert lines.nbytes[site].max() == 15_000
    assert lines.nbytes[site, -1] == 10_000
    assert (lines.nbytes[-1] >= kept.nbytes).all()
    held = [block for each in taken["segments"] for block in active_blocks(each)]
    assert lines.total[-1] == sum(block["requested_size"] for block in held)
    assert lines.reserved[-1] == sum(each["total_size"] for each in taken["segments"])
    assert [mark.text for mark in lines.marks] == ["load"]


def test_a_picture_of_nothing_is_empty() -> None:
    axes = plot_timeline({"segments": [], "device_traces": [[]]}).axes[0]
    assert axes.collections[:] == []
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["reserved"]


def test_files_that_begin_with_an_underscore_are_in_the_legend() -> None:
    heap = Heap()
    heap.alloc(MIB, frame("__init__.py", 2))
    axes = plot_timeline(heap.snapshot()).axes[0]
    assert "./__init__.py:2 step" in [each.get_text() for each in axes.get_legend().get_texts()]


@pytest.mark.parametrize("name", ["cpu:1", nbrt.Device("cpu:1"), np.int64(1)])
def test_a_device_can_be_named(name: Any) -> None:
    event = {"action": "alloc", "addr": 64, "size": 10, "time_us": 1, "frames": []}
    found = {"segments": [], "device_traces": [[], [event]], "nbrt": {"kind": "cpu"}}
    assert timeline(found, device=name).total.tolist() == [0, 10]
    with pytest.raises(ArgumentError, match="expected a device of the snapshot's kind 'cpu'"):
        timeline(found, device="cuda:1")


@pytest.mark.parametrize(
    "wrong", [{"device": None}, {"device": 1.5}, {"device": True}, {"top": "x"}, {"top": None}]
)
@pytest.mark.parametrize("function", [timeline, plot_timeline, plot_segments])
def test_arguments_of_wrong_types(function: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a"):
        function({"segments": [], "device_traces": [[]]}, **wrong)


@pytest.mark.parametrize("parts", [(None, None), (None, []), (5, 5)])
def test_mappings_that_are_no_snapshots(parts: tuple[Any, Any]) -> None:
    found = dict(zip(("segments", "device_traces"), parts, strict=True))
    for function in (timeline, plot_segments, fragmentation):
        with pytest.raises(ArgumentTypeError, match="expected a memory snapshot"):
            function(found)
