"""The page that shows the targets of all results, the instruction sets side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.report import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["summarize"]

#: The order of the columns; other folders follow.
_ORDER = ("avx512", "avx2")
_NONE: dict[str, Any] = {"targets": []}


def summarize(folder: Path, parts: Sequence[str]) -> str:
    """Return the targets of every result in the folders of instruction sets as one table.

    Parameters
    ----------
    folder : Path
        Has a folder for each instruction set.
    parts : sequence of str
        The benchmarks, in the order of the rows.
    """
    names = {path.parent.name for part in parts for path in folder.glob(f"*/{part}.json")}
    sets = sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else 9, name))
    lines = ["# Benchmark results", "", "What was found, by instruction set; `-`: not measured."]
    lines += ["", f"| benchmark | target | {' | '.join(sets)} |", "|---|---|" + "---:|" * len(sets)]
    taken = ["| benchmark | " + " | ".join(sets) + " |", "|---|" + "---|" * len(sets)]
    for part in parts:
        found = {name: _read(folder / name / f"{part}.json") for name in sets}
        if not any(each is not _NONE for each in found.values()):
            continue
        lines += _rows(part, found)
        taken.append(
            f"| {part} | " + " | ".join(_taken(part, *each) for each in found.items()) + " |"
        )
    return "\n".join([*lines, "", "When and where they were taken:", "", *taken]) + "\n"


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return _NONE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _rows(part: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Return a row for each target that any instruction set has."""
    texts = dict.fromkeys(target["text"] for each in found.values() for target in each["targets"])
    rows = []
    for text in texts:
        cells = []
        for each in found.values():
            target = next((one for one in each["targets"] if one["text"] == text), None)
            cells.append("-" if target is None else _cell(target))
        rows.append(f"| {part} | {text} | {' | '.join(cells)} |")
    return rows or [f"| {part} | (a comparison, no target) |" + " |" * len(found)]


def _cell(target: dict[str, Any]) -> str:
    if target["found"] is None:
        return "-"
    if target["unit"] == "s":
        return f"{format_seconds(target['found'])}, {target['verdict']}"
    return f"{target['found']:.3g}{target['unit']}, {target['verdict']}"


def _taken(part: str, name: str, found: dict[str, Any]) -> str:
    if found is _NONE:
        return "-"
    where = found["environment"]
    return (
        f"[{where['date'][:10]}]({name}/{part}.md), {where['processor']}, commit {where['commit']}"
        f", {where.get('seconds', 0):.0f} s"
    )
