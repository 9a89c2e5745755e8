"""Results of a benchmark: tables and targets, written as JSON and Markdown."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import describe_environment
from benchmarks.harness import Measurement, Options
from benchmarks.instruction_sets import instruction_set

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Report", "Sheet", "Table", "Target", "format_seconds", "run"]

RESULTS = Path(__file__).resolve().parent / "results"
"""The folder of the folders of instruction sets."""


#: The part of the limit of a run after which no further repetition begins.
_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Table:
    """Measurements of the same work.

    Attributes
    ----------
    heading : str
        What work, at what size.
    rows : sequence of Measurement
        One per contender.
    reference : str
        The row that the others are held against; ``x reference`` above 1 means slower than it.
    items : float or None
        Elements of one call, for a column of nanoseconds each.
    nbytes : float or None
        Bytes that one call must move, for a column of GB/s.
    """

    heading: str
    rows: Sequence[Measurement]
    reference: str = "nbrt"
    items: float | None = None
    nbytes: float | None = None

    def row(self, name: str) -> Measurement | None:
        """Return a row that was measured, None if there is none."""
        return next((row for row in self.rows if row.name == name and row.seconds), None)


@dataclass(frozen=True, slots=True)
class Sheet:
    """Figures that are no times: a name and a number for each column, row by row.

    Attributes
    ----------
    heading : str
        What they are.
    columns : sequence of str
        What the numbers of a row are, with their unit.
    rows : sequence of (str, sequence of float or None)
        Names and numbers; None: not to be had.
    """

    heading: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | None]]]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        rows = [
            {"name": name} | dict(zip(self.columns, numbers, strict=True))
            for name, numbers in self.rows
        ]
        return {"heading": self.heading, "rows": rows}

    def as_markdown(self) -> str:
        """Return a table."""
        lines = ["| | " + " | ".join(self.columns) + " |", "|---|" + "---:|" * len(self.columns)]
        lines += [
            f"| {name} | "
            + " | ".join("-" if number is None else f"{number:,.7g}" for number in numbers)
            + " |"
            for name, numbers in self.rows
        ]
        return f"## {self.heading}\n\n" + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Target:
    """A promise and what was found; a limit is never asserted, only reported."""

    text: str
    found: float | None
    limit: float
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Met, missed, or not measured."""
        if self.found is None:
            return "not measured"
        return "met" if self.found <= self.limit else "missed"


