"""Which ranks draw equal values where torch's offsets start their shards."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from nbrt.distributed.random.offsets import (
    compute_post_offset,
    first_shard_size,
    shard_linear_index,
)
from nbrt.distributed.sharding import cuts_of, dim_runs
from nbrt.distributed.spec import checked_spec
from nbrt.errors import ArgumentTypeError
from nbrt.random.state import whole_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.distributed.sharding import Cut
    from nbrt.distributed.spec import DTensorSpec

__all__ = ["Collisions", "collisions"]

_MOST_NAMED = 4


class Collisions(NamedTuple):
    """Ranks that draw what others draw; the first rank stands for all that hold the same shard.

    Attributes
    ----------
    equal : tuple of tuple of int
        Ranks of different shards whose draws start at the same place: they are equal as far as both
        go. In the pairs below the first of them stands for all.
    overlapping : tuple of (int, int)
        Pairs of ranks of which the second starts in the middle of what the first one draws.
    next_draw : tuple of (int, int)
        Pairs of a rank and one that draws values of it again in the next draw of such a tensor.
    """

    equal: tuple[tuple[int, ...], ...] = ()
    overlapping: tuple[tuple[int, int], ...] = ()
    next_draw: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        said = [
            *(f"ranks {', '.join(map(str, group))} draw equal values" for group in self.equal),
            *(
                f"rank {second} repeats values of rank {first}"
                for first, second in self.overlapping
            ),
            *(
                f"rank {second} repeats values of rank {first} in the next draw"
                for first, second in self.next_draw
            ),
        ]
        more = len(said) - _MOST_NAMED
        return "; ".join([*said[:_MOST_NAMED], f"and {more} more"] if more > 0 else said)


class _Shard(NamedTuple):
    start: int
    stop: int
    rank: int


def collisions(spec: DTensorSpec, words: Callable[[int], int] | None = None) -> Collisions:
    """Return which ranks draw equal values under an `OffsetBasedRNGTracker`.

    The cost is in proportion to the number of shards, and of pairs that are found.

    Parameters
    ----------
    spec : DTensorSpec
        The tensor.
    words : callable, optional
        Returns by how much a plain draw of n elements moves the offset; by default by one block,
        as torch's kernels do for up to as many elements as the GPU runs threads.

    Examples
    --------
    >>> import nbrt.distributed as dist
    >>> def draw():
    ...     mesh = dist.init_device_mesh("cpu", (4,))
    ...     return collisions(dist.DTensorSpec(mesh, [dist.Shard(0)], (8,), "float32"))
    >>> dist.run(draw, ranks=4)[0]
    Collisions(equal=((1, 2),), overlapping=(), next_draw=((3, 0),))
    """
    checked_spec(spec)
    if words is not None and not callable(words):
        raise ArgumentTypeError(f"expected words as a function of a number, got {words!r}")
    by_start = itertools.groupby(sorted(_shards(spec, words)), key=lambda shard: shard.start)
    groups = [list(group) for _, group in by_start]
    equal = tuple(tuple(sorted(each.rank for each in group)) for group in groups if len(group) > 1)
    # Of those that start together, the one that goes furthest.
    leading = [group[-1]._replace(rank=min(each.rank for each in group)) for group in groups]
    starts = [shard.start for shard in leading]
    longest = max((shard.stop - shard.start for shard in leading), default=0)
    overlapping: list[tuple[int, int]] = []
    again: list[tuple[int, int]] = []
    after = compute_post_offset(spec.shape)
    for at, (start, stop, rank) in enumerate(leading):
        until = bisect_left(starts, stop)
        overlapping += [(rank, other.rank) for other in leading[at + 1 : until]]
        nearest = bisect_left(starts, start - after - longest)
        candidates = leading[nearest : bisect_left(starts, stop - after)]
        again += [(rank, other.rank) for other in candidates if other.stop + after > start]
    return Collisions(equal, tuple(overlapping), tuple(again))


def _shards(spec: DTensorSpec, words: Callable[[int], int] | None) -> Iterator[_Shard]:
    """Give, for each shard that has elements, what its first rank draws."""
    shape, mesh_shape, placements = spec.shape, spec.mesh.shape, spec.placements
    cuts = cuts_of(spec.ndim, mesh_shape, placements)
    cutting = {cut.mesh_dim for each in cuts for cut in each}
    places = (range(n) if dim in cutting else range(1) for dim, n in enumerate(mesh_shape))
    local = math.prod(first_shard_size(shape, mesh_shape, placements))
    lengths: dict[tuple[int, ...], int] = {}
    steps: dict[int, int] = {}
    for place in itertools.product(*places):
        count = 1
        for dim, each in enumerate(cuts):
            count *= _length(lengths, dim, shape[dim], each, place)
        if not count:
            continue
        if count not in steps:
            steps[count] = 4 if words is None else words(count)
        start = whole_blocks(shard_linear_index(spec.ndim, mesh_shape, place, placements) * local)
        yield _Shard(start, start + steps[count], int(spec.mesh.mesh[place]))


def _length(
    known: dict[tuple[int, ...], int],
    dim: int,
    size: int,
    cuts: tuple[Cut, ...],
    place: tuple[int, ...],
) -> int:
    """Return how many indices of a dimension a place of the mesh holds."""
    key = (dim, *(place[cut.mesh_dim] for cut in cuts))
    if key not in known:
        known[key] = sum(run.size for run in dim_runs(size, cuts, place))
    return known[key]
