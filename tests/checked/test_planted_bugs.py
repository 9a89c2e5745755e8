"""Every planted fault is found: by its kind, its line and its variable, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from checked import bugs_barriers, bugs_bounds, bugs_memory, bugs_order, bugs_races
from checked.cases import marked_lines

if TYPE_CHECKING:
    from checked.cases import Case

CASES = [
    *bugs_barriers.suite.cases,
    *bugs_bounds.suite.cases,
    *bugs_memory.suite.cases,
    *bugs_order.suite.cases,
    *bugs_races.suite.cases,
]


def test_there_are_enough_of_them() -> None:
    assert len({case.id for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_found(case: Case) -> None:
    reports, _ = case.run()
    found = [report for report in reports if report.kind == case.kind]
    assert found, [str(report) for report in reports]
    assert {report.kind for report in reports} <= {case.kind} | case.also
    for report in reports:
        assert f"thread {report.thread} of block {report.block}" in str(report)
    if case.kind == "limits":
        return
    lines = marked_lines(case.kernel)
    assert len(lines) == 1
    for report in found:
        named = {report.line} | ({report.other.line} if report.other is not None else set())
        assert lines & named, str(report)
    parties = [*found, *(report.other for report in found if report.other is not None)]
    assert case.variable is None or case.variable in {party.variable for party in parties}


# Every fourth: another order is another compilation.
OF_ORDER = [case for case in CASES if case.values[0].kind in ("race", "barrier", "warp")][::4]


@pytest.mark.parametrize("case", OF_ORDER)
def test_a_fault_of_order_is_found_in_another_order(case: Case) -> None:
    reports, _ = case.run(seed=12)
    assert case.kind in {report.kind for report in reports}
