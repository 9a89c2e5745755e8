"""The HTML report of a snapshot, opened in Chromium: its content and its content policy."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.image import imread

from helpers.chromium import BrowserMissingError, browse
from helpers.memory_snapshots import MIB, Heap, frame, large_snapshot, training_heap
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.call_sites import CallSiteTable
from nbrt.observe.plots.html_report import save_html, to_html
from nbrt.observe.plots.segment_map import drawn_blocks
from nbrt.observe.plots.timeline import timeline

if TYPE_CHECKING:
    from pathlib import Path

NASTY = '</script><script>window.hurt = 1</script><img src=x onerror="window.hurt = 1">'
TIP = "document.querySelector('#tip').textContent"


def texts(selector: str) -> str:
    return f"[...document.querySelectorAll('{selector}')].map(each => each.innerText)"


def column(number: int) -> str:
    return texts(f"table.sites tbody td:nth-child({number})")


def look_at(page: Path, *steps: tuple[str, Any], **how: Any) -> list[Any]:
    """Take the steps on the page, which must not complain; return what they gave."""
    try:
        seen = browse(page, *steps, **how)
    except BrowserMissingError as error:
        pytest.skip(str(error))
    assert seen["console"] == []
    return seen["results"]


def data_of(html: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return json.loads(text)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    save_html(training_heap().snapshot(), tmp_path / "memory.html", top=5)
    return tmp_path / "memory.html"


def test_what_the_page_shows(page: Path) -> None:
    snapshot = training_heap().snapshot()
    areas, legend, bars, blocks, marks, figures, sites = look_at(
        page,
        ("js", "document.querySelectorAll('path.area').length"),
        ("js", texts(".legend li")),
        ("js", texts(".segment span")),
        ("js", "document.querySelectorAll('.bar i').length"),
        ("js", "['oom', 'note'].map(each => document.querySelectorAll('line.' + each).length)"),
        ("js", texts("dd")),
        ("js", texts("summary")),
    )
    whole = timeline(snapshot, top=100)
    assert areas == 6
    assert legend == [*whole.sites[:5], "other", "┅ reserved"]
    assert bars == [f"{segment['address']:#x} 20.0 MiB" for segment in snapshot["segments"]]
    assert blocks == sum(
        len(drawn_blocks(segment, CallSiteTable())) for segment in snapshot["segments"]
    )
    assert marks == [1, 7]
    assert figures[:5] == ["71.4 MiB", "25.1 MiB", "80.0 MiB in 4", "80.0 MiB", "54.9 MiB"]
    assert sites == list(whole.sites[:-2])


def test_pointing_shows_site_bytes_and_stack(tmp_path: Path) -> None:
    heap = Heap()
    heap.request(heap.alloc(2 * MIB, frame("/p/a.py", 7)))
    heap.annotate("end")
    page = tmp_path / "memory.html"
    save_html(heap.snapshot(), page)
    _, over, _, waits, _, gone = look_at(
        page,
        ("move", ("path.area", 0.6, 0.5)),
        ("until", f"{TIP}.includes('alive') && {TIP}"),
        ("move", (".bar i.waits", 0.5, 0.5)),
        ("until", f"{TIP}.includes('waiting') && {TIP}"),
        ("move", ("h1", 0.5, 0.5)),
        ("until", f"{TIP} === ''"),
    )
    head, _, *rest = over.split("\n")
    assert re.fullmatch(r"\d+ µs: 2\.0 MiB alive, 20\.0 MiB reserved", head)
    assert rest == [
        "a.py:7 step: 2.0 MiB",
        "  site-packages/nbrt/runtime/arrays.py:9 empty",
        "  /p/a.py:7 step",
        "  /home/me/main.py:1",
    ]
    assert waits == "2.0 MiB active awaiting free\na.py:7 step"
    assert gone is True


def test_keys_move_along_the_chart(page: Path) -> None:
    lines = timeline(training_heap().snapshot(), top=5)
    _, _, last, _, first = look_at(
        page,
        ("js", "document.querySelector('svg.chart').focus()"),
        ("key", "End"),
        ("until", TIP),
        ("key", "Home"),
        ("until", f"{TIP}.startsWith('0 µs') && {TIP}"),
    )
    largest = int(np.argmax(lines.nbytes[:, -1]))
    head, oom, _, site, *_ = last.split("\n")
    assert head == f"{lines.times[-1] / 1000:g} ms: 25.1 MiB alive, 80.0 MiB reserved"
    assert oom == "out of memory: 300.0 MiB asked, 50.0 MiB free"
    assert site == f"{lines.sites[largest]}: {lines.nbytes[largest, -1] / MIB:.1f} MiB"
    assert first == "0 µs: 0 B alive, 0 B reserved"


def test_the_table_sorts_by_the_column_that_is_clicked(page: Path) -> None:
    order = "[...document.querySelectorAll('th')].map(each => each.ariaSort)"
    first, _, alive, _, names, keyed, _ = look_at(
        page,
        ("js", column(3)),
        ("click", ("th:nth-child(2) button", 0.5, 0.5)),
        ("until", f"{order}[1] === 'descending' && {column(2)}"),
        ("click", ("th:nth-child(1) button", 0.5, 0.5)),
        ("until", f"{order}[0] === 'ascending' && {column(1)}"),
        ("key", "Space"),
        ("until", f"{order}[0] === 'descending'"),
    )
    assert keyed is None
    uses = data_of(page.read_text(encoding="utf-8"))[0]["uses"]
    by_peak = sorted((use["peak"] for use in uses), reverse=True)
    assert [float(text.split()[0]) for text in first[:5]] == [
        round(nbytes / MIB, 1) for nbytes in by_peak[:5]
    ]
    assert alive[:2] == ["6.0 MiB", "5.0 MiB"]
    assert alive[-1] == "0 B"
    assert names == sorted(use["name"] for use in uses)


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_drawn_light_and_dark(page: Path, dark: bool, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    drawn = sorted({row["color"] for row in data_of(page.read_text(encoding="utf-8"))[0]["rows"]})
    colors, _ = look_at(
        page,
        ("js", "[document.body, document.querySelector('h1')].map(each => [getComputedStyle(each)]"
         ".map(style => [style.backgroundColor, style.color])[0])"),
        ("shot", (str(shot), drawn)),
        dark=dark,
    )  # fmt: skip
    ground, ink = (sum(map(int, re.findall(r"\d+", text)[:3])) for text in colors[0])
    assert (ground < ink) == dark
    assert abs(ground - ink) > 400
    pixels = np.round(imread(shot)[..., :3] * 255).astype(int)
    assert pixels.shape[:2] == (900, 1200)
    seen = {f"#{color:06x}" for color in np.unique(pixels @ [1 << 16, 1 << 8, 1])}
    assert seen.issuperset(drawn)
    assert pixels[0, 0].sum() == ground


def test_names_cannot_become_code(tmp_path: Path) -> None:
    heap = Heap()
    heap.alloc(2 * MIB, frame(f"/p/{NASTY}.py", 1, f"$data ${{x}} {NASTY}"))
    heap.annotate(NASTY)
    page = tmp_path / "memory.html"
    save_html(heap.snapshot(), page)
    scripts, hurt, images, names, _, tip = look_at(
        page,
        ("js", "document.scripts.length"),
        ("js", "typeof window.hurt"),
        ("js", "document.images.length"),
        ("js", texts("summary")),
        ("move", ("path.area", 0.9, 0.5)),
        ("until", f"{TIP}.includes('alive') && {TIP}"),
    )
    assert (scripts, hurt, images) == (2, "undefined", 0)
    assert names == [f"{NASTY.split('/')[-1]}.py:1 $data ${{x}} {NASTY}"]
    assert "onerror" in tip


def test_the_page_may_load_nothing(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    assert set(re.findall(r"https?://[^'\"]*", html)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"<(?:link|img|script src|iframe|base)\b", html) == []


def test_many_events_make_a_small_page(tmp_path: Path) -> None:
    page = tmp_path / "memory.html"
    snapshot = large_snapshot(100_000)
    save_html(snapshot, page)
    assert page.stat().st_size < 500_000
    (device,) = data_of(page.read_text(encoding="utf-8"))
    whole = timeline(snapshot)
    assert len(device["times"]) <= 802
    assert max(device["total"]) == whole.total.max()
    assert device["total"][-1] == whole.total[-1]
    rows, hidden = look_at(
        page,
        ("js", "document.querySelectorAll('tbody tr').length"),
        ("js", "document.querySelector('.map p').textContent.includes('80 smaller segments')"),
    )
    assert (rows, hidden) == (200, True)


def test_each_device_that_has_something_has_a_section(tmp_path: Path) -> None:
    first, second = training_heap().snapshot(), Heap(base=0x9000_0000)
    second.alloc(MIB, frame("b.py", 1))
    moved = [{**segment, "device": 2} for segment in second.snapshot()["segments"]]
    both: dict[str, Any] = {
        "segments": [*first["segments"], *moved],
        "device_traces": [*first["device_traces"], [], second.trace],
    }
    devices = data_of(to_html(both))
    assert [device["name"] for device in devices] == ["device:0", "device:2"]
    assert [len(device["segments"]) for device in devices] == [4, 1]
    assert data_of(to_html({**both, "nbrt": {"kind": "cuda"}}))[1]["name"] == "cuda:2"
    empty = tmp_path / "empty.html"
    save_html({"segments": [], "device_traces": [[], []]}, empty)
    assert look_at(empty, ("js", texts("h2"))) == [["device:0"]]


def test_no_snapshot_writes_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match="memory snapshot"):
        save_html({}, tmp_path / "memory.html")
    with pytest.raises(ArgumentError, match="top=-1"):
        save_html(training_heap().snapshot(), tmp_path / "memory.html", top=-1)
    assert list(tmp_path.iterdir()) == []
