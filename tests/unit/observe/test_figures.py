"""Every figure displays itself in a notebook, and a call site has one color in all figures."""

from __future__ import annotations

import ast
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread

import nbrt
import nbrt.distributed as dist
from helpers.memory_snapshots import MIB, Heap, frame, training_heap
from nbrt import memory
from nbrt._internal.notebook_figure import NotebookFigure
from nbrt.cli.demo.figures import draw_pictures, draw_timeline
from nbrt.cli.demo.pipeline import DemoResult, DemoStep
from nbrt.observe.call_sites import NO_STACK
from nbrt.observe.plots import style
from nbrt.observe.plots.html_report import to_html
from nbrt.observe.plots.style import NO_STACK_COLOR, OTHER_COLOR, site_colors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = Path(nbrt.__file__).parent


STEPS = (
    DemoStep("upload", "copy", 0.0, 1.0, nbytes=8, peak_bytes=8),
    DemoStep("noise", "compute", 1.0, 2.0, nbytes=8, peak_bytes=8),
)


def demo_figure() -> NotebookFigure:
    picture = np.linspace(0, 1, 3 * 8 * 8).reshape(3, 8, 8)
    counts = {name: np.arange(16) for name in ("noisy", "denoised")}
    device = nbrt.Device("cpu", 0)
    return draw_pictures(DemoResult(device, picture, picture / 2, picture, counts, STEPS, ()))


def sharding() -> NotebookFigure:
    def spec() -> dist.DTensorSpec:
        mesh = dist.init_device_mesh("cpu", (2,))
        return dist.DTensorSpec(mesh, [dist.Shard(0)], (4, 4), "float32")

    return dist.sharding_figure(dist.run(spec, ranks=2)[0])


