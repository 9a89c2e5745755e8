"""Tables and pictures of shardings show, for every element, exactly the ranks that hold it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import nbrt.distributed as dist
from nbrt.distributed import DTensorSpec, Partial, Replicate, Shard, StridedShard
from nbrt.distributed.visualization.html import dtensor_html, mesh_html, sharding_figure, tiles_of
from nbrt.distributed.visualization.text import visualize_sharding
from nbrt.distributed.visualization.tiles import empty_ranks
from nbrt.errors import ArgumentTypeError, DistributedError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

R, SUM = Replicate(), Partial("sum")
SPECS: list[tuple[tuple[int, ...], tuple[Any, ...], tuple[int, ...]]] = [
    ((2, 3), (Shard(0), Shard(1)), (5, 7)),
    ((2, 3), (Shard(1), Shard(0)), (4, 6)),
    ((2, 3), (Shard(0), Shard(0)), (4, 2)),
    ((2, 3), (StridedShard(0, 3), Shard(0)), (13, 2)),
    ((2, 3), (StridedShard(1, 2), R), (3, 7)),
    ((2, 3), (R, SUM), (3, 2)),
    ((2, 3), (SUM, Shard(0)), (5,)),
    ((2, 3), (Partial("max"), Partial("max")), (2, 2)),
    ((2, 3), (R, R), (9,)),
    ((4,), (Shard(0),), (2, 5)),
    ((4,), (StridedShard(0, 2),), (11,)),
    ((2, 2, 2), (Shard(0), Shard(1), Shard(0)), (9, 5)),
]


def on_rank(function: Callable[[], Any], rank: int = 0, ranks: int = 8) -> Any:
    return dist.run(function, ranks=ranks)[rank]


def spec_of(mesh_shape: tuple[int, ...], placements: Any, shape: tuple[int, ...]) -> DTensorSpec:
    return DTensorSpec(dist.init_device_mesh("cpu", mesh_shape), placements, shape, "float32")


def chunked(indices: Any, ranks: int) -> list[Any]:
    width = -(-len(indices) // ranks)
    return [indices[rank * width : (rank + 1) * width] for rank in range(ranks)]


def held_by(spec: DTensorSpec) -> Any:
    """Return, for each element, the set of ranks that hold it, from the definition of the cuts."""
    found = np.frompyfunc(lambda _: set(), 1, 1)(np.zeros(spec.shape))
    for coordinate in np.ndindex(*spec.mesh.shape):
        along = [np.arange(size) for size in spec.shape]
        for place, ranks, cut in zip(coordinate, spec.mesh.shape, spec.placements, strict=True):
            if isinstance(cut, Shard):
                along[cut.dim] = chunked(along[cut.dim], ranks)[place]
            elif isinstance(cut, StridedShard):
                parts = chunked(along[cut.dim], cut.split_factor)
                along[cut.dim] = np.concatenate([chunked(part, ranks)[place] for part in parts])
        for element in found[np.ix_(*along)].ravel():
            element.add(int(spec.mesh.mesh[coordinate]))
    return found


@pytest.mark.parametrize(("mesh", "placements", "shape"), SPECS)
def test_tiles_cover_every_element_once_with_its_ranks(
    mesh: tuple[int, ...], placements: Any, shape: tuple[int, ...]
) -> None:
    spec = on_rank(lambda: spec_of(mesh, placements, shape))
    expected = held_by(spec).reshape((1, *shape)[-2:])
    seen = np.zeros(expected.shape, int)
    for tile in tiles_of(spec):
        box = slice(tile.top, tile.bottom), slice(tile.left, tile.right)
        seen[box] += 1
        assert all(ranks == set(tile.ranks) for ranks in expected[box].ravel())
        assert set(map(int, re.findall(r"\d+", tile.label))) == set(tile.ranks)
    assert (seen == 1).all()
    assert set(empty_ranks(spec)) == set(range(spec.mesh.size())) - set.union(*expected.ravel())


@pytest.mark.parametrize(("mesh", "placements", "shape"), SPECS)
def test_the_table_says_the_same(
    mesh: tuple[int, ...], placements: Any, shape: tuple[int, ...]
) -> None:
    texts = dist.run(lambda: visualize_sharding(spec_of(mesh, placements, shape)), ranks=9)
    assert len(set(texts)) == 1  # the same on every rank, also on the one off the mesh
    spec = on_rank(lambda: spec_of(mesh, placements, shape))
    expected = held_by(spec).reshape((1, *shape)[-2:])
    _, head, _, *rows = texts[0].splitlines()
    lefts = [tuple(map(int, each)) for each in re.findall(r"(\d+):(\d+)", head)]
    for row in rows:
        if row.startswith("nothing: "):
            assert set(map(int, re.findall(r"\d+", row))) == set(empty_ranks(spec))
            continue
        side, cells = row.split("|", 1)
        down = slice(*map(int, side.split(":"))) if ":" in side else slice(0, 1)
        labels = re.split(r"\s{2,}", cells.strip())
        assert len(labels) == len(lefts)
        for label, (left, right) in zip(labels, lefts, strict=True):
            ranks = set(map(int, re.findall(r"\d+", label)))
            assert all(each == ranks for each in expected[down, left:right].ravel())
            assert ("(" in label) == spec.is_partial
    assert sum(b - a for a, b in lefts) == expected.shape[1]


def test_a_table_as_it_is_printed() -> None:
    def table() -> str:
        mesh = dist.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
        return visualize_sharding(DTensorSpec(mesh, [SUM, Shard(1)], (4, 5), "float32"))

    assert on_rank(table).splitlines() == [
        "float32[4, 5], [P(sum), S(1)] on mesh {'dp': 2, 'tp': 3}",
        "     |       0:2        2:4        4:5",
        "-----+--------------------------------",
        " 0:4 | sum(0, 3)  sum(1, 4)  sum(2, 5)",
    ]


def test_more_dimensions_and_more_ranks_than_a_table_holds() -> None:
    text = on_rank(lambda: visualize_sharding(spec_of((2, 2), [Shard(2), Shard(0)], (4, 5, 6))))
    assert text.splitlines()[1] == "rows: dimension 0, columns: dimension 2, whole: 1"
    assert text.splitlines()[4:] == [" 0:2 |   0    2", " 2:4 |   1    3"]
    cuts = [Shard(0), Shard(1), StridedShard(2, 2)]
    text = on_rank(lambda: visualize_sharding(spec_of((2, 2, 2), cuts, (4, 5, 6))))
    assert text.splitlines()[2] == "rank 1 at (0, 0, 1): [0:2, 0:3, 2:3+5:6]"
    assert len(text.splitlines()) == 9
    wide = on_rank(lambda: visualize_sharding(spec_of((40,), [Shard(1)], (2, 80))), ranks=40)
    assert wide.splitlines()[1] == "rank 0 at (0,): [0:2, 0:2]"
    assert wide.splitlines()[-1] == "... and 8 ranks more"
    assert on_rank(lambda: visualize_sharding(spec_of((4,), [Shard(0)], (0, 3)))).endswith(
        "no elements"
    )
    scalar = on_rank(lambda: visualize_sharding(spec_of((4,), [R], ())))
    assert scalar.splitlines()[-1] == " all | 0, 1, 2, 3"
    with pytest.raises(ArgumentTypeError, match="got ndarray"):
        visualize_sharding(np.zeros(3))  # type: ignore[arg-type]


def test_the_picture_of_a_tensor_draws_the_tiles_to_scale() -> None:
    def body() -> tuple[str, DTensorSpec]:
        spec = spec_of((2, 3), [SUM, Shard(1)], (6, 9))
        return dtensor_html(spec), spec

    page, spec = on_rank(body, rank=4)
    svg = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    name = "{http://www.w3.org/2000/svg}"
    rects = [each for each in svg.findall(f"{name}rect") if each.find(f"{name}title") is not None]
    told = {each.find(f"{name}title").text: each for each in rects}  # type: ignore[union-attr]
    assert set(told) == {
        f"[{t.top}:{t.bottom}, {t.left}:{t.right}] on {t.label}" for t in tiles_of(spec)
    }
    assert len({each.get("fill") for each in rects}) == 3
    mine = told["[0:6, 3:6] on sum(1, 4)"]
    assert [each for each in rects if each.get("stroke-width") == "3"] == [mine]
    widths = [float(each.get("width", "nan")) for each in rects]
    assert max(widths) - min(widths) < 0.2
    assert "rank 4" not in page
    assert "(6, 3) (this rank)" in page
    assert "currentColor" in page  # marks follow the theme of the notebook


def test_a_picture_that_would_not_be_readable_is_a_table() -> None:
    cuts = [Shard(0), Shard(1), Shard(2)]
    page = on_rank(lambda: dtensor_html(spec_of((2, 2, 2), cuts, (4, 5, 6))))
    assert page.startswith("<pre>float32[4, 5, 6]")
    page = on_rank(lambda: dtensor_html(spec_of((2, 2), [Shard(2), R], (4, 5, 6))))
    assert "columns: dimension 2, whole: 0, 1" in page
    assert "<svg" in page


def test_the_picture_of_a_mesh_shows_every_rank_and_frames_this_one() -> None:
    def body() -> str:
        names = ("pp", "d<p", "tp")
        return mesh_html(dist.DeviceMesh("cpu", np.arange(8).reshape(2, 2, 2)[::-1], names))

    for rank, page in enumerate(dist.run(body, ranks=9)):
        cells = re.findall(r"<td([^>]*)>(\d+)</td>", page)
        assert [int(number) for _, number in cells] == [4, 5, 6, 7, 0, 1, 2, 3]
        framed = [int(number) for style, number in cells if "this rank" in style]
        assert framed == ([rank] if rank < 8 else [])
        assert ("rank 8 is not in it" in page) == (rank == 8)
        assert page.count("<table") == 2
        assert "d&lt;p" in page
        assert "d<p" not in page
        ET.fromstring(f"<div>{page}</div>")
    line = on_rank(lambda: dist.init_device_mesh("cpu", (8,))._repr_html_())
    assert re.findall(r">(\d+)</td>", line) == list("01234567")


def test_a_figure_has_a_rectangle_for_each_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    spec = on_rank(lambda: spec_of((2, 3), [Shard(0), Shard(1)], (5, 7)))
    (axes,) = sharding_figure(spec).axes
    patches: Any = axes.patches
    corners = [each.get_bbox().extents for each in patches]
    boxes = {(top, bottom, left, right) for left, top, right, bottom in corners}
    assert boxes == {(t.top, t.bottom, t.left, t.right) for t in tiles_of(spec)}
    assert sorted(text.get_text() for text in axes.texts) == ["0", "1", "2", "3", "4", "5"]
    assert axes.get_ylim() == (5, 0)  # rows from the top, as in print
    with pytest.raises(DistributedError, match="use visualize_sharding"):
        sharding_figure(on_rank(lambda: spec_of((4,), [Shard(0)], (0, 3))))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "nbrt._internal.notebook_figure", raising=False)
    with pytest.raises(NotSupportedError, match=r"nbrt\[viz\]"):
        sharding_figure(spec)
