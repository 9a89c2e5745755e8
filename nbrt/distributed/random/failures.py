"""Failures of one rank's part of a draw, made known to the ranks whose parts were fine."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbrt import config
from nbrt.distributed.communicators.headers import described
from nbrt.distributed.communicators.threads import ThreadCommunicator
from nbrt.errors import RankFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.distributed.mesh import DeviceMesh

__all__ = ["failing_together"]


@contextmanager
def failing_together(mesh: DeviceMesh) -> Iterator[None]:
    """Let an exception of a block on some ranks of a mesh raise on all of them.

    They meet at its end, which is cheap where ranks are threads; other ranks do so with
    ``NBRT_DISTRIBUTED_CHECK=1``.

    Raises
    ------
    RankFailedError
        On a rank whose own block did not raise, naming the first one whose did.
    """
    is_cheap = isinstance(mesh.communicator, ThreadCommunicator)
    is_asked = is_cheap or config.settings().distributed_check
    if mesh.size() == 1 or mesh.get_coordinate() is None or not is_asked:
        yield
        return
    group = mesh.get_group()
    try:
        yield
    except Exception as error:
        group.all_gather_object(described(error))
        raise
    for rank, failure in zip(group.ranks, group.all_gather_object(None), strict=True):
        if failure is not None:
            raise RankFailedError(
                f"expected every rank to draw its part, but rank {rank} raised {failure}", rank
            )
