"""The page with the results: docs/conformance.md."""

from __future__ import annotations

import fnmatch
import re
import textwrap
from collections import Counter, defaultdict
from typing import Any

from tests.conformance import FOLDERS, PACKAGES_OF_TESTS
from tests.conformance.rules import ERRORS, REASONS, TESTS, WITHOUT_NBRT

__all__ = ["cause", "escaped", "failures_by_cause", "list_item", "page"]

Results = dict[str, dict[str, list[dict[str, Any]]]]
"""Outcomes of each engine, by module."""

_INTRODUCTION = """\
# Conformance

numba-cuda {version}'s own tests, host side included
({folders}),
under `NBRT_NUMBA_CUDA=1` on two virtual CPU devices, beside the same tests under numba-cuda's
simulator (`NUMBA_ENABLE_CUDASIM=1`). This page is written by
`python -m tests.conformance --json results.json --report docs/conformance.md`; nothing in it is
edited by hand. The tests themselves are not part of nbrt: they come with numba-cuda.

nbrt: **{nbrt[0]} passed, {nbrt[1]} failed, {nbrt[2]} not applicable**.
Simulator: {simulator[0]} passed, {simulator[1]} failed, {simulator[2]} skipped.

- A pass counts in the same way for both. Below numba-cuda's host API, nbrt replaces the driver,
  `cuda.jit` and the compiler of kernels; the rest is numba-cuda's own Python code, which runs as it
  is. {without} of the tests that pass under nbrt reached no part of nbrt: they test that code, or
  numba-cuda's compiler to PTX, which `cuda.compile` uses under nbrt too. The column *reach nbrt*
  counts the others.
- A test is *not applicable* (n.a.) only by a rule that names the hardware or the feature of a GPU
  compiler that it is about (`tests/conformance/rules.py`), or where it skips itself. What nbrt
  lacks is a failure.
- Kernels of `cudapy/test_array_methods` make arrays: the file runs with `NUMBA_CUDA_ENABLE_NRT=1`,
  as numba-cuda requires.
- A test may take 300 s, and wait for a child process for 60 s, where numba-cuda sets 4.
- Installed for this run: the packages that the tests import ({packages}),
  and NVIDIA's NVVM, NVRTC and ptxas. Not installed: a GPU, the CUDA driver, nvJitLink, nvdisasm.
"""
_COLUMNS = ("passed", "failed", "skipped")
_CAUSE_LENGTH = 150
_WIDTH = 118


def page(results: Results, version: str) -> str:
    """Write the page."""
    of_nbrt, of_simulator = (_outcomes(results, engine) for engine in ("nbrt", "simulator"))
    introduction = _INTRODUCTION.format(
        version=version,
        folders=", ".join(f"`{folder}`" for folder in FOLDERS),
        nbrt=_counts(of_nbrt),
        simulator=_counts(of_simulator),
        without=_passed(of_nbrt) - _reaching(of_nbrt),
        packages=", ".join(PACKAGES_OF_TESTS),
    )
    sections = [
        introduction,
        _table(results),
        "## Failures under nbrt, by reason\n",
        _failure_list(results),
        "## Files in which nbrt passes fewer tests than the simulator\n",
        "Tests that skip themselves outside the simulator are left out.\n",
        _files_behind(results),
        "## Passed by the simulator, not by nbrt\n",
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
    """Group the failed tests under nbrt by reason, else by error, the most frequent first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for outcome in _outcomes(results, "nbrt"):
        if outcome["outcome"] == "failed":
            groups[_reason(outcome)].append(outcome["test"])
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def _reason(outcome: dict[str, Any]) -> str:
    for pattern, reason in REASONS.items():
        if fnmatch.fnmatch(outcome["test"], pattern):
            return reason
    return f"without a reason: {escaped(cause(outcome['detail']))}"


def _outcomes(results: Results, engine: str) -> list[dict[str, Any]]:
    return [outcome for module in results.get(engine, {}).values() for outcome in module]


def _counts(outcomes: list[dict[str, Any]]) -> list[int]:
    counted = Counter(outcome["outcome"] for outcome in outcomes)
    return [counted[column] for column in _COLUMNS]


def _passed(outcomes: list[dict[str, Any]]) -> int:
    return sum(outcome["outcome"] == "passed" for outcome in outcomes)


def _reaching(outcomes: list[dict[str, Any]]) -> int:
    """Count the tests that pass and reach a part of nbrt."""
    return sum(o["outcome"] == "passed" and o["detail"] != WITHOUT_NBRT for o in outcomes)


def _table(results: Results) -> str:
    nbrt, simulator = results.get("nbrt", {}), results.get("simulator", {})
    rows = [
        "| File | nbrt passed | reach nbrt | failed | n.a. | simulator passed | failed | skipped |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        _row("**all**", _outcomes(results, "nbrt"), _outcomes(results, "simulator")),
    ]
    for module in sorted({*nbrt, *simulator}):
        name = module.replace(".", "/")
        rows.append(_row(name, nbrt.get(module, []), simulator.get(module, [])))
    return "\n".join(rows) + "\n"


def _row(name: str, nbrt: list[dict[str, Any]], simulator: list[dict[str, Any]]) -> str:
    passed, failed, skipped = _counts(nbrt)
    counts = [passed, _reaching(nbrt), failed, skipped, *_counts(simulator)]
    return f"| {name} | {' | '.join(map(str, counts))} |"


def _failure_list(results: Results) -> str:
    lines: list[str] = []
    for reason, tests in failures_by_cause(results):
        lines += [list_item(f"{len(tests)}: {reason}"), *(f"    - `{test}`" for test in tests)]
    return "\n".join(lines or ["None."]) + "\n"


def _files_behind(results: Results) -> str:
    """List files, without the tests that skip themselves on a GPU, as under nbrt."""
    own = {o["test"] for o in _outcomes(results, "nbrt") if _skips_itself(o)}
    lines = []
    for module, outcomes in sorted(results.get("simulator", {}).items()):
        passed = _passed(results.get("nbrt", {}).get(module, []))
        expected = _passed([o for o in outcomes if o["test"] not in own])
        if passed < expected:
            lines.append(f"- {module.replace('.', '/')}: {passed} of {expected}")
    return "\n".join(lines or ["None."]) + "\n"


def _behind(results: Results) -> str:
    of_nbrt = {o["test"]: o["outcome"] for o in _outcomes(results, "nbrt")}
    names = {"failed": "failed", "skipped": "n.a."}
    lines = [
        f"- `{test}` ({names[of_nbrt[test]]})"
        for test in (o["test"] for o in _outcomes(results, "simulator") if o["outcome"] == "passed")
        if of_nbrt.get(test, "passed") != "passed"
    ]
    return "\n".join(lines or ["None."]) + "\n"


def _skips_itself(outcome: dict[str, Any]) -> bool:
    detail = " ".join(outcome["detail"].split())
    return outcome["outcome"] == "skipped" and detail not in {*TESTS.values(), *ERRORS.values()}


def _reasons(results: Results) -> str:
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in _outcomes(results, "nbrt"):
        if outcome["outcome"] == "skipped":
            file = outcome["test"].partition("::")[0]
            detail = " ".join(outcome["detail"].split())
            groups[f"skips itself: {detail}" if _skips_itself(outcome) else detail][file] += 1
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
