"""Graphs over several devices of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.graph_arrays import add, host

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def on_device(device: nbrt.Device, other_device: nbrt.Device) -> Iterator[nbrt.Device]:
    if device.kind == "sample":
        pytest.skip("the sample backend has no concurrent streams")
    with nbrt.stream(nbrt.Stream(other_device)), nbrt.device(device):
        yield device


def array(value: float, device: nbrt.Device) -> Any:
    return nbrt.full(4, value, "float32", device=device)


def synchronize(*devices: nbrt.Device) -> None:
    for device in devices:
        nbrt.synchronize(device)


def test_copies_between_devices_are_captured(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    x, there, back = array(1, device), array(0, other_device), array(0, device)
    synchronize(device, other_device)
    with nbrt.graph() as g:
        add.forall(4)(x, x, 1.0)
        nbrt.copy(there, x)
        away = nbrt.to(x, other_device)
        with nbrt.device(other_device):
            add.forall(4)(there, away, 10.0)
        nbrt.copy(back, there)
    assert host(x) == [1.0] * 4
    g.replay()
    synchronize(device, other_device)
    assert (host(x), host(away), host(there)) == ([2.0] * 4, [2.0] * 4, [22.0] * 4)
    assert host(back) == [22.0] * 4
    g.replay()
    synchronize(device, other_device)
    assert host(back) == [44.0] * 4


def test_a_copy_of_an_array_of_another_device(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    x, there = array(0, device), array(3, other_device)
    synchronize(device, other_device)
    with nbrt.graph() as g:
        nbrt.copy(x, there)
    assert host(x) == [0.0] * 4
    g.replay()
    synchronize(device)
    assert host(x) == [3.0] * 4


def test_a_loaded_graph_has_its_arrays_on_their_devices(
    device: nbrt.Device, other_device: nbrt.Device, tmp_path: pathlib.Path
) -> None:
    x, there = array(1, device), array(5, other_device)
    synchronize(device, other_device)
    stream = nbrt.Stream(other_device)
    with nbrt.graph() as g:
        here = nbrt.current_stream()
        add.forall(4)(x, x, 1.0)
        stream.wait_stream(here)
        with nbrt.stream(stream):
            add.forall(4)(there, there, 2.0)
        here.wait_stream(stream)
    g.save(tmp_path / "graph")
    mine = array(7, other_device)
    synchronize(other_device)
    loaded = nbrt.graphs.load(tmp_path / "graph", there=mine)
    loaded.replay()
    synchronize(device, other_device)
    assert (host(x), host(there), host(mine)) == ([1.0] * 4, [5.0] * 4, [21.0] * 4)
    other = nbrt.graphs.load(tmp_path / "graph")
    other.replay()
    synchronize(device, other_device)
    assert (host(x), host(there)) == ([1.0] * 4, [5.0] * 4)


def test_a_function_is_captured_for_each_device(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    @nbrt.graph
    def step(x: Any, y: Any) -> None:
        add.forall(4)(x, y, 1.0)

    for each in (device, other_device, device):
        x, y = array(1, each), array(2, each)
        synchronize(each)
        with nbrt.device(each):
            step(x, y)
        synchronize(each)
        assert host(x) == [3.0] * 4
    assert len(step.graphs) == 2
