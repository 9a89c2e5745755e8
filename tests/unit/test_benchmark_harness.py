"""The mathematics of the benchmark harness, on a clock that the tests wind by hand."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("benchmarks.harness")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


class Clock:
    """Advances only when work is done."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: float):
        def batch(n: int) -> None:
            self.log.append(name)
            self.now += n * seconds

        return batch


def test_every_pass_measures_everybody_and_the_order_rotates(harness):
    clock = Clock()
    names = ("a", "b", "c")
    contenders = [harness.Contender(name, clock.work(name, 1.0)) for name in names]
    options = harness.Options(passes=3, sample_seconds=0.0)
    harness.measure(contenders, options, clock)
    assert "".join(clock.log[-9:]) == "abcbcacab"


def test_seconds_are_per_call_and_long_enough(harness):
    clock = Clock()
    contenders = [harness.Contender("a", clock.work("a", 0.001))]
    options = harness.Options(passes=2, sample_seconds=0.05)
    (row,) = harness.measure(contenders, options, clock)
    assert row.calls >= 50
    assert row.seconds == pytest.approx([0.001, 0.001])


def test_settling_is_not_on_the_clock_and_the_batch_is_bounded(harness):
    clock = Clock()
    contender = harness.Contender(
        "a", clock.work("a", 1.0), lambda: clock.work("wait", 100.0)(1), most=3
    )
    options = harness.Options(passes=2, sample_seconds=1000.0)
    (row,) = harness.measure([contender], options, clock)
    assert row.calls == 3
    assert row.seconds == (1.0, 1.0)
    assert "wait" in clock.log


def test_a_peer_that_is_missing_is_listed(harness):
    clock = Clock()
    contenders = [
        harness.Contender("a", clock.work("a", 1.0)),
        harness.absent("b", "not installed"),
    ]
    rows = harness.measure(contenders, harness.Options(2, 0.0), clock)
    assert [(row.name, len(row.seconds)) for row in rows] == [("a", 2), ("b", 0)]
    assert rows[1].note == "not installed"


def test_ratios_are_taken_within_a_pass_so_that_drift_cancels(harness):
    slow = harness.Measurement("slow", (2.0, 4.0, 20.0))
    fast = harness.Measurement("fast", (1.0, 2.0, 10.0))
    assert slow.ratio_to(fast) == 2.0
    assert slow.excess_over(fast) == 2.0
    assert (slow.median, slow.least) == (4.0, 2.0)
    assert slow.spread == pytest.approx((12.0 - 3.0) / 4.0)


def test_measurements_survive_the_way_between_processes(harness):
    row = harness.Measurement("a", (1.0, 2.0), 7, "note")
    assert harness.Measurement.from_json(json.loads(json.dumps(row.as_json()))) == row
    absent = harness.Measurement("b", note="not installed")
    assert harness.Measurement.from_json(json.loads(json.dumps(absent.as_json()))) == absent


def test_the_collector_is_off_while_the_clock_runs_and_on_again(harness):
    import gc

    seen: list[bool] = []
    contender = harness.Contender("a", lambda n: seen.append(gc.isenabled()))
    harness.measure([contender], harness.Options(1, 0.0), Clock())
    assert not any(seen)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("found", "verdict"), [(1.0, "met"), (1.15, "met"), (1.2, "missed"), (None, "not measured")]
)
@pytest.mark.usefixtures("harness")
def test_targets_are_reported_never_asserted(found, verdict):
    report = importlib.import_module("benchmarks.report")
    assert report.Target("saxpy", found, 1.15, "x").verdict == verdict


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.2e-8, "32 ns"),
        (2.34e-6, "2.34 µs"),
        (9.999e-7, "1 µs"),
        (0.5, "500 ms"),
        (12.0, "12 s"),
        (-1.5e-3, "-1.5 ms"),
    ],
)
@pytest.mark.usefixtures("harness")
def test_times_are_written_in_the_unit_that_suits(seconds, text):
    report = importlib.import_module("benchmarks.report")
    assert report.format_seconds(seconds) == text


def test_a_report_becomes_a_table_with_absent_peers(harness, tmp_path):
    report_module = importlib.import_module("benchmarks.report")
    rows = [harness.Measurement("nbrt", (1e-6, 3e-6), 10), harness.Measurement("peer", note="gone")]
    environment = {"date": "d", "processor": "p", "cores": 2, "load_average": [0.1]}
    environment["instruction_set"] = "avx2"
    environment |= {"python": "3", "versions": {"numpy": "2"}, "commit": "c"}
    report = report_module.Report("x", "X", harness.Options(2, 0.0), environment=environment)
    report.tables.append(report_module.Table("work", rows, "nbrt", items=1000))
    report.targets.append(report_module.Target("fast", rows[0].median, 3e-6, "s"))
    report.write(tmp_path)
    page = (tmp_path / "x.md").read_text(encoding="utf-8")
    assert "| nbrt | 2 µs | 1 µs | 50% | 1 | 2 |  |" in page
    assert "| peer | - | - | - | - | - | gone |" in page
    assert "| fast | 2 µs | met |" in page
    found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert found["tables"][0]["rows"][0]["ratio"] == 1.0
