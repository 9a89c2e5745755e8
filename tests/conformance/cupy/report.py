"""The page with the results: docs/conformance_cupy.md."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.cupy import GROUPS
from tests.conformance.cupy.reasons import REASONS
from tests.conformance.report import cause, escaped, list_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["PAGE", "Results", "page", "sections"]

PAGE = Path(__file__).parents[3] / "docs" / "conformance_cupy.md"

Results = dict[str, dict[str, list[dict[str, Any]]]]
"""Outcomes by group and file."""

_INTRODUCTION = """\
# Conformance of the simulated CUDA driver with CuPy's tests

CuPy {version}'s own tests, run with the unmodified wheel on the simulated CUDA driver of nbrt's
tests (`tests/simulated_cuda`), without a GPU. They check the simulation: a call of CuPy that the
simulation answers as a GPU does can be trusted in nbrt's tests. This page is written by
`python -m tests.conformance.cupy --json results.json --report`; nothing in it is edited by hand.
The tests themselves come from CuPy's repository.

A test is *not applicable* (n.a.) where it needs a library that is not installed, machine code for a
GPU, arrays or textures, or skips itself.
{sample}
"""
_COLUMNS = ("passed", "failed", "skipped")
_MAX_NAMES = 12
_WIDTH = 100


def page(results: Results, version: str, every: Mapping[str, int]) -> str:
    """Write the page.

    Parameters
    ----------
    results : dict
        Outcomes by group and file.
    version : str
        The version of CuPy.
    every : mapping of str to int
        For each group, how many tests there are for one that was run.
    """
    introduction = _INTRODUCTION.format(version=version, sample=_sample(every))
    return "\n".join([introduction, *sections(results, list(GROUPS), REASONS)])


def _sample(every: Mapping[str, int]) -> str:
    parts = [f"{group}: one of {n}" for group, n in every.items() if n > 1]
    if not parts:
        return "All tests were run."
    text = f"Of some groups, a sample of each file was run ({', '.join(parts)})."
    return "\n" + textwrap.fill(text, _WIDTH)


def sections(results: Results, groups: Sequence[str], reasons: Mapping[str, str]) -> list[str]:
    """Return the table of the groups, and lists of failures and of tests that do not apply.

    Parameters
    ----------
    results : dict
        Outcomes by group and file.
    groups : sequence of str
        The groups in the order of the table.
    reasons : mapping of str to str
        Patterns of the name and error of failed tests, and the reason to write.
    """
    return [
        _table(results, groups),
        "## Failures, by reason\n",
        _failures(results, reasons),
        "## Not applicable, by reason\n",
        _not_applicable(results),
    ]


def _outcomes(files: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [outcome for outcomes in files for outcome in outcomes]


def _row(name: str, outcomes: list[dict[str, Any]]) -> str:
    counts = Counter(outcome["outcome"] for outcome in outcomes)
    run = counts["passed"] + counts["failed"]
    share = f"{100 * counts['passed'] / run:.1f} %" if run else ""
    return f"| {name} | {' | '.join(str(counts[c]) for c in _COLUMNS)} | {share} |"


def _table(results: Results, every: Sequence[str]) -> str:
    rows = ["| File | passed | failed | n.a. | passed of those run |", "|---|---:|---:|---:|---:|"]
    groups = [group for group in every if group in results]
    rows.append(_row("**all**", _outcomes(o for g in groups for o in results[g].values())))
    rows += [_row(f"**{group}**", _outcomes(results[group].values())) for group in groups]
    for group in groups:
        rows += [_row(file.removesuffix(".py"), o) for file, o in results[group].items()]
    return "\n".join(rows) + "\n"


def _all(results: Results, outcome: str) -> list[dict[str, Any]]:
    found = _outcomes(o for files in results.values() for o in files.values())
    return [one for one in found if one["outcome"] == outcome]


def _reason(test: dict[str, Any], reasons: Mapping[str, str]) -> str:
    """Return why a test fails: by the table of reasons, or by its error."""
    for pattern, reason in reasons.items():
        if re.search(pattern, f"{test['test']}\n{test['detail']}"):
            return reason
    return escaped(cause(test["detail"]))


def _name_item(test: str) -> str:
    """Return the line of a failed test; names of tests may have spaces, where long ones wrap."""
    return textwrap.fill(
        f"`{test}`",
        120,
        initial_indent="    - ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _failures(results: Results, reasons: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for test in _all(results, "failed"):
        groups[_reason(test, reasons)].append(test["test"].removeprefix("tests/cupy_tests/"))
    lines: list[str] = []
    for reason, tests in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(list_item(f"{len(tests)}: {reason}"))
        lines += [_name_item(test) for test in tests[:_MAX_NAMES]]
        if len(tests) > _MAX_NAMES:
            lines.append(f"    - and {len(tests) - _MAX_NAMES} more")
    return "\n".join(lines or ["None."]) + "\n"


def _not_applicable(results: Results) -> str:
    counts = Counter(" ".join(test["detail"].split()) for test in _all(results, "skipped"))
    lines = [
        list_item(f"{count}: {escaped(reason)}")
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return "\n".join(lines or ["None."]) + "\n"
