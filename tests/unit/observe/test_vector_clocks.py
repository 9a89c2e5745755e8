"""Vector clocks against a search in the graph of waits."""

from __future__ import annotations

import random

import pytest

from nbrt.observe.races.vector_clocks import VectorClocks

STREAMS = ("a", "b", "c")


class Mark:
    """Something that can be recorded."""


class Graph:
    """Commands and what comes directly before each of them."""

    def __init__(self) -> None:
        self.before: list[set[int]] = []
        self.last: dict[str, int] = {}
        self.host: set[int] = set()

    def add(self, stream: str, also: set[int] = frozenset()) -> int:  # type: ignore[assignment]
        self.before.append(self.to_come(stream) | set(also))
        self.last[stream] = len(self.before) - 1
        return self.last[stream]

    def to_come(self, stream: str) -> set[int]:
        """Return what comes directly before the next command of a stream."""
        return self.host | ({self.last[stream]} if stream in self.last else set())

    def reached(self, start: set[int]) -> set[int]:
        """Return all that comes before, by any number of steps back."""
        found, todo = set(start), list(start)
        while todo:
            for one in self.before[todo.pop()] - found:
                found.add(one)
                todo.append(one)
        return found


@pytest.mark.parametrize("seed", range(60))
def test_clocks_agree_with_a_search_of_the_graph(seed: int) -> None:
    choose = random.Random(seed)
    clocks: VectorClocks[str] = VectorClocks()
    graph = Graph()
    marks = [Mark() for _ in range(3)]
    recorded: dict[Mark, int] = {}
    commands: list[tuple[str, int, int]] = []
    for _ in range(choose.randrange(5, 40)):
        stream, mark = choose.choice(STREAMS), choose.choice(marks)
        match choose.choice(["command", "command", "record", "wait", "stream sync", "event sync"]):
            case "command":
                commands.append((stream, clocks.advance(stream), graph.add(stream)))
            case "record":
                clocks.record(stream, mark)
                recorded[mark] = graph.add(stream)
            case "wait":
                clocks.wait(stream, mark)
                graph.add(stream, {recorded[mark]} if mark in recorded else set())
            case "stream sync":
                clocks.host_waits_for_stream(stream)
                if stream in graph.last:
                    graph.host.add(graph.last[stream])
            case "event sync":
                clocks.host_waits_for_event(mark)
                if mark in recorded:
                    graph.host.add(recorded[mark])
        settled = graph.reached(graph.host)
        for other in STREAMS:
            past = graph.reached(graph.to_come(other))
            for owner, step, node in commands:
                assert clocks.is_ordered(owner, step, before=other) == (node in past)
                assert clocks.is_settled(owner, step) == (node in settled)


def test_an_event_keeps_the_point_it_was_recorded_at() -> None:
    clocks: VectorClocks[str] = VectorClocks()
    mark = Mark()
    early = clocks.advance("a")
    clocks.record("a", mark)
    late = clocks.advance("a")
    clocks.wait("b", mark)
    assert clocks.is_ordered("a", early, before="b")
    assert not clocks.is_ordered("a", late, before="b")


def test_an_event_recorded_again_forgets_the_first_point() -> None:
    clocks: VectorClocks[str] = VectorClocks()
    mark = Mark()
    early = clocks.advance("a")
    clocks.record("a", mark)
    clocks.record("b", mark)
    clocks.wait("c", mark)
    assert not clocks.is_ordered("a", early, before="c")


def test_dead_events_are_forgotten() -> None:
    clocks: VectorClocks[str] = VectorClocks()
    for _ in range(10):
        clocks.record("a", Mark())
    assert len(clocks._events) == 0


def test_now_counts_the_commands_of_one_stream() -> None:
    clocks: VectorClocks[str] = VectorClocks()
    assert clocks.now("a") == 0
    assert [clocks.advance("a"), clocks.advance("b"), clocks.advance("a")] == [1, 1, 2]
    assert (clocks.now("a"), clocks.now("b"), clocks.streams) == (2, 1, ["a", "b"])
