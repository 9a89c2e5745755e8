"""Checks that values agree between ranks, and that their parts form one tensor."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt import config
from nbrt.distributed.communicators.fake import computes
from nbrt.distributed.communicators.signatures import describe_error
from nbrt.distributed.placements import Replicate
from nbrt.distributed.sharding import compute_local_shape, mesh_splits
from nbrt.errors import RankFailedError, RankMismatchError
from nbrt.runtime.array import to_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.distributed.placements import Placement
    from nbrt.random.generator import Generator
    from nbrt.typing import Array

__all__ = ["agree_on_shape", "check_alike", "check_equal_states", "fail_together"]

_MAX_NAMED = 8


class _SignaturePart(NamedTuple):
    """The description of a rank's part that all ranks exchange."""

    shape: tuple[int, ...]
    dtype: str
    wanted: tuple[int, ...] | None
    placements: str
    digest: bytes | None


def agree_on_shape(
    local: Array,
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    shape: tuple[int, ...] | None,
) -> tuple[int, ...]:
    """Return the shape of the tensor of all ranks' parts, after one small collective.

    `shape` is the expected shape; None: computed from the parts.

    Raises
    ------
    RankMismatchError
        On every rank of the mesh, naming a rank that differs in dtype, number of dimensions,
        `shape`, placements, shape of its part, or bits of replicated values.
    """
    replicated = any(isinstance(each, Replicate) for each in placements)
    mine = _SignaturePart(
        tuple(local.shape),
        str(local.dtype),
        shape,
        str([str(each) for each in placements]),
        _digest(local) if replicated and computes(mesh.device) else None,
    )
    parts: list[_SignaturePart] = mesh.get_group().all_gather_object(mine)
    ranks = [int(rank) for rank in np.ravel(mesh.mesh)]
    check_alike(parts, ranks, "dtype", lambda part: part.dtype)
    check_alike(parts, ranks, "number of dimensions", lambda part: len(part.shape))
    check_alike(parts, ranks, "shape of the tensor", lambda part: part.wanted)
    check_alike(parts, ranks, "placements", lambda part: part.placements)
    coordinates = list(itertools.product(*(range(n) for n in mesh.shape)))
    held = dict(zip(coordinates, parts, strict=True))
    whole = _whole_shape(held, mesh.shape, placements) if shape is None else shape
    for rank, coordinate in zip(ranks, coordinates, strict=True):
        expected = compute_local_shape(whole, mesh.shape, coordinate, placements)
        if held[coordinate].shape != expected:
            raise RankMismatchError(
                f"expected rank {rank} to have a part of shape {expected} of a tensor of shape "
                f"{whole} placed {[str(each) for each in placements]}, got "
                f"{held[coordinate].shape}"
            )
    if replicated:
        _check_replicas(held, ranks, placements)
    return whole


def check_alike(
    values: Sequence[Any],
    ranks: Sequence[int],
    what: str,
    key: Callable[[Any], Any] = lambda value: value,
    advice: str = "",
) -> None:
    """Raise, naming the ranks, if some differ from the majority in a value that `key` returns."""
    said = [key(value) for value in values]
    usual = Counter(said).most_common(1)[0][0]
    others = [(rank, each) for rank, each in zip(ranks, said, strict=True) if each != usual]
    if others:
        named = ", ".join(f"{each} on rank {rank}" for rank, each in others[:_MAX_NAMED])
        more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
        raise RankMismatchError(
            f"expected the same {what} on every rank, {usual} as most have, got {named}{more}"
            + (f"; {advice}" if advice else "")
        )


@contextmanager
def fail_together(mesh: DeviceMesh) -> Iterator[None]:
    """Raise on all ranks of a mesh if a block raises on some of them.

    The ranks exchange objects at the end of the block. Ranks that are processes do this only with
    ``NBRT_DISTRIBUTED_CHECK=1``.

    Raises
    ------
    RankFailedError
        On the ranks whose block did not raise; it names the first rank whose block did.
    """
    is_enabled = mesh.communicator.is_in_process or config.settings().distributed_check
    if mesh.size() == 1 or mesh.get_coordinate() is None or not is_enabled:
        yield
        return
    group = mesh.get_group()
    try:
        yield
    except Exception as error:
        group.all_gather_object(describe_error(error))
        raise
    for rank, failure in zip(group.ranks, group.all_gather_object(None), strict=True):
        if failure is not None:
            raise RankFailedError(
                f"expected every rank to draw its part, but rank {rank} raised {failure}", rank
            )


def check_equal_states(generator: Generator, mesh: DeviceMesh) -> None:
    """Raise on all ranks of a mesh if the states of their generators differ.

    This takes one exchange of small objects. Without it, the parts could belong to different draws.
    """
    if mesh.get_coordinate() is None:
        return
    group = mesh.get_group()
    states = group.all_gather_object(repr(generator.state))
    advice = "call nbrt.distributed.manual_seed(seed, mesh) before"
    check_alike(states, group.ranks, "state of the generator", advice=advice)


def _whole_shape(
    held: dict[tuple[int, ...], _SignaturePart],
    mesh_shape: tuple[int, ...],
    placements: tuple[Placement, ...],
) -> tuple[int, ...]:
    """Return the sums of the sizes of parts along the dimensions of the mesh that split them."""
    ndim = len(next(iter(held.values())).shape)
    sizes = []
    for dim, splits in enumerate(mesh_splits(ndim, mesh_shape, placements)):
        cutting = {split.mesh_dim for split in splits}
        sizes.append(
            sum(
                part.shape[dim]
                for coordinate, part in held.items()
                if not any(at for each, at in enumerate(coordinate) if each not in cutting)
            )
        )
    return tuple(sizes)


def _check_replicas(
    held: dict[tuple[int, ...], _SignaturePart],
    ranks: Sequence[int],
    placements: tuple[Placement, ...],
) -> None:
    same: dict[tuple[int, ...], list[tuple[int, bytes | None]]] = {}
    for rank, (coordinate, part) in zip(ranks, held.items(), strict=True):
        place = tuple(
            at
            for at, each in zip(coordinate, placements, strict=True)
            if not isinstance(each, Replicate)
        )
        same.setdefault(place, []).append((rank, part.digest))
    for replicas in same.values():
        usual = Counter(digest for _, digest in replicas).most_common(1)[0][0]
        others = [rank for rank, digest in replicas if digest != usual]
        if others:
            raise RankMismatchError(
                f"expected the same values on ranks {[rank for rank, _ in replicas]}, which hold "
                f"replicas, got others on rank{'s' * (len(others) > 1)} "
                f"{', '.join(map(str, others))}; make them alike, or place them as Partial"
            )


def _digest(local: Array) -> bytes:
    """Return a digest of the bits of an array."""
    return hashlib.blake2b(to_host(local, copy=None).tobytes(), digest_size=16).digest()
