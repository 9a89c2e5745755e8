"""The parts of the benchmarks, their limits, and the page with all instruction sets."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="load")
def load_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import a module of the benchmarks, for this test."""
    monkeypatch.syspath_prepend(str(ROOT))
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_all_limits_are_half_an_hour(load: Any) -> None:
    parts = load("run_all").PARTS
    assert sum(parts.values()) <= 30 * 60
    assert [name for name in parts if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []


def test_a_part_that_fails_or_takes_too_long_is_named(load: Any) -> None:
    run_part = load("run_all").run_part
    assert run_part(["this"], 60) == ""
    assert run_part(["no_such_module"], 60) == "ended with status 1"
    assert run_part(["this"], 0) == "stopped after 0 s"


def test_repetitions_end_before_the_limit(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = load("report")
    now = 100.0
    monkeypatch.setattr(report.time, "monotonic", lambda: now)
    unlimited = report.Report("a", "A", None)
    limited = report.Report("a", "A", None, limit=100.0, begin=now)
    assert limited.has_time_for(89)
    now = 150.0
    assert limited.has_time_for(39)
    assert not limited.has_time_for(41)
    assert unlimited.has_time_for(1e9)


def _result(found: float | None, text: str = "time: at most 2 s") -> dict[str, Any]:
    verdict = "not measured" if found is None else "met" if found <= 2 else "missed"
    environment = {"date": "2026-01-02 03:04:05", "processor": "P", "commit": "abc", "seconds": 7.2}
    target = {"text": text, "found": found, "limit": 2.0, "unit": "s", "verdict": verdict}
    return {"environment": environment, "targets": [target]}


def test_instruction_sets_are_side_by_side(load: Any, tmp_path: Path) -> None:
    for name, part, result in (
        ("avx2", "one", _result(3.0)),
        ("avx512", "one", _result(1.0)),
        ("avx2", "two", _result(None)),
        ("avx512", "other", _result(1.0)),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{part}.json").write_text(json.dumps(result))
    page = load("summary").summarize(tmp_path, ("one", "two", "three"))
    lines = page.splitlines()
    assert "| benchmark | target | avx512 | avx2 |" in lines
    assert "| one | time: at most 2 s | 1 s, met | 3 s, missed |" in lines
    assert "| two | time: at most 2 s | - | - |" in lines
    assert "| two | - | [2026-01-02](avx2/two.md), P, commit abc, 7 s |" in lines
    assert "three" not in page
    assert "other" not in page


@pytest.mark.parametrize(
    ("features", "expected"),
    [("+avx2,+avx512f", "avx512"), ("-avx512f,+avx2", "avx2"), ("+neon,-sve", "neon")],
)
def test_the_instruction_set_is_the_widest(
    load: Any, monkeypatch: pytest.MonkeyPatch, features: str, expected: str
) -> None:
    sets = load("instruction_sets")
    monkeypatch.setattr(sets, "processor", lambda: type("P", (), {"features": features}))
    assert sets.instruction_set() == expected


def test_peers_leave_avx512_alone_with_a_named_cpu(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = load("instruction_sets")
    monkeypatch.delenv("NBRT_CPU", raising=False)
    assert sets.variables_of_peers() == {}
    monkeypatch.setenv("NBRT_CPU", "x86-64-v3")
    found = type("P", (), {"name": "x86-64-v3", "features": "+avx2,-avx512f"})
    monkeypatch.setattr(sets, "processor", lambda: found)
    monkeypatch.setattr(sets.llvm, "get_host_cpu_features", lambda: {"avx512f": True})
    variables = sets.variables_of_peers()
    assert variables["NUMBA_CPU_NAME"] == "x86-64-v3"
    assert variables["NUMBA_CPU_FEATURES"] == "+avx2,-avx512f"
    assert variables["OPENBLAS_CORETYPE"] == "Haswell"
    monkeypatch.setattr(sets.llvm, "get_host_cpu_features", lambda: {"avx512f": False})
    assert set(sets.variables_of_peers()) == {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}


@pytest.mark.parametrize(
    "failing", [("nbrt",), ("nbrt", "numba", "pocl", "intel", "warp", "taichi")]
)
def test_systems_that_fail_are_named_gaps(
    load: Any, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]
) -> None:
    simt, harness, reports = load("simt"), load("harness"), load("report")

    def measured(_: str, cores: int, system: str, *flags: str, seconds: float | None = None) -> Any:
        if system in failing:
            raise RuntimeError(f"{system} took more than {seconds} s on {cores} core(s)")
        rows = [harness.Measurement(name, (1.0, 2.0), 1).as_json() for name in ("NumPy", system)]
        works = (*simt.WORKS, *simt.LIBRARY) if system == "numba" else simt.WORKS
        return {work.name: rows for work in works}

    monkeypatch.setattr(simt, "run_pinned", measured)
    monkeypatch.setattr(simt.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    report = reports.Report("simt", "A", harness.Options.quick(), limit=400.0)
    simt.fill(report, True)
    for table in report.tables[: len(simt.WORKS)]:
        notes = {row.name: row.note for row in table.rows if not row.seconds}
        assert set(notes) == set(failing), table.heading
        assert notes["nbrt"] == "nbrt took more than 100.0 s on 1 core(s)"
