"""`Layout`: the cuts of a tensor's dimensions, in any order of the mesh's dimensions.

Placements cut in the order of the mesh; intermediate layouts need not. A rank's part under a layout
contains its part under any layout that continues the same cuts, so the cuts alone show which steps
need no communication, for any number of ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from nbrt.distributed.sharding import Cut, cuts_of, dim_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.distributed.placements import Placement
    from nbrt.index_sets import Runs

__all__ = ["Layout", "continues", "cut_dims", "elements", "layout_of", "part_of", "shared"]

Layout: TypeAlias = tuple[tuple[Cut, ...], ...]
"""The cuts of each dimension of the tensor, in order."""


def layout_of(
    shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]
) -> Layout:
    """Return the cuts of placements, in the simplest equivalent form.

    Dimensions of the mesh with one rank do not cut. A strided cut that divides its dimension is
    equivalent to a plain cut after the cuts that make its chunks.

    Examples
    --------
    >>> from nbrt.distributed.placements import Shard, StridedShard
    >>> fsdp = layout_of((8,), (4, 2), [StridedShard(0, 2), Shard(0)])
    >>> [cut.mesh_dim for cut in fsdp[0]]
    [1, 0]
    """
    return tuple(
        _plain(size, [cut for cut in cuts if cut.ranks > 1])
        for size, cuts in zip(shape, cuts_of(len(shape), mesh_shape, placements), strict=True)
    )


def _plain(size: int, cuts: list[Cut]) -> tuple[Cut, ...]:
    for at in reversed(range(len(cuts))):
        cut = cuts[at]
        if cut.factor == 1 or not _divides(size, cuts[: at + 1]):
            continue
        chunks, end = 1, at + 1
        while end < len(cuts) and chunks < cut.factor and cuts[end].factor == 1:
            chunks *= cuts[end].ranks
            end += 1
        if chunks == cut.factor:
            cuts[at:end] = [*cuts[at + 1 : end], cut._replace(factor=1)]
    return tuple(cuts)


def _divides(size: int, cuts: list[Cut]) -> bool:
    """Return whether all cuts make equal pieces."""
    for cut in cuts:
        if size % (cut.ranks * cut.factor):
            return False
        size //= cut.ranks
    return True


def continues(longer: Layout, shorter: Layout) -> bool:
    """Return whether a layout begins with the cuts of another one, which contains its parts."""
    return all(ours[: len(cuts)] == cuts for ours, cuts in zip(longer, shorter, strict=True))


def shared(one: Sequence[Cut], other: Sequence[Cut]) -> int:
    """Return the number of equal cuts at the start of two sequences."""
    for count, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            return count
    return min(len(one), len(other))


def cut_dims(layout: Layout) -> set[int]:
    """Return the dimensions of the mesh that cut."""
    return {cut.mesh_dim for cuts in layout for cut in cuts}


def elements(shape: Sequence[int], layout: Layout) -> float:
    """Return the mean number of elements of a part, to compare costs."""
    return math.prod(shape) / math.prod(cut.ranks for cuts in layout for cut in cuts)


def part_of(
    shape: Sequence[int], layout: Layout, coordinate: Sequence[int]
) -> tuple[tuple[Runs, ...], ...]:
    """Return the indices along each dimension that the rank at a coordinate holds."""
    return tuple(dim_runs(size, cuts, coordinate) for size, cuts in zip(shape, layout, strict=True))
