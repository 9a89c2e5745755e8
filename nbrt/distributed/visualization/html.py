"""Pictures of meshes and shardings: HTML for notebooks, light or dark, and matplotlib figures."""

from __future__ import annotations

import colorsys
import html
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbrt._internal.figures import new_figure
from nbrt.distributed.sharding import compute_local_shape
from nbrt.distributed.visualization.text import (
    holders_text,
    sides_text,
    spec_of,
    spec_text,
    visualize_sharding,
)
from nbrt.distributed.visualization.tiles import (
    dim_intervals,
    empty_ranks,
    holders,
    is_drawable,
    shown_dims,
)
from nbrt.errors import DistributedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt._internal.notebook_figure import NotebookFigure
    from nbrt.distributed.dtensor import DTensor
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.spec import DTensorSpec

__all__ = ["Tile", "dtensor_html", "mesh_html", "sharding_figure", "tiles_of"]

_WIDTH, _HEIGHT = 360.0, 240.0
_MAX_RANKS = 64
_MAX_LEGEND = 16
_MARGIN = 44.0


class Tile(NamedTuple):
    """A rectangle of a picture, in indices of the tensor: its ranks are those of `label`.

    Attributes
    ----------
    top, bottom, left, right : int
        Ranges of indices, along the picture's rows and columns.
    ranks : tuple of int
        All that hold it; the first gives the colour.
    label : str
        As in the table of `visualize_sharding`.
    """

    top: int
    bottom: int
    left: int
    right: int
    ranks: tuple[int, ...]
    label: str


def tiles_of(spec: DTensorSpec) -> list[Tile]:
    """Return the rectangles of a sharding; none if more than two dimensions are split.

    The first shown dimension is along the rows and the second along the columns. A single dimension
    is along the columns.
    """
    dims = shown_dims(spec)
    if dims is None or not is_drawable(spec) or spec.size == 0:
        return []
    sides = [
        [(each.start, each.stop, each.places) for each in dim_intervals(spec, dim)] for dim in dims
    ]
    while len(sides) < 2:
        sides.insert(0, [(0, 1, ())])
    return [
        Tile(
            top, bottom, left, right,
            tuple(rank for ranks in holders(spec, dict(above + beside)) for rank in ranks),
            holders_text(spec, above + beside),
        )
        for top, bottom, above in sides[0]
        for left, right, beside in sides[1]
    ]  # fmt: skip


def mesh_html(mesh: DeviceMesh) -> str:
    """Return a table of a mesh's ranks for a notebook, with this rank framed.

    Of a mesh of more than 64 ranks, only the sizes are shown.
    """
    names = mesh.mesh_dim_names or tuple(f"dim {dim}" for dim in range(mesh.ndim))
    sizes = ", ".join(
        f"{html.escape(name)} of {size}" for name, size in zip(names, mesh.shape, strict=True)
    )
    here = mesh.get_rank()
    off = "" if mesh.get_coordinate() is not None else f", rank {here} is not in it"
    title = f"<div>DeviceMesh on {html.escape(mesh.device_type)}: {sizes}{off}</div>"
    if mesh.size() > _MAX_RANKS:
        return title
    tables = "".join(
        _mesh_table(mesh, names, leading) for leading in np.ndindex(*mesh.shape[: mesh.ndim - 2])
    )
    return f"{title}{tables}"


def _mesh_table(mesh: DeviceMesh, names: tuple[str, ...], leading: tuple[int, ...]) -> str:
    ranks = np.atleast_2d(mesh.mesh[leading])
    down = html.escape(names[-2]) if mesh.ndim > 1 else ""
    caption = ", ".join(f"{name} {at}" for name, at in zip(names, leading, strict=False))
    head = "".join(f"<th>{at}</th>" for at in range(ranks.shape[1]))
    lines = [f"<tr><th>{down} \\ {html.escape(names[-1])}</th>{head}</tr>"] if down else [
        f"<tr><th>{html.escape(names[-1])}</th>{head}</tr>"
    ]  # fmt: skip
    for at, row in enumerate(ranks):
        cells = "".join(_mesh_cell(int(rank), mesh) for rank in row)
        lines.append(f"<tr><th>{at if down else 'rank'}</th>{cells}</tr>")
    label = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    style = "display:inline-table;margin:4px 12px 4px 0;text-align:center"
    return f'<table style="{style}">{label}{"".join(lines)}</table>'


