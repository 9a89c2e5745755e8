"""Races of captured graphs are found at the end of the capture, with nothing run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.memory_races import N, add, double
from nbrt.errors import MemoryRaceError, MemoryRaceWarning
from nbrt.memory import check_races, graph_races

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def on_device(device: nbrt.Device) -> Iterator[None]:
    with nbrt.device(device):
        yield


def fork_and_join(x: Any, y: Any, *, is_joined: bool) -> None:
    """Double `x` on another stream, then add it to `y`."""
    main, side = nbrt.current_stream(), nbrt.Stream()
    side.wait_stream(main)
    with nbrt.stream(side):
        double.forall(N)(x)
    if is_joined:
        main.wait_stream(side)
    add.forall(N)(y, x)
    main.wait_stream(side)


def test_a_missing_event_is_found_on_capture() -> None:
    x, y = nbrt.full(N, 2.0), nbrt.zeros(N)
    with pytest.raises(MemoryRaceError) as caught, check_races(), nbrt.graph() as g:
        fork_and_join(x, y, is_joined=False)
    (report,) = caught.value.reports
    assert (report.touched.what, report.other.what) == ("launch of add", "earlier launch of double")
    assert "add.forall(N)(y, x)" in report.touched.stack
    assert "double.forall(N)(x)" in report.other.stack
    assert report.touched.stream != report.other.stream
    assert f"second.wait_event(event) before node {1}" in report.advice
    assert repr(g) == f"Graph('{g.device}', empty)"
    assert nbrt.to_host(x)[0] == 2.0
    assert nbrt.to_host(y)[0] == 0.0
    fork_and_join(x, y, is_joined=True)
    assert nbrt.to_host(y)[0] == 4.0


def test_a_race_can_be_a_warning_or_be_collected() -> None:
    x, y = nbrt.full(N, 2.0), nbrt.zeros(N)
    missing = pytest.warns(MemoryRaceWarning, match="missing event")
    with missing, check_races(action="warn"), nbrt.graph():
        fork_and_join(x, y, is_joined=False)
    with check_races(action="collect") as checker, nbrt.graph() as g:
        fork_and_join(x, y, is_joined=False)
    assert [report.kind for report in checker.reports] == ["unordered_use"]
    assert len(graph_races(g)) == 1


def test_legal_graphs_have_no_races(device: nbrt.Device) -> None:
    x, y, flag = nbrt.full(N, 2.0), nbrt.zeros(N), nbrt.full(1, True)
    with check_races(), nbrt.graph() as g:
        for _ in range(3):
            fork_and_join(x, y, is_joined=True)
        nbrt.graphs.cond(flag, lambda: fork_and_join(x, y, is_joined=True), lambda: double[1, 1](y))
        temporary = nbrt.zeros(N)
        fork_and_join(temporary, y, is_joined=True)
        del temporary
        add.forall(N)(y, nbrt.full(N, 3.0))
        if device.kind != "sample":  # which has no draws
            nbrt.default_generator().random(out=x)
    assert graph_races(g) == []


def test_a_replay_inside_of_a_capture_is_checked() -> None:
    x, y = nbrt.full(N, 2.0), nbrt.zeros(N)
    with nbrt.graph() as inner:
        double.forall(N)(x)
    with check_races(action="collect") as checker, nbrt.graph():
        main, side = nbrt.current_stream(), nbrt.Stream()
        side.wait_stream(main)
        inner.replay(stream=side)
        add.forall(N)(y, x)
        main.wait_stream(side)
    (report,) = checker.reports
    assert report.message.startswith("launch of add ")


def test_a_race_in_a_body_is_found() -> None:
    x, y, flag = nbrt.full(N, 2.0), nbrt.zeros(N), nbrt.full(1, True)
    with check_races(action="collect") as checker, nbrt.graph():
        nbrt.graphs.cond(flag, lambda: fork_and_join(x, y, is_joined=False))
    assert len(checker.reports) == 1
