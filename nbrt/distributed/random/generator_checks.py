"""Checks between ranks that draw together: equal states, and failures of single ranks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbrt import config
from nbrt.distributed.communicators.signatures import describe_error
from nbrt.distributed.consistency import check_alike
from nbrt.errors import RankFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.random.generator import Generator


__all__ = ["check_equal_states", "fail_together"]


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
