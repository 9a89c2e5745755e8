"""The page with the results: docs/conformance.md."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from typing import Any

__all__ = ["cause", "escaped", "failures_by_cause", "list_item", "page"]

Results = dict[str, dict[str, list[dict[str, Any]]]]
"""Outcomes of each engine, by module."""

_INTRODUCTION = """\
# Conformance

numba-cuda {version}'s own tests of `cudapy` and `doc_examples`, their kernels compiled by nbrt for
the CPU, beside the same tests under numba-cuda's simulator (`NUMBA_ENABLE_CUDASIM=1`). This page is
written by `python -m tests.conformance --json results.json --report docs/conformance.md`; nothing
in it is edited by hand. The tests themselves are not part of nbrt: they come with numba-cuda.

A test is *not applicable* (n.a.) where it asks for what only a GPU or numba-cuda's compiler has, or
passes without compiling a kernel. The rules are in `tests/conformance/rules.py`; a feature of the
language that nbrt lacks is a failure. Tests that skip themselves, because a package or a second GPU
is missing, count as n.a. as well, and as skipped for the simulator.
"""
_COLUMNS = ("passed", "failed", "skipped")
_CAUSE_LENGTH = 150
_WIDTH = 118


def page(results: Results, version: str) -> str:
    """Write the page."""
    sections = [
        _INTRODUCTION.format(version=version),
        _table(results),
        "## Failures under nbrt, by cause\n",
        _failure_list(results),
        "## Passed by the simulator, failed by nbrt\n",
        _behind(results),
        "## Not applicable, by reason\n",
        _reasons(results),
    ]
    return "\n".join(sections)


def cause(detail: str) -> str:
    """Shorten the failure of a test to one line, equal for equal causes."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", detail)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    line = " ".join(lines[:1])
    if "in kernel" not in line and "pipeline" in line and len(lines) > 1:
        line = f"{line.partition(':')[0]}: {lines[1]}"
    line = re.sub(r"(?:in kernel \S+|kernel '\S+'|argument '\S+'):? ?", "", line)
    line = re.sub(r"\S*/(\S+\.py):\d+[,:]? ?", "", line)
    line = re.sub(r" \(line \d+\)", "", line)
    line = line.partition(";")[0]
    return line if len(line) <= _CAUSE_LENGTH else line[:_CAUSE_LENGTH] + "..."


def failures_by_cause(results: Results) -> list[tuple[str, list[str]]]:
    """Group the failed tests under nbrt, most frequent cause first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for outcome in _outcomes(results, "nbrt"):
        if outcome["outcome"] == "failed":
            groups[cause(outcome["detail"])].append(outcome["test"])
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def _outcomes(results: Results, engine: str) -> list[dict[str, Any]]:
    return [outcome for module in results.get(engine, {}).values() for outcome in module]


def _counts(outcomes: list[dict[str, Any]]) -> list[int]:
    counted = Counter(outcome["outcome"] for outcome in outcomes)
    return [counted[column] for column in _COLUMNS]


def _table(results: Results) -> str:
    nbrt, simulator = results.get("nbrt", {}), results.get("simulator", {})
    rows = [
        "| File | nbrt passed | failed | n.a. | simulator passed | failed | skipped |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    totals = [*_counts(_outcomes(results, "nbrt")), *_counts(_outcomes(results, "simulator"))]
    rows.append(_row("**all**", totals))
    for module in sorted({*nbrt, *simulator}):
        counts = [*_counts(nbrt.get(module, [])), *_counts(simulator.get(module, []))]
        rows.append(_row(module.replace(".", "/"), counts))
    return "\n".join(rows) + "\n"


def _row(name: str, counts: list[int]) -> str:
    return f"| {name} | {' | '.join(map(str, counts))} |"


def _failure_list(results: Results) -> str:
    lines: list[str] = []
    for reason, tests in failures_by_cause(results):
        lines += [
            list_item(f"{len(tests)}: {escaped(reason)}"),
            *(f"    - `{test}`" for test in tests),
        ]
    return "\n".join(lines or ["None."]) + "\n"


def _behind(results: Results) -> str:
    passed = {o["test"] for o in _outcomes(results, "simulator") if o["outcome"] == "passed"}
    failed = [o["test"] for o in _outcomes(results, "nbrt") if o["outcome"] == "failed"]
    lines = [f"- `{test}`" for test in failed if test in passed]
    return "\n".join(lines or ["None."]) + "\n"


def _reasons(results: Results) -> str:
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in _outcomes(results, "nbrt"):
        if outcome["outcome"] == "skipped":
            file = outcome["test"].partition("::")[0]
            groups[" ".join(outcome["detail"].split())][file] += 1
    ordered = sorted(groups.items(), key=lambda item: (-item[1].total(), item[0]))
    lines = []
    for reason, files in ordered:
        places = ", ".join(f"{file} {count}" for file, count in files.items())
        lines.append(list_item(f"{files.total()}: {escaped(reason)} ({places})"))
    return "\n".join(lines or ["None."]) + "\n"


def list_item(text: str) -> str:
    """Return an item of a list in lines of limited width."""
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "- " + "\n  ".join(lines)


def escaped(text: str) -> str:
    """Return a text whose characters have no meaning in Markdown."""
    return re.sub(r"([<>|*_`\[\]]|(?<=\])\()", r"\\\1", text)
