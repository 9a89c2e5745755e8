"""Plans as text and HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import nbrt
from nbrt.planning.capacity import FitTable
from nbrt.planning.html import plan_page
from nbrt.planning.results import PlanTimeline
from nbrt.planning.tables import text_table
from nbrt.planning.text import sparkline


@pytest.fixture(scope="module")
def plan() -> nbrt.MemoryPlan:
    with nbrt.fake("cuda", gpu="H100", devices=2) as plan, nbrt.memory.annotate("<b>&"):
        weights = [nbrt.empty(10 << 30, "uint8") for _ in range(3)]
        nbrt.to(weights[0], "cuda:1")
        del weights
    return plan


def test_the_text_names_the_fit_the_peak_and_the_holders(plan: nbrt.MemoryPlan) -> None:
    lines = str(plan).splitlines()
    assert re.fullmatch(
        r"plan for 2 x H100 SXM \(.* GiB usable, context .* assumed\); fits: yes, .* to spare",
        lines[0],
    )
    assert re.fullmatch(
        r"peak allocated 30.0 GiB on cuda:0 at test_views.py:\d+ .* in <b>&.*", lines[1]
    )
    assert re.search(r"test_views.py:\d+ <listcomp>|test_views.py:\d+ plan", str(plan))
    assert "L4 no (" in str(plan)
    assert re.search(r"cuda:0 +cuda:1 +1 +10.0 GiB", str(plan))
    assert "not modelled or assumed:" in lines


class _Tags(HTMLParser):
    """Checks that elements are closed, and collects those of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_complete_and_loads_nothing(plan: nbrt.MemoryPlan) -> None:
    page = plan_page(plan)
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    assert {"svg", "table", "figure", "details"} <= tags.seen
    assert not {"script", "link", "img", "b&"} & tags.seen
    assert "&lt;b&gt;&amp;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert plan._repr_html_() in page


def test_an_empty_plan_has_all_views() -> None:
    with nbrt.fake("cuda", gpu="L4") as plan:
        pass
    assert plan.peak == plan.reserved == 0
    assert "peak allocated 0 B at the start" in str(plan)
    assert "<svg" not in plan._repr_html_()
    assert nbrt.MemoryPlan.from_json(plan.to_json()).data == plan.data
    assert plan.fits("RTX 2060")


def test_the_table_covers_all_gpus(plan: nbrt.MemoryPlan) -> None:
    table = plan.table()
    assert isinstance(table, FitTable)
    fits = {fit.name: fit.fits for fit in table}
    assert fits["H100 SXM"]
    assert not fits["L4"]
    assert len(fits) == len(table) > 50
    assert [fit.total for fit in table] == sorted((fit.total for fit in table), reverse=True)
    assert str(table).count("\n") == len(table) + 1
    assert all(plan.fit(fit.name) == fit for fit in table)
    assert isinstance(table[:3], FitTable)
    assert "short" in table._repr_html_()


def test_columns_are_aligned() -> None:
    assert text_table([["a", "bb"], ["ccc", "d"]], "> ") == "> a    bb\n> -------\n> ccc   d"


def test_a_long_timeline_becomes_one_line() -> None:
    values = tuple(range(2000))
    assert len(sparkline(PlanTimeline(values, values, values))) == 60
    assert sparkline(PlanTimeline((), (), ())) == ""
