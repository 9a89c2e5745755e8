"""The elements of a tensor that a rank holds, and the ranks of an element, in closed form.

The functions take plain ints, do not communicate, and cost the same for any number of ranks and
elements.

Dimensions of the mesh split a dimension of the tensor one after the other: `Shard` into contiguous
chunks of ``ceil(n / ranks)`` indices, `StridedShard` into `split_factor` such chunks, each of which
is split for the ranks. So a rank holds few regular runs of indices (`Runs`): one, unless a strided
split does not divide its dimension. Two such splits leave about `split_factor` irregular runs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from nbrt._internal.checks import checked_ints, checked_shape
from nbrt.distributed.placements import Placement, Shard, StridedShard, checked_placements
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.index_sets import Runs, box_shape, compose, index_at, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "MeshSplit",
    "checked_coordinate",
    "chunk",
    "compute_local_shape",
    "compute_local_shape_and_global_offset",
    "dim_runs",
    "global_to_local",
    "local_runs",
    "local_to_global",
    "mesh_splits",
    "unchecked_local_runs",
]


class MeshSplit(NamedTuple):
    """One split of a dimension of the tensor by a dimension of the mesh.

    Attributes
    ----------
    mesh_dim : int
        The dimension of the mesh.
    ranks : int
        Its size.
    factor : int
        Number of chunks that are split separately: 1, or `split_factor` of a `StridedShard`.
    """

    mesh_dim: int
    ranks: int
    factor: int


def mesh_splits(
    ndim: int, mesh_shape: Sequence[int], placements: Sequence[Placement]
) -> tuple[tuple[MeshSplit, ...], ...]:
    """Return the splits of each dimension of a tensor, in the order of the mesh's dimensions."""
    splits: list[list[MeshSplit]] = [[] for _ in range(ndim)]
    for mesh_dim, (ranks, placement) in enumerate(zip(mesh_shape, placements, strict=True)):
        if isinstance(placement, Shard):
            splits[placement.dim].append(MeshSplit(mesh_dim, ranks, 1))
        elif isinstance(placement, StridedShard):
            splits[placement.dim].append(MeshSplit(mesh_dim, ranks, placement.split_factor))
    return tuple(tuple(dim_splits) for dim_splits in splits)


