"""The page with the results: docs/conformance_numpy_generator.md."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.numpy_generator.adapter import MODULES
from tests.conformance.numpy_generator.expected import RULES, Rule, rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PAGE", "collected", "page", "unknown_names"]

_ROOT = Path(__file__).parents[3]
_TESTS = "tests/conformance/test_numpy_generator.py"

_WIDTH = 120

PAGE = _ROOT / "docs" / "conformance_numpy_generator.md"

_INTRODUCTION = """\
# Conformance with NumPy's Generator

NumPy {version}'s own tests of `numpy.random.Generator` with `nbrt.Generator` on the CPU in its
place, run by `make test`:
{files}.
They come with the installed NumPy; none of them is kept in nbrt. This page is written by
`python -m tests.conformance.numpy_generator`; nothing in it is edited by hand.

Every test that fails is listed here by name, with the reason. A listed test that passes fails
`make test`, and so does an unlisted one that fails. A test that does not apply is not run.
"""


def collected() -> list[str]:
    """Return the names of NumPy's tests, as pytest collects them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, _TESTS], cwd=_ROOT, env=outer, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{_TESTS}::")]
    return [line.partition("::")[2] for line in lines]


def unknown_names(tests: Sequence[str]) -> list[str]:
    """Return names in the rules that no test has."""
    known = {*tests, *(name.partition("[")[0] for name in tests)}
    return [name for rule in RULES for name in rule.tests if name not in known]


def page(version: str, tests: Sequence[str]) -> str:
    """Write the page.

    Parameters
    ----------
    version : str
        NumPy's.
    tests : sequence of str
        The names of all tests. Those that no rule lists pass: the run fails where they do not.
    """
    by_rule: dict[Rule | None, list[str]] = {rule: [] for rule in (None, *RULES)}
    for name in tests:
        by_rule[rule_of(name)].append(name)
    files = " and ".join(f"`{name}.py`" for name in MODULES)
    lines = [
        _INTRODUCTION.format(version=version, files=files),
        "| Outcome | Tests |",
        "|---|---:|",
        f"| passed | {len(by_rule[None])} |",
        *(f"| {_outcome(rule)}: {rule.title} | {len(by_rule[rule])} |" for rule in RULES),
        f"| **all** | {len(tests)} |",
    ]
    for rule in RULES:
        names = [f"- `{name}`" for name in by_rule[rule]]
        lines += ["", f"## {rule.title}", "", *textwrap.wrap(rule.reason, _WIDTH), "", *names]
    return "\n".join(lines) + "\n"


def _outcome(rule: Rule) -> str:
    return "fails as expected" if rule.raises else "not applicable"