def _mesh_cell(rank: int, mesh: DeviceMesh) -> str:
    mine = rank == mesh.get_rank()
    frame = ";outline:3px solid #111;outline-offset:-3px;font-weight:bold" if mine else ""
    title = ' title="this rank"' if mine else ""
    style = f"background:{_color(rank, mesh.mesh)};color:#111;text-align:center{frame}"
    return f'<td{title} style="{style}">{rank}</td>'


def dtensor_html(tensor: DTensor | DTensorSpec) -> str:
    """Return a picture of the parts of a tensor and their ranks, for a notebook.

    Each rank has a colour; a tile has that of the first rank that holds it. Hatched tiles are terms
    of a reduction, and framed tiles those of this rank. A tensor that is split along more than two
    dimensions is shown as a list.
    """
    spec = spec_of(tensor)
    tiles = tiles_of(spec)
    about = "; ".join(part for part in (spec_text(spec), sides_text(spec)) if part)
    title = f"<div>DTensor {html.escape(about)}</div>"
    if not tiles or len(tiles) > _MAX_RANKS:
        return f"<pre>{html.escape(visualize_sharding(spec))}</pre>"
    return f"{title}{_svg(spec, tiles)}{_legend(spec)}"


def _svg(spec: DTensorSpec, tiles: list[Tile]) -> str:
    rows, columns = max(tile.bottom for tile in tiles), max(tile.right for tile in tiles)
    width, height = _size(rows, columns, len({tile.top for tile in tiles}))
    parts = [
        _rectangle(spec, tile, width / columns, height / rows)
        for tile in sorted(tiles, key=lambda tile: spec.mesh.get_rank() in tile.ranks)
    ]
    lefts = _spaced({0, *(tile.right for tile in tiles)}, width / columns, 26)
    tops = _spaced({0, *(tile.bottom for tile in tiles)}, height / rows, 11)
    marks = [_mark(_MARGIN + at * width / columns, 12, at, "middle") for at in lefts]
    if spec.ndim > 1:
        marks += [_mark(_MARGIN - 5, 22 + at * height / rows, at, "end") for at in tops]
    hatch = (
        '<defs><pattern id="nbrt-terms" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="7" stroke="#111" '
        'stroke-opacity="0.25" stroke-width="2"/></pattern></defs>'
    )
    box = f"{width + _MARGIN + 14:.0f}", f"{height + 26:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{box[0]}" height="{box[1]}" '
        f'viewBox="0 0 {box[0]} {box[1]}" font-family="sans-serif" font-size="11">'
        f"{hatch if spec.is_partial else ''}{''.join(parts)}{''.join(marks)}</svg>"
    )


def _size(rows: int, columns: int, bands: int) -> tuple[float, float]:
    """Return width and height of a picture in the proportions of the tensor, within limits."""
    if bands == rows == 1:
        return _WIDTH, 40.0
    scale = min(_WIDTH / columns, _HEIGHT / rows)
    least = min(_HEIGHT, 22.0 * bands)
    return max(columns * scale, 120.0), max(rows * scale, least)


def _rectangle(spec: DTensorSpec, tile: Tile, across: float, down: float) -> str:
    x, y = _MARGIN + tile.left * across, 18 + tile.top * down
    width, height = (tile.right - tile.left) * across, (tile.bottom - tile.top) * down
    mine = spec.mesh.get_rank() in tile.ranks
    frame = 'stroke="#111" stroke-width="3"' if mine else 'stroke="#fff"'
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    text = f"[{tile.top}:{tile.bottom}, {tile.left}:{tile.right}] on {tile.label}"
    shape = (
        f'<rect {place} fill="{_color(tile.ranks[0], spec.mesh.mesh)}" {frame}>'
        f"<title>{html.escape(text)}</title></rect>"
    )
    if spec.is_partial:
        shape += f'<rect {place} fill="url(#nbrt-terms)" pointer-events="none"/>'
    if height < 12 or width < 6.5 * len(tile.label):
        return shape
    middle = f'x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}"'
    return (
        f'{shape}<text {middle} text-anchor="middle" fill="#111">{html.escape(tile.label)}</text>'
    )