@dataclass(slots=True)
class Report:
    """Everything one benchmark says."""

    name: str
    title: str
    options: Options
    tables: list[Table] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    limit: float | None = None
    begin: float = field(default_factory=time.monotonic)

    def has_time_for(self, seconds: float) -> bool:
        """Return whether a step of so many seconds ends before the run is stopped."""
        return seconds < self.seconds_left

    @property
    def seconds_left(self) -> float:
        """Seconds in which a step should end; infinite without a limit."""
        if self.limit is None:
            return math.inf
        return _SHARE * self.limit - (time.monotonic() - self.begin)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.name,
            "title": self.title,
            "environment": self.environment,
            "targets": [
                {"text": each.text, "found": each.found, "limit": each.limit, "unit": each.unit}
                | {"verdict": each.verdict}
                for each in self.targets
            ],
            "tables": [
                {"heading": table.heading, "reference": table.reference}
                | {"items": table.items, "bytes": table.nbytes}
                | {"rows": [_row_json(table, row) for row in table.rows]}
                for table in self.tables
            ],
            "sheets": [sheet.as_json() for sheet in self.sheets],
            "notes": self.notes,
        }

    def as_markdown(self) -> str:
        """Return a page."""
        parts = [f"# {self.title}", _environment_line(self.environment)]
        if self.targets:
            lines = ["| target | found | verdict |", "|---|---:|---|"]
            lines += [
                f"| {each.text} | {_figure(each.found, each.unit)} | {each.verdict} |"
                for each in self.targets
            ]
            parts.append("\n".join(lines))
        parts += [_table_markdown(table) for table in self.tables]
        parts += [sheet.as_markdown() for sheet in self.sheets]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Write ``<name>.json`` and ``<name>.md``."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False)
        (folder / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")
        (folder / f"{self.name}.md").write_text(self.as_markdown(), encoding="utf-8")


def run(
    name: str,
    title: str,
    fill: Callable[[Report, bool], None],
    arguments: Sequence[str] | None = None,
) -> Report:
    """Run one benchmark from its command line.

    It is ``[--quick] [--passes N] [--seconds N] [--out FOLDER]``.

    Parameters
    ----------
    name, title : str
        The file name of the results, and their heading.
    fill : callable
        ``fill(report, quick)`` measures and adds tables and targets.
    arguments : sequence of str, optional
        Instead of the process's own.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=title)
    parser.add_argument("--quick", action="store_true", help="a glance: small sizes, 3 passes")
    parser.add_argument("--passes", type=int, help="how often every contender is measured")
    parser.add_argument("--seconds", type=float, help="the limit: fewer repetitions where needed")
    parser.add_argument("--out", type=Path, help="folder for the results; quick runs write none")
    chosen = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    options = Options.quick() if chosen.quick else Options()
    if chosen.passes:
        options = Options(chosen.passes, options.sample_seconds)
    report = Report(name, title, options, environment=describe_environment(), limit=chosen.seconds)
    report.environment["instruction_set"] = instruction_set()
    start = time.perf_counter()
    fill(report, chosen.quick)
    report.environment["seconds"] = round(time.perf_counter() - start, 1)
    report.environment["load_average_after"] = describe_environment()["load_average"]
    if chosen.out is not None or not chosen.quick:
        report.write(chosen.out or RESULTS / instruction_set())
    print(report.as_markdown())
    return report


def format_seconds(seconds: float) -> str:
    """Return a time to three digits in the unit that suits it."""
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        rounded = float(f"{seconds / scale:.3g}")
        if abs(rounded) < 1000:
            return f"{rounded:.3g} {unit}"
    return f"{seconds:.3g} s"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return format_seconds(value) if unit == "s" else f"{value:.3g}{unit}"


def _row_json(table: Table, row: Measurement) -> dict[str, Any]:
    found = row.as_json()
    reference = table.row(table.reference)
    if row.seconds and reference is not None:
        found["ratio"] = row.ratio_to(reference)
    return found


def _table_markdown(table: Table) -> str:
    reference = table.row(table.reference)
    extra = ["ns each"] * (table.items is not None) + ["GB/s"] * (table.nbytes is not None)
    head = ["", "median", "least", "spread", f"x {table.reference}", *extra, "note"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 2) + "---|"]
    for row in table.rows:
        if not row.seconds:
            lines.append("| " + " | ".join([row.name, *["-"] * (len(head) - 2), row.note]) + " |")
            continue
        cells = [row.name, format_seconds(row.median), format_seconds(row.least)]
        cells.append(f"{row.spread:.0%}")
        cells.append("-" if reference is None else f"{row.ratio_to(reference):.3g}")
        if table.items is not None:
            cells.append(f"{row.median / table.items * 1e9:.3g}")
        if table.nbytes is not None:
            cells.append(f"{table.nbytes / row.median / 1e9:.3g}")
        lines.append("| " + " | ".join([*cells, row.note]) + " |")
    passes = max((len(row.seconds) for row in table.rows), default=0)
    return f"## {table.heading} ({passes} passes)\n\n" + "\n".join(lines)


def _environment_line(environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in environment["versions"].items())
    return (
        f"{environment['date']}; {environment['processor']}, code for "
        f"{environment['instruction_set']}, {environment['cores']} cores, load "
        f"{environment['load_average'][0]} at the start; Python {environment['python']}, "
        f"{versions}; commit {environment['commit']}. Medians over interleaved passes; ratios are "
        f"medians of the ratios within a pass; spread is the distance between the quartiles over "
        f"the median."
    )
