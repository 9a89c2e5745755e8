"""Summaries: the numbers of the statistics, the lines that hold memory, in text and HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import nbrt
from nbrt.observe.history.recorder import memory_history
from nbrt.observe.history.summary import memory_summary
from nbrt.runtime.memory.functions import memory_stats
from nbrt.runtime.memory.limits import set_memory_limit
from nbrt.runtime.memory.pool import MemoryPool, use_pool

DEVICE = "cpu:3"


def make(nbytes: int) -> Any:
    return nbrt.empty(nbytes, "uint8", device=DEVICE)


class Cells(HTMLParser):
    """The texts of a page's table cells, row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] in {"td", "th"}:
            self.rows[-1].append(data.strip())


def test_numbers_are_those_of_the_statistics() -> None:
    kept = make(3 << 20)
    summary = memory_summary(DEVICE)
    assert summary.stats == memory_stats(DEVICE)
    assert kept.nbytes == 3 << 20
    row = next(line for line in str(summary).splitlines() if line.startswith("allocated memory"))
    shown = [float(number) for number in re.findall(r"([\d.]+) MiB", row)]
    columns = ("current", "peak", "allocated", "freed")
    exact = [summary.stats[f"allocated_bytes.all.{column}"] / 2**20 for column in columns]
    assert shown[0] >= 3
    assert all(abs(a - b) <= 0.005 for a, b in zip(shown, exact, strict=False))


def test_lines_up_and_says_limit_and_pools() -> None:
    pool = MemoryPool(DEVICE, limit=32 << 20, name="mine")
    set_memory_limit(64 << 20, DEVICE)
    try:
        with use_pool(pool):
            kept = make(2 << 20)
        text = str(memory_summary(DEVICE))
    finally:
        set_memory_limit(None, DEVICE)
    assert kept.nbytes == 2 << 20
    assert text.startswith(f"Memory of {DEVICE}, limit 64.00 MiB")
    row = next(line for line in text.splitlines() if line.startswith("mine"))
    assert re.split(r"\s{2,}", row)[:3] == ["mine", "caching", "2.00 MiB"]
    assert row.endswith("32.00 MiB")
    for table in text.split("\n\n")[1:]:
        lines = table.splitlines()
        assert max(map(len, lines)) == len(lines[1]) == lines[1].count("-")


def test_names_the_lines_that_hold_most() -> None:
    with memory_history(device=DEVICE):
        few = [make(10 << 20)]
        many = [make(1 << 20) for _ in range(3)]
        summary = memory_summary(DEVICE)
        del few, many
    here = f"test_summary.py:{make.__code__.co_firstlineno + 1} make"
    holder = summary.holders[0]
    assert (holder.site, holder.arrays, holder.nbytes) == (here, 4, 13 << 20)
    assert "13.00 MiB" in str(summary).split("allocated by")[1]


def test_html_shows_the_same() -> None:
    with memory_history(device=DEVICE):
        kept = make(5 << 20)
        summary = memory_summary(DEVICE)
    assert kept.nbytes == 5 << 20
    rows = Cells(summary._repr_html_()).rows
    lines = {re.sub(r"\s+", " ", line).strip() for line in str(summary).splitlines()}
    for row in rows:
        text = re.sub(r"\s+", " ", " ".join(row)).strip()
        if row[0] not in {"pool", "default"}:  # shown as text only where there is a choice
            assert text in lines


def test_html_escapes_names() -> None:
    pool = MemoryPool(DEVICE, name="<b>&")
    page = memory_summary(DEVICE)._repr_html_()
    assert "<b>" not in page
    assert [pool.name] == [row[0] for row in Cells(page).rows if row[0] == "<b>&"]