def _spaced(indices: set[int], step: float, least: float) -> list[int]:
    """Return indices whose marks do not overlap, `least` pixels apart."""
    kept = [0]
    for index in sorted(indices):
        if (index - kept[-1]) * step >= least:
            kept.append(index)
    return kept


def _mark(x: float, y: float, index: int, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{index}</text>'
    )


def _legend(spec: DTensorSpec) -> str:
    """Return the shape of each rank's part, next to its colour."""
    mesh = spec.mesh
    entries = []
    for coordinate in _first_coordinates(mesh):
        rank = int(mesh.mesh[coordinate])
        shape = compute_local_shape(spec.shape, mesh.shape, coordinate, spec.placements)
        here = " (this rank)" if rank == mesh.get_rank() else ""
        swatch = f"background:{_color(rank, mesh.mesh)};color:#111;padding:0 5px"
        entries.append(
            f'<span style="white-space:nowrap;margin-right:10px"><span style="{swatch}">{rank}'
            f"</span> {shape}{here}</span>"
        )
    more = mesh.size() - len(entries)
    rest = f"… and {more} ranks more" if more else ""
    return f'<div style="font-size:85%;max-width:420px">{" ".join(entries)}{rest}</div>'


def _first_coordinates(mesh: DeviceMesh) -> Iterator[tuple[int, ...]]:
    for number in range(min(_MAX_LEGEND, mesh.size())):
        yield tuple(int(at) for at in np.unravel_index(number, mesh.shape))


def _color(rank: int, mesh: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    """Return a rank's colour: pale, for dark text in any theme."""
    place = int(np.flatnonzero(mesh.reshape(-1) == rank)[0])
    hue = place / max(mesh.size, 6)
    # Neighbours of many ranks differ in lightness as well.
    red, green, blue = colorsys.hls_to_rgb(hue, 0.84 if place % 2 else 0.75, 0.62)
    return "#" + "".join(f"{math.floor(255 * part + 0.5):02x}" for part in (red, green, blue))


def sharding_figure(tensor: DTensor | DTensorSpec) -> NotebookFigure:
    """Return a matplotlib figure of the parts of a tensor and their ranks.

    Parameters
    ----------
    tensor : DTensor or DTensorSpec
        The tensor, split along at most two dimensions.

    Returns
    -------
    figure : matplotlib.figure.Figure
        A notebook shows it; ``savefig`` saves it.

    Raises
    ------
    DistributedError
        If the tensor cannot be drawn.
    NotSupportedError
        If matplotlib is missing.
    """
    spec = spec_of(tensor)
    tiles = tiles_of(spec)
    if not tiles:
        raise DistributedError(
            f"expected a tensor with elements, cut along at most two dimensions over a mesh of at "
            f"most 4096 ranks, got {spec_text(spec)}; use visualize_sharding"
        )
    rows, columns = max(tile.bottom for tile in tiles), max(tile.right for tile in tiles)
    width, height = _size(rows, columns, len({tile.top for tile in tiles}))
    figure = new_figure(max(4.5, 1.0 + width / 72), 1.0 + height / 72)
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    for tile in tiles:
        box = (tile.left, tile.top), tile.right - tile.left, tile.bottom - tile.top
        axes.add_patch(
            Rectangle(
                *box, facecolor=_color(tile.ranks[0], spec.mesh.mesh), edgecolor="white",
                hatch="//" if spec.is_partial else None,
            )
        )  # fmt: skip
        middle = (tile.left + tile.right) / 2, (tile.top + tile.bottom) / 2
        if box[1] * width / columns < 5 * len(tile.label) or box[2] * height / rows < 9:
            continue
        axes.text(*middle, tile.label, ha="center", va="center", color="#111", fontsize=8)
    axes.set(xlim=(0, columns), ylim=(rows, 0), title=spec_text(spec))
    axes.title.set_fontsize(9)
    axes.set_xticks(sorted({0, *(tile.right for tile in tiles)}))
    axes.set_yticks(sorted({0, *(tile.bottom for tile in tiles)}) if spec.ndim > 1 else [])
    axes.xaxis.tick_top()
    notes = [sides_text(spec)]
    if empty := empty_ranks(spec):
        notes.append(f"ranks without elements: {', '.join(map(str, empty))}")
    axes.set_xlabel("\n".join(filter(None, notes)), fontsize=8)
    return figure
