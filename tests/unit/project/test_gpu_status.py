"""`docs/gpu_status.md` counts the draws that are compared bit for bit."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from nbrt.testing.draws import DrawCase, draw_cases

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpu_status.md"
ROW = re.compile(r"\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")


def test_draws_are_counted() -> None:
    layouts: defaultdict[str, list[DrawCase]] = defaultdict(list)
    for case in draw_cases():
        layouts[str(case).split(":")[0]].append(case)
    expected = {}
    for layout, cases in layouts.items():
        exact = sum(case.is_exact for case in cases)
        distributions = {str(case).split(":")[1].split("(")[0] for case in cases}
        expected[layout] = (len(distributions), len(cases), exact, len(cases) - exact)
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert {name: tuple(map(int, counts)) for name, *counts in rows} == expected
