"""Bars of segments show every byte once, and the numbers are sums over the blocks."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from helpers.memory_snapshots import MIB, Heap, frame, training_heap
from nbrt.errors import ArgumentTypeError
from nbrt.observe.call_sites import CallSiteTable
from nbrt.observe.plots.segment_map import FREE, drawn_blocks, fragmentation, plot_segments


def scattered(blocks: int) -> Heap:
    """One segment with many small blocks, every third freed, and a large one."""
    heap = Heap()
    heap.grow(20 * MIB)
    small = [heap.alloc(1000 + k % 300, frame("a.py", k % 5)) for k in range(blocks)]
    heap.alloc(9 * MIB, frame("b.py", 1))
    for at in small[::3]:
        heap.free(at)
    return heap


def test_figures_are_sums_over_the_blocks() -> None:
    snapshot = training_heap().snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    active = [block for block in blocks if block["state"] != "inactive"]
    free = [block["size"] for block in blocks if block["state"] == "inactive"]
    figures = fragmentation(snapshot)
    assert figures.reserved == sum(block["size"] for block in blocks)
    assert figures.active == sum(block["size"] for block in active)
    assert figures.requested == sum(block["requested_size"] for block in active)
    assert figures.free == sum(free)
    assert figures.largest_free == max(free)
    assert figures.ratio == pytest.approx(1 - max(free) / sum(free))
    with pytest.raises(ArgumentTypeError, match="memory snapshot"):
        fragmentation({})


def test_a_full_device_is_not_fragmented() -> None:
    heap = Heap()
    heap.grow(2 * MIB)
    heap.alloc(2 * MIB, frame("a.py", 1))
    assert fragmentation(heap.snapshot()).ratio == 0.0
    assert fragmentation({"segments": [], "device_traces": []}).reserved == 0


@pytest.mark.parametrize("most", [10, 400, 10**9])
def test_pieces_cover_a_segment_once(most: int) -> None:
    (segment,) = scattered(600).snapshot()["segments"]
    found = drawn_blocks(segment, CallSiteTable(), most)
    assert found[0].offset == 0
    ends = np.array([piece.offset + piece.nbytes for piece in found])
    assert [piece.offset for piece in found[1:]] == ends[:-1].tolist()
    assert ends[-1] == segment["total_size"]
    assert sum(piece.blocks for piece in found) == len(segment["blocks"])
    assert len(found) <= 2 * most
    if most == 10**9:
        assert [piece.state for piece in found] == [each["state"] for each in segment["blocks"]]


def test_a_joined_piece_is_like_most_of_its_bytes() -> None:
    (segment,) = scattered(600).snapshot()["segments"]
    first, *_ = drawn_blocks(segment, CallSiteTable(), 10)
    assert first.blocks > 500
    assert first.state == "inactive"  # a third, and each of the five sites less
    assert first.site == FREE


def test_picture_has_a_bar_for_each_segment() -> None:
    heap = training_heap()
    other = Heap(base=0x9000_0000)
    other.alloc(5 * MIB, frame("x.py", 1))
    snapshot = heap.snapshot()
    foreign = {**other.snapshot()["segments"][0], "device": 1}
    figure = plot_segments({**snapshot, "segments": [*snapshot["segments"], foreign]})
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [f"{segment['address']:#x}  20.0 MiB" for segment in snapshot["segments"]]
    assert "fragmentation 65%" in axes.get_title()
    drawn = sum(len(bar.get_paths()) for bar in axes.collections)
    assert drawn == sum(
        len(drawn_blocks(segment, CallSiteTable())) for segment in snapshot["segments"]
    )
    hatched = [bar for bar in axes.collections if bar.get_hatch() and bar.get_paths()]
    assert len(hatched) == 1  # weights[0], which waits for a stream
    labels = {text.get_text(): text for text in axes.get_legend().get_texts()}
    assert {"model.py:13 step", "Cell [3]:2", "free", "waits for a stream"} <= set(labels)


def test_only_the_top_sites_have_colours_of_their_own() -> None:
    snapshot = training_heap().snapshot()
    (axes,) = plot_segments(snapshot, top=1).axes
    colors = {to_hex(color) for bar in axes.collections for color in bar.get_facecolor()}
    assert len(colors) == 3  # the site, the others, free
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["model.py:13 step", "other", "free", "waits for a stream"]
    other = axes.figure.add_subplot()
    assert plot_segments(snapshot, top=1, ax=other) is None
    assert other.get_title() == axes.get_title()


def test_of_many_segments_the_largest_are_drawn() -> None:
    heap = Heap()
    for k in range(60):
        heap.grow((1 + k) * MIB)
    (axes,) = plot_segments(heap.snapshot()).axes
    assert len(axes.get_yticks()) == 48
    assert axes.get_yticklabels()[0].get_text().endswith("13.0 MiB")
    assert axes.get_legend().get_title().get_text() == "the largest segments only"
