"""The benchmark of fake devices: the sequence of tensors, its true peak, and the memory taken."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nbrt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(ROOT))
    yield {name: importlib.import_module(f"benchmarks.{name}") for name in ("fake_torch", "fake")}
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_true_peak_counts_what_is_alive(modules: dict[str, ModuleType]) -> None:
    def program(make: Any) -> None:
        first = make((10, 10))
        second = make((50,))
        del first
        make((5,)), second

    assert modules["fake_torch"].true_peak(program) == 4 * 150


def test_plan_of_the_steps_is_the_true_peak_and_rounding(modules: dict[str, ModuleType]) -> None:
    steps = modules["fake_torch"].training_steps
    exact = modules["fake_torch"].true_peak(steps)
    with nbrt.fake("cuda") as plan:
        steps(lambda shape: nbrt.empty(shape, "float32"))
    assert exact <= plan.peak <= 1.125 * exact


def test_kinds_of_devices_run_the_programs(modules: dict[str, ModuleType]) -> None:
    fake = modules["fake"]
    for prepare in fake._PROGRAMS.values():
        for name, device, block in fake._rotated(1):
            with block as plan, nbrt.device(device):
                prepare()()
            assert name == fake._REAL or plan.launches == {"add": fake._LAUNCHES}


def test_terabytes_take_megabytes(modules: dict[str, ModuleType]) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(modules["fake"].resident_memory)
    assert found.peak >= modules["fake"].NEEDED
    assert found.most - found.before < 100 << 20
