"""`collisions`: ranks that draw equal values under torch's offsets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.distributed.random.offsets import (
    compute_post_offset,
    first_shard_size,
)
from nbrt.distributed.sharding import mesh_splits
from nbrt.distributed.spec import checked_spec
from nbrt.errors import ArgumentTypeError
from nbrt.random.state import whole_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.distributed.sharding import MeshSplit
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.typing import HostArray

__all__ = ["Collisions", "collisions"]

_MAX_NAMED = 4
_LARGE = 2**60


class Collisions(NamedTuple):
    """Ranks that draw values of other ranks; one rank stands for all replicas of a shard.

    Attributes
    ----------
    equal : tuple of tuple of int
        Ranks of different shards whose draws start at the same offset: they are equal up to the
        shorter length. In the pairs below the first rank stands for all.
    overlapping : tuple of (int, int)
        Pairs of ranks; the draw of the second starts inside that of the first.
    next_draw : tuple of (int, int)
        Pairs of ranks; the second repeats values of the first in the next draw of the spec.
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
        more = len(said) - _MAX_NAMED
        return "; ".join([*said[:_MAX_NAMED], f"and {more} more"] if more > 0 else said)


class _Shards(NamedTuple):
    """Starts, stops and ranks of draws, sorted by start: int64, or Python ints if too large."""

    starts: HostArray
    stops: HostArray
    ranks: HostArray


def collisions(spec: DTensorSpec, words: Callable[[int], int] | None = None) -> Collisions:
    """Return which ranks draw equal values under an `OffsetBasedRNGTracker`.

    The cost is proportional to the number of shards and of pairs in the result.

    Parameters
    ----------
    spec : DTensorSpec
        The tensor.
    words : callable, optional
        Returns the offset that a plain draw of n elements adds; by default one block, as in torch's
        kernels for up to as many elements as the GPU runs threads.

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
    shards = _shards(spec, words)
    if not shards.starts.size:
        return Collisions()
    first = np.flatnonzero(np.append(True, shards.starts[1:] != shards.starts[:-1]))
    ends = np.append(first[1:], shards.starts.size)
    shared = np.flatnonzero(ends - first > 1)
    equal = tuple(
        tuple(sorted(shards.ranks[start:end].tolist()))
        for start, end in zip(first[shared], ends[shared], strict=True)
    )
    # The longest of the draws that start together is the last.
    leading = _Shards(
        shards.starts[first], shards.stops[ends - 1], np.minimum.reduceat(shards.ranks, first)
    )
    return Collisions(equal, *_overlaps(leading, compute_post_offset(spec.shape)))


def _overlaps(
    shards: _Shards, after: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Return the pairs that overlap in a draw, and with the next draw `after` words later."""
    starts, stops, ranks = shards
    at = np.arange(starts.size)
    one, other = _pairs(at + 1, np.searchsorted(starts, stops))
    now = zip(ranks[one].tolist(), ranks[other].tolist(), strict=True)
    reached = np.maximum.accumulate(stops)
    nearest = np.searchsorted(reached, starts - after, side="right")
    one, other = _pairs(nearest, np.searchsorted(starts, stops - after))
    again = stops[other] + after > starts[one]
    later = zip(ranks[one[again]].tolist(), ranks[other[again]].tolist(), strict=True)
    return tuple(now), tuple(later)


def _pairs(first: HostArray, stop: HostArray) -> tuple[HostArray, HostArray]:
    """Return pairs of each i with each number in range(first[i], stop[i])."""
    counts = np.maximum(stop - first, 0)
    one = np.repeat(np.arange(first.size), counts)
    return one, np.arange(one.size) + np.repeat(first - np.cumsum(counts) + counts, counts)


def _shards(spec: DTensorSpec, words: Callable[[int], int] | None) -> _Shards:
    """Return the draw of the first rank of each shard with elements."""
    shape, mesh_shape, placements = spec.shape, spec.mesh.shape, spec.placements
    splits = mesh_splits(spec.ndim, mesh_shape, placements)
    cutting = {split.mesh_dim for each in splits for split in each}
    local = math.prod(first_shard_size(shape, mesh_shape, placements))
    kind = np.int64 if spec.mesh.size() * local < _LARGE and spec.size < _LARGE else object
    places = [
        np.arange(ranks if dim in cutting else 1).reshape(-1, *[1] * (len(mesh_shape) - 1 - dim))
        for dim, ranks in enumerate(mesh_shape)
    ]
    index: Any = np.zeros([1] * len(mesh_shape), kind)
    counts: Any = np.ones([1] * len(mesh_shape), kind)
    for size, each in zip(shape, splits, strict=True):
        # With dimensions: an array of objects without becomes a plain int in arithmetic.
        held: Any = np.full([1] * len(mesh_shape), size, kind)
        for split in each:
            index = index * split.ranks + places[split.mesh_dim]
            held = _share(held, split, places[split.mesh_dim])
        counts = counts * held
    first = tuple(slice(None) if dim in cutting else 0 for dim in range(len(mesh_shape)))
    starts: Any = whole_blocks(index * local)
    counts, starts = counts.reshape(-1), starts.reshape(-1)
    ranks = spec.mesh.mesh[first].reshape(-1)
    kept = counts > 0
    counts, starts, ranks = counts[kept], starts[kept], ranks[kept]
    sizes, which = np.unique(counts, return_inverse=True)
    steps = [4 if words is None else words(int(size)) for size in sizes]
    stops = starts + np.array(steps, kind)[which]
    order = np.lexsort((ranks, stops, starts))
    return _Shards(starts[order], stops[order], ranks[order])


def _share(held: Any, split: MeshSplit, rank: Any) -> Any:
    """Return how many of `held` indices ranks get by a split: what `dim_runs` adds up to."""
    width = -(-held // split.factor)
    whole = held // np.maximum(width, 1)
    rest = held - whole * width

    def chunk(size: Any) -> Any:
        most = -(-size // split.ranks)
        return np.clip(size - rank * most, 0, most)

    return whole * chunk(width) + chunk(rest)