FIGURES: dict[str, Callable[[], NotebookFigure]] = {
    "observe.plots.timeline.plot_timeline": lambda: memory.plot_timeline(
        training_heap().snapshot()
    ),
    "observe.plots.segment_map.plot_segments": lambda: memory.plot_segments(
        training_heap().snapshot()
    ),
    "distributed.visualization.html.sharding_figure": sharding,
    "cli.demo.figures.draw_pictures": demo_figure,
    "cli.demo.figures.draw_timeline": lambda: draw_timeline(STEPS, "steps"),
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def test_the_table_above_has_every_function_that_returns_a_figure() -> None:
    found = {
        f"{module}.{node.name}"
        for module, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.returns is not None
        and "Figure" in ast.unparse(node.returns)
    }
    assert found == {*FIGURES, "_internal.figures.new_figure"}


def test_no_other_module_makes_figures_of_matplotlib() -> None:
    # Pyplot's figures are shown by pyplot; matplotlib's own by nothing.
    found = set()
    for module, tree in sources():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if any(name in {"matplotlib.figure", "matplotlib.pyplot"} for name in names):
                found.add(module)
    assert found == {"_internal.notebook_figure"}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_its_own_png(name: str) -> None:
    figure = FIGURES[name]()
    assert isinstance(figure, NotebookFigure)
    canvas = figure.canvas
    drawn = imread(io.BytesIO(figure._repr_png_()))
    assert len(np.unique(drawn.reshape(-1, drawn.shape[-1]), axis=0)) > 3  # colours
    assert figure.canvas is canvas
    again = pickle.loads(pickle.dumps(figure))
    assert again._repr_png_() == figure._repr_png_()


def test_showing_a_figure_needs_no_pyplot() -> None:
    code = (
        "import sys\n"
        "from nbrt.memory import plot_timeline\n"
        "figure = plot_timeline({'segments': [], 'device_traces': [[]]})\n"
        "assert figure._repr_png_().startswith(b'\\x89PNG')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- colours ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No site has a colour yet."""
    monkeypatch.setattr(style, "_numbers", {})


def timeline_colors(snapshot: Any, **how: Any) -> dict[str, str]:
    """Return the colour of the area of each site."""
    (axes,) = memory.plot_timeline(snapshot, **how).axes
    return {str(area.get_label()): to_hex(area.get_facecolor()) for area in axes.collections}


def segment_colors(snapshot: Any, **how: Any) -> tuple[dict[str, str], set[str]]:
    """Return the colour of each entry of the legend, and those of the blocks."""
    (axes,) = memory.plot_segments(snapshot, **how).axes
    legend = axes.get_legend()
    entries = {
        text.get_text(): to_hex(patch.get_facecolor())
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }
    return entries, {to_hex(face) for bar in axes.collections for face in bar.get_facecolor()}


def busy_heap() -> Heap:
    """A heap whose sites have another order by peak than by what they hold at the end."""
    heap = Heap()
    early = [heap.alloc(6 * MIB, frame("a.py", 1)) for _ in range(3)]
    heap.alloc(MIB, frame("b.py", 2))
    for at in early[1:]:
        heap.free(at)
    heap.alloc(8 * MIB, frame("c.py", 3))
    return heap


def without_stacks(snapshot: Any, filename: str) -> Any:
    """Drop the stacks of one file's allocations, as if its part of the record had none."""

    def cut(entry: dict[str, Any]) -> dict[str, Any]:
        names = [each["filename"] for each in entry.get("frames", ())]
        return {**entry, "frames": []} if filename in names else entry

    segments = [{**each, "blocks": list(map(cut, each["blocks"]))} for each in snapshot["segments"]]
    traces = [list(map(cut, trace)) for trace in snapshot["device_traces"]]
    return {**snapshot, "segments": segments, "device_traces": traces}


def test_a_site_has_one_colour_in_timeline_segments_and_page() -> None:
    snapshot = busy_heap().snapshot()
    segments, blocks = segment_colors(snapshot)  # the other order: c before a
    lines = timeline_colors(snapshot)
    sites = {"a.py:1 step", "b.py:2 step", "c.py:3 step"}
    assert {site: lines[site] for site in sites} == {site: segments[site] for site in sites}
    assert len({segments[site] for site in sites}) == 3
    assert {segments[site] for site in sites} <= blocks
    page = to_html(snapshot)
    for site in sites:
        assert f'"name":"{site}","color":"{lines[site]}"' in page
        assert f'"{site}","{lines[site]}"' in page  # a piece of a segment


def test_a_site_keeps_its_colour_in_pictures_of_other_snapshots_and_with_other_tops() -> None:
    before = timeline_colors(busy_heap().snapshot())
    heap = Heap()
    heap.alloc(9 * MIB, frame("d.py", 4))
    heap.alloc(4 * MIB, frame("c.py", 3))
    after = timeline_colors(heap.snapshot())
    assert after["c.py:3 step"] == before["c.py:3 step"]
    assert after["d.py:4 step"] not in before.values()
    assert segment_colors(heap.snapshot(), top=1)[0]["d.py:4 step"] == after["d.py:4 step"]


def test_memory_without_a_stack_is_neutral() -> None:
    snapshot = without_stacks(busy_heap().snapshot(), "a.py")
    lines, (segments, blocks) = timeline_colors(snapshot), segment_colors(snapshot)
    assert lines[NO_STACK] == segments[NO_STACK] == NO_STACK_COLOR
    assert NO_STACK_COLOR in blocks
    others = [color for name, color in lines.items() if name != NO_STACK]
    assert NO_STACK_COLOR not in others
    assert OTHER_COLOR != NO_STACK_COLOR
    # It takes no place among the colours: the first site has the first.
    assert lines["c.py:3 step"] == style._COLORS[0]


def test_a_hundred_sites_have_a_hundred_colours() -> None:
    stacks = [[frame("a.py", line)] for line in range(100)]
    first = site_colors(stacks)
    assert len({*first, OTHER_COLOR, NO_STACK_COLOR, style.BEFORE_COLOR}) == 103
    assert site_colors(stacks[::-1]) == first[::-1]
