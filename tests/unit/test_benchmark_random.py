"""The evaluation of the benchmark of random numbers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def random(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("benchmarks.random")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def row(random, name: str, *seconds: float):
    return random.Measurement(name, seconds, 1, "a note")


def test_a_floor_is_met_from_its_limit_on(random):
    assert random.Floor("t", 8.0, 8.0).verdict == "met"
    assert random.Floor("t", 7.9, 8.0).verdict == "missed"
    assert random.Floor("t", None, 8.0).verdict == "not measured"


def test_times_as_fast_are_those_of_the_best_peer_that_was_measured(random):
    rows = [row(random, "nbrt", 2.0), row(random, "NumPy A", 9.0), row(random, "NumPy B", 6.0)]
    table = random.Table("t", [*rows, row(random, "torch CPU")])
    assert random._times_as_fast(table, "NumPy") == pytest.approx(3.0)
    assert random._times_as_fast(table, "torch CPU") is None


def test_rows_say_how_many_bare_writes_they_took(random):
    rows = [row(random, "nbrt", 6.0), row(random, "absent"), row(random, "fill", 2.0)]
    assert [each.note for each in random._with_fill(rows)] == [
        "3 x fill; a note",
        "a note",
        "a note",
    ]


@pytest.mark.parametrize(("wide", "rates"), [(True, [8, 8, 8, 8, 4]), (False, [6, 6, 6, 6, 2.2])])
def test_targets_depend_on_the_width_of_vectors(random, wide, rates):
    works = {work.name: work for work in random.FILLS}
    nbytes = 1e9  # so that one second is 1 GB/s
    tables = {name: random.Table(name, [row(random, "nbrt", 1.0)], nbytes=nbytes) for name in works}
    targets = random._fill_targets(tables, wide)
    assert [each.limit for each in targets if each.unit == " GB/s"] == rates
    assert {each.found for each in targets if each.unit == " GB/s"} == {1.0}
    assert {each.verdict for each in targets if each.unit == "x"} == {"not measured"}


def test_a_peer_that_fails_is_listed_with_its_error(random):
    found = random.row("peer", lambda: lambda: 1 // 0)
    assert found.batch is None
    assert found.note.startswith("ZeroDivisionError")


def test_without_a_device_nothing_is_measured_on_cuda(random, monkeypatch):
    monkeypatch.setattr(random.nbrt, "is_available", lambda kind: False)
    report = random.Report("random_cuda", "t", random.Options.quick())
    random.fill_on_cuda(report, quick=True)
    assert report.notes == ["Not measured: no CUDA device works here."]
    assert not report.tables


def test_each_width_of_columns_has_its_limit(random):
    rows = [row(random, "dense", 2.0), row(random, "rows", 2.0)]
    rows += [row(random, f"{n} columns", 4.0) for n in (1024, 64, 33, 7)]
    small = random.Table("small", [row(random, "nbrt, out=", 2.5e-6)])
    targets = random._shape_targets({"shards": random.Table("shards", rows), "small": small})
    assert [(each.limit, each.verdict) for each in targets] == [
        (1.3, "met"),
        (1.3, "missed"),
        (1.3, "missed"),
        (1.5, "missed"),
        (2.5, "met"),
        (3e-6, "met"),
    ]


def test_samplers_are_compared_with_the_fastest_generator_of_numpy(random):
    rows = [row(random, "nbrt", 2.0), row(random, "NumPy A", 9.0), row(random, "NumPy B", 3.0)]
    names = [work.name for work in random.SAMPLERS]
    targets = random._sampler_targets({name: random.Table(name, rows) for name in names})
    assert [(each.found, each.verdict) for each in targets] == [(1.5, "missed")] * 3