def chunk(size: int, pieces: int, index: int) -> tuple[int, int]:
    """Return start and length of a chunk of ``ceil(size / pieces)`` indices, as torch.chunk splits.

    Examples
    --------
    >>> [chunk(10, 4, index) for index in range(4)]
    [(0, 3), (3, 3), (6, 3), (9, 1)]
    """
    width = -(-size // pieces)
    start = min(size, index * width)
    return start, min(size - start, width)


def dim_runs(size: int, splits: Sequence[MeshSplit], coordinate: Sequence[int]) -> tuple[Runs, ...]:
    """Return the indices along a dimension that the rank at a coordinate holds, in order.

    Parameters
    ----------
    size : int
        Size of the dimension.
    splits : sequence of MeshSplit
        Its splits, in order.
    coordinate : sequence of int
        The rank's coordinate in the mesh.

    Returns
    -------
    runs : tuple of Runs
        At least one, and none continues the one before it; a rank without elements has one of
        length 0 that starts at the end.

    Examples
    --------
    >>> dim_runs(16, [MeshSplit(0, 2, 2), MeshSplit(1, 2, 1)], (1, 0))
    (Runs(start=4, length=4, count=1, step=0),)
    >>> dim_runs(16, [MeshSplit(0, 2, 2)], (1,))
    (Runs(start=4, length=4, count=2, step=8),)
    """
    cuts = [(each.ranks, each.factor, coordinate[each.mesh_dim]) for each in splits]
    return _runs_after(size, tuple([cut for cut in cuts if cut[0] > 1]))


@functools.lru_cache(maxsize=4096)
def _runs_after(size: int, cuts: tuple[tuple[int, int, int], ...]) -> tuple[Runs, ...]:
    """Return `dim_runs` after splits, each as ranks, factor and the place of the rank."""
    held: list[Runs] = [Runs(0, size)]
    for ranks, factor, place in cuts:
        length = sum(run.size for run in held)
        parts: list[Runs] = []
        for piece in _pieces(length, ranks, factor, place):
            if len(held) == 1 and held[0].count == 1:
                parts.append(piece._replace(start=held[0].start + piece.start))
            else:
                parts += compose(held, piece)
        held = join(parts)
        if not held:
            return (Runs(size, 0),)
    return tuple(held)


def local_runs(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
) -> tuple[tuple[Runs, ...], ...]:
    """Return, for each dimension of a tensor, the indices that the rank at a coordinate holds."""
    sizes, ranks, places = _checked(shape, mesh_shape, placements)
    place = checked_coordinate(coordinate, ranks)
    return unchecked_local_runs(sizes, ranks, place, places)


def unchecked_local_runs(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: tuple[Placement, ...],
) -> tuple[tuple[Runs, ...], ...]:
    """Return `local_runs` for the attributes of a spec and its mesh, which need no checks."""
    splits = mesh_splits(len(shape), mesh_shape, placements)
    return tuple(
        [dim_runs(size, each, coordinate) for size, each in zip(shape, splits, strict=True)]
    )


def compute_local_shape(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
) -> tuple[int, ...]:
    """Return the shape of what the rank at a coordinate holds."""
    runs = local_runs(shape, mesh_shape, coordinate, placements)
    return box_shape(runs)


def compute_local_shape_and_global_offset(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of what the rank at a coordinate holds, and its first indices.

    Parameters
    ----------
    shape : sequence of int
        Of the tensor.
    mesh_shape, coordinate : sequence of int
        Ranks along each dimension of the mesh, and this rank's place.
    placements : sequence of Placement
        One for each dimension of the mesh.

    Returns
    -------
    local_shape, global_offset : tuple of int
        As torch's function of that name; a rank without elements starts at the end.

    Examples
    --------
    >>> from nbrt.distributed import Shard
    >>> compute_local_shape_and_global_offset((10, 4), (4,), (3,), [Shard(0)])
    ((1, 4), (9, 0))
    """
    runs = local_runs(shape, mesh_shape, coordinate, placements)
    local = box_shape(runs)
    return local, tuple(each[0].start for each in runs)


def local_to_global(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
    index: Sequence[int],
) -> tuple[int, ...]:
    """Return the index in the tensor of the element at `index` of a rank's part.

    Raises
    ------
    ArgumentError
        If the rank has no such element.
    """
    runs = local_runs(shape, mesh_shape, coordinate, placements)
    local = box_shape(runs)
    positions = _checked_index(index, local, "an index in this rank's part,")
    return tuple(index_at(each, position) for each, position in zip(runs, positions, strict=True))


def global_to_local(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement],
    index: Sequence[int],
) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """Return the coordinate of the ranks that hold an element, and its index in their part.

    Returns
    -------
    coordinate : tuple of int or None
        Coordinate in the mesh; None along dimensions in which all ranks hold it.
    index : tuple of int
        Index of the element in their part.

    Raises
    ------
    ArgumentError
        If the tensor has no such element.

    Examples
    --------
    >>> from nbrt.distributed import Replicate, Shard
    >>> global_to_local((10, 4), (4, 2), [Shard(0), Replicate()], (9, 2))
    ((3, None), (0, 2))
    """
    sizes, ranks, places = _checked(shape, mesh_shape, placements)
    positions = _checked_index(index, sizes, "an index in a tensor")
    coordinate: list[int | None] = [None] * len(ranks)
    local = []
    for size, splits, where in zip(
        sizes, mesh_splits(len(sizes), ranks, places), positions, strict=True
    ):
        held = size
        for split in splits:
            rank, where = _owner(held, split, where)
            coordinate[split.mesh_dim] = rank
            held = sum(piece.size for piece in _pieces(held, split.ranks, split.factor, rank))
        local.append(where)
    return tuple(coordinate), tuple(local)


def _pieces(size: int, ranks: int, factor: int, rank: int) -> Iterator[Runs]:
    """Return the positions of a rank after one split: in the equal chunks, then in the rest."""
    width = -(-size // factor)
    whole = size // width if width else 0
    if whole:
        start, length = chunk(width, ranks, rank)
        if length == width:
            yield Runs(0, whole * width)
        elif whole == 1:
            yield Runs(start, length)
        else:
            yield Runs(start, length, whole, width)
    rest = size - whole * width
    if rest:
        start, length = chunk(rest, ranks, rank)
        yield Runs(whole * width + start, length)


def _owner(size: int, split: MeshSplit, position: int) -> tuple[int, int]:
    """Return the rank of a position after one split, and the position in that rank's part."""
    width = -(-size // split.factor)
    number, within = divmod(position, width)
    held = min(width, size - number * width)
    piece = -(-held // split.ranks)
    rank = within // piece
    before = number * chunk(width, split.ranks, rank)[1]
    return rank, before + within - rank * piece


def _checked(
    shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Placement, ...]]:
    """Return them as Python ints, which do not overflow, and without negative dims."""
    try:
        sizes, ranks = checked_shape(tuple(shape)), checked_shape(tuple(mesh_shape))
    except TypeError:
        raise ArgumentTypeError(
            f"expected shapes as sequences of ints, got {shape!r} and {mesh_shape!r} of the mesh"
        ) from None
    if 0 in ranks:
        raise ArgumentError(f"expected a mesh with ranks along each dimension, got shape {ranks}")
    return sizes, ranks, checked_placements(placements, len(ranks), len(sizes))


def checked_coordinate(coordinate: Sequence[int], mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the coordinate of a rank in a mesh as ints; raise if there is no such rank."""
    return _checked_index(coordinate, mesh_shape, "a rank's coordinate in a mesh")


def _checked_index(index: Sequence[int], shape: tuple[int, ...], what: str) -> tuple[int, ...]:
    positions = checked_ints(what, index)
    if len(positions) != len(shape) or not all(
        0 <= position < size for position, size in zip(positions, shape, strict=True)
    ):
        raise ArgumentError(f"expected {what} of shape {shape}, got {positions}")
    return positions
