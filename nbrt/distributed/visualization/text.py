"""`visualize_sharding`: the parts of a tensor and their ranks, as text."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.distributed.placements import Partial
from nbrt.distributed.spec import DTensorSpec
from nbrt.distributed.visualization.tiles import (
    DimInterval,
    dim_intervals,
    empty_ranks,
    holders,
    is_drawable,
    shown_dims,
)
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.dtensor import DTensor

__all__ = ["holders_text", "sides_text", "spec_of", "spec_text", "visualize_sharding"]

_MAX_ROWS = 32
_MAX_COLUMNS = 16
_MAX_NAMED = 8

_ALL = DimInterval(0, 1, ())
"""The side of a table without a dimension."""


def visualize_sharding(tensor: DTensor | DTensorSpec) -> str:
    """Return a table of the parts of a tensor and the ranks that hold them.

    The table follows from the spec without communication, also on ranks off the mesh. A tensor with
    at most two dimensions, or at most two split dimensions, is a table of those. Larger tables and
    other tensors are a list of the part of each rank.

    Parameters
    ----------
    tensor : DTensor or DTensorSpec
        The tensor.

    Returns
    -------
    text : str
        Rows and columns are ranges of indices. Ranks ``0, 2`` hold equal copies; each rank of
        ``sum(0, 2)`` holds a term.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> def table():
    ...     mesh = dist.init_device_mesh("cpu", (2, 2))
    ...     spec = dist.DTensorSpec(mesh, [dist.Shard(0), dist.Replicate()], (5, 4), "float32")
    ...     return visualize_sharding(spec)
    >>> print(dist.run(table, ranks=4)[0])
    float32[5, 4], [S(0), R] on mesh (2, 2)
         |  0:4
    -----+-----
     0:3 | 0, 1
     3:5 | 2, 3
    """
    spec = spec_of(tensor)
    lines = [spec_text(spec)]
    if spec.size == 0:
        return f"{lines[0]}\nno elements"
    dims = shown_dims(spec)
    if dims is not None and is_drawable(spec):
        axes = [dim_intervals(spec, dim) for dim in dims]
        rows, columns = _rows_and_columns(axes)
        if len(rows) <= _MAX_ROWS and len(columns) <= _MAX_COLUMNS:
            lines += [text] if (text := sides_text(spec)) else []
            return "\n".join([*lines, *_table(spec, rows, columns)])
    return "\n".join([*lines, *_listed(spec)])


def spec_of(tensor: DTensor | DTensorSpec) -> DTensorSpec:
    """Return the spec of a tensor, or the spec itself."""
    spec = getattr(tensor, "_spec", tensor)
    if not isinstance(spec, DTensorSpec):
        raise ArgumentTypeError(
            f"expected a distributed tensor or its spec, got {type(tensor).__name__}"
        )
    return spec


def spec_text(spec: DTensorSpec) -> str:
    """Return dtype, shape, placements and mesh in a line."""
    names = spec.mesh.mesh_dim_names
    sizes = spec.mesh.shape if names is None else dict(zip(names, spec.mesh.shape, strict=True))
    places = ", ".join(map(str, spec.placements))
    return f"{spec.dtype}{list(spec.shape)}, [{places}] on mesh {sizes}"


def sides_text(spec: DTensorSpec) -> str:
    """Return the dimensions of the two sides of a picture; empty if these are all dimensions."""
    dims = shown_dims(spec)
    if dims is None or spec.ndim <= 2:
        return ""
    shown = zip(("rows", "columns")[2 - len(dims) :], dims, strict=True)
    parts = [f"{side}: dimension {dim}" for side, dim in shown]
    whole = ", ".join(str(dim) for dim in range(spec.ndim) if dim not in dims)
    return ", ".join([*parts, f"whole: {whole}"])


def holders_text(spec: DTensorSpec, places: Sequence[tuple[int, int]]) -> str:
    """Return the ranks that hold a tile as ``0, 2`` for copies, ``sum(0, 2)`` for terms."""
    terms = holders(spec, dict(places))
    if len(terms) == 1 and not spec.is_partial:
        return _named(terms[0], ", ")
    ops = dict.fromkeys(each.op for each in spec.placements if isinstance(each, Partial))
    texts = [_named(ranks, "|") for ranks in terms]
    return f"{'/'.join(ops)}({_shortened(texts, ', ')})"


def _named(ranks: Sequence[int], between: str) -> str:
    return _shortened([str(rank) for rank in ranks], between)


def _shortened(texts: Sequence[str], between: str) -> str:
    if len(texts) <= _MAX_NAMED:
        return between.join(texts)
    return f"{between.join(texts[:2])}{between}...{between}{texts[-1]} ({len(texts)})"


def _rows_and_columns(axes: list[list[DimInterval]]) -> tuple[list[DimInterval], list[DimInterval]]:
    """Return the two sides of the table; a single dimension is along the columns."""
    if len(axes) == 2:
        return axes[0], axes[1]
    return [_ALL], axes[0] if axes else [_ALL]


def _table(spec: DTensorSpec, rows: list[DimInterval], columns: list[DimInterval]) -> list[str]:
    grid = [["", *(_range(interval) for interval in columns)]]
    for row in rows:
        cells = [holders_text(spec, (*row.places, *column.places)) for column in columns]
        grid.append([_range(row), *cells])
    widths = [max(len(line[place]) for line in grid) for place in range(len(grid[0]))]
    lines = []
    for number, line in enumerate(grid):
        head, *cells = (f" {cell:>{width}} " for cell, width in zip(line, widths, strict=True))
        lines.append(f"{head}|{''.join(cells)}".rstrip())
        if number == 0:
            lines.append(f"{'-' * len(head)}+{'-' * (len(''.join(cells)) - 1)}")
    empty = empty_ranks(spec)
    return lines + ([f"nothing: {_named(empty, ', ')}"] if empty else [])


def _range(interval: DimInterval) -> str:
    if interval is _ALL:
        return "all"
    return f"{interval.start}:{interval.stop}"


def _listed(spec: DTensorSpec) -> list[str]:
    """Return a line for each rank: the ranges that it holds along each dimension."""
    lines: list[str] = []
    mesh: Any = spec.mesh.mesh
    for coordinate in itertools.islice(np.ndindex(*mesh.shape), _MAX_ROWS):
        ranges = [
            "+".join(
                f"{run.start + number * run.step}:{run.start + number * run.step + run.length}"
                for run in runs
                for number in range(min(run.count, _MAX_NAMED))
            )
            + ("+..." if any(run.count > _MAX_NAMED for run in runs) else "")
            for runs in spec.runs_of(coordinate)
        ]
        lines.append(f"rank {mesh[coordinate]} at {coordinate}: [{', '.join(ranges)}]")
    if mesh.size > _MAX_ROWS:
        lines.append(f"... and {mesh.size - _MAX_ROWS} ranks more")
    return lines
