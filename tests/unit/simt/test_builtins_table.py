"""The table in ``docs/dialect.md``: every name of numba-cuda's kernel API is in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import dialect_table  # noqa: E402

PAGE = (ROOT / "docs" / "dialect.md").read_text()


def in_page() -> dict[str, str]:
    """Return the names in the table of the page, with their descriptions."""
    found = {}
    for line in PAGE.splitlines():
        row = re.fullmatch(r"\| `cuda\.?([\w.]*)` \| (.+?) \| (.+) \|", line)
        if row:
            space, fate, names = row.groups()
            for name in re.findall(r"`(\w+)`", names):
                found[f"{space}.{name}" if space else name] = fate
    return found


def test_no_name_is_missed_and_each_is_as_the_page_says() -> None:
    page = in_page()
    for name in dialect_table.kernel_names():
        fate, remark = dialect_table.status(name)
        assert page.get(name) == (f"{fate}: {remark}" if remark else fate), name


def test_the_list_of_names_is_complete() -> None:
    names = set(dialect_table.kernel_names())
    expected = {
        *("threadIdx", "shared.array", "atomic.nanmin", "cg.this_grid", "float32x4", "ldca"),
        *("syncthreads", "shfl_sync", "fp16.hadd", "libdevice.fma", "random.rotl"),
    }
    assert expected <= names
    assert len(names) > 600


def test_nothing_is_left_without_a_reason() -> None:
    fates = {name: str(dialect_table.status(name)) for name in dialect_table.kernel_names()}
    unknown = [name for name, fate in fates.items() if "unknown" in fate]
    assert unknown == []


def test_the_page_is_as_the_tool_writes_it() -> None:
    head, _, rest = PAGE.partition(dialect_table.BEGIN)
    rows = [line for line in rest.splitlines() if line.startswith("|")]
    assert dialect_table.END in rest
    assert head.startswith("# The dialect")
    assert rows[0] == dialect_table.table([]).splitlines()[0]
