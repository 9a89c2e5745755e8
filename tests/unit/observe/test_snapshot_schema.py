"""Snapshots with one invalid part: plots are drawn, or an error names the part."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure

from helpers.memory_snapshots import MIB, Heap, frame
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.plots.html_report import to_html
from nbrt.observe.plots.segment_map import fragmentation, plot_segments
from nbrt.observe.plots.timeline import plot_timeline, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GONE = object()


def whole() -> dict[str, Any]:
    """Return a snapshot with every kind of event that plots read."""
    heap = Heap()
    heap.annotate("begin")
    first = heap.alloc(700, frame("a.py", 3))
    heap.alloc(MIB, frame("b.py", 8))
    heap.free(first)
    heap.shrink(heap.grow(MIB))
    heap.fail(300 * MIB, 50 * MIB)
    found = heap.snapshot()
    for map_event in ("segment_map", "segment_unmap"):
        found["device_traces"][0].append({**found["device_traces"][0][-1], "action": map_event})
    return found | {"nbrt": {"kind": "cpu"}}


def places(found: Any, *above: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the path to each part of a snapshot."""
    inner = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, *above, key)


def broken(place: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """Return the snapshot with another value at a path, or without the key."""
    found = copy.deepcopy(whole())
    *above, last = place
    parent: Any = found
    for step in above:
        parent = parent[step]
    if value is GONE:
        del parent[last]
    else:
        parent[last] = value
    return found


PLACES = list(places(whole()))
FUNCTIONS: tuple[Callable[[Any], object], ...] = (timeline, fragmentation, to_html)


def outcome(function: Callable[[Any], object], found: Any) -> str | None:
    """Return the message of the error; None if there is none. Any other error fails the test."""
    try:
        function(found)
    except (ArgumentError, ArgumentTypeError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("value", [GONE, None, -1, "x", [], {}, 2**80, 1.5, True, b"x"])
def test_one_broken_place(value: object) -> None:
    refused = set()
    for place in PLACES:
        found = broken(place, value)
        messages = {outcome(function, found) for function in (timeline, fragmentation)}
        assert len(messages) == 1, (place, messages)
        (message,) = messages
        if message is None:
            assert outcome(to_html, found) is None, place
        else:
            refused.add(place)
            assert repr(place[-1]) in message or repr(place[0]) in message, (place, message)
    assert len(refused) > (2 if value is GONE else 20)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("segments", 0, "blocks", 0, "state"), GONE, r"\['blocks'\]\[0\] has no 'state'"),
        (("segments", 0, "address"), "a", r"\['address'\] is 'a', not an int from 0 to"),
        (("segments", 0, "blocks"), 5, r"\['segments'\]\[0\]\['blocks'\] is 5, not a list"),
        (("segments", 0), None, r"\['segments'\]\[0\] is None, not a mapping"),
        (("device_traces", 0), {}, r"\['device_traces'\]\[0\] is {}, not a list"),
        (("device_traces", 0, 0, "name"), GONE, r"\['device_traces'\]\[0\]\[0\] has no 'name'"),
        (("device_traces", 0, 0, "time_us"), -5, r"\['time_us'\] is -5, not an int"),
        (("device_traces", 0, 2, "frames", 1, "line"), "7", r"\[1\]\['line'\] is '7', not an int"),
        (("nbrt",), [1], r"\['nbrt'\] is \[1\], not a mapping"),
        (("nbrt", "kind"), 5, r"\['nbrt'\]\['kind'\] is 5, not a text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(place: tuple[str | int, ...], value: object, message: str) -> None:
    found = broken(place, value)
    for function in (*FUNCTIONS, plot_timeline, plot_segments):
        with pytest.raises(ArgumentError, match=message):
            function(found)


@pytest.mark.parametrize(
    "found", [None, 5, "text", [], {}, {"segments": []}, {"device_traces": []}]
)
def test_what_is_no_snapshot_at_all(found: object) -> None:
    for function in (*FUNCTIONS, plot_timeline, plot_segments):
        with pytest.raises(ArgumentTypeError, match=r"nbrt\.memory\.snapshot"):
            function(found)


def test_what_torch_may_leave_out() -> None:
    found = whole()
    del found["nbrt"]
    for segment in found["segments"]:
        del segment["stream"], segment["device"], segment["allocated_size"]
    for event in found["device_traces"][0]:
        del event["stream"]
        if event["action"] != "alloc":
            del event["frames"]
    assert timeline(found).nbytes.tolist() == timeline(whole()).nbytes.tolist()
    assert isinstance(plot_segments(found), Figure)
    assert to_html(found).startswith("<!DOCTYPE html>")
