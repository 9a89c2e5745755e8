"""Whose a generator is, where ranks are threads and might take each other's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbrt import config
from nbrt.distributed.communicators.signatures import describe_error
from nbrt.distributed.consistency import check_alike
from nbrt.errors import RankFailedError
from nbrt.random.defaults import checked_generator, default_generator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.random.generator import Generator


__all__ = ["check_equal_states", "checked_rank_generator", "failing_together"]


def checked_rank_generator(mesh: DeviceMesh, generator: Generator | None) -> Generator:
    """Return the generator that the running rank draws from over a mesh.

    Parameters
    ----------
    mesh : DeviceMesh
        Of the running rank.
    generator : Generator or None
        None: the default one of the rank's device.

    Raises
    ------
    DistributedError
        If ranks are threads, and the mesh is another rank's; or another one of them draws from the
        generator too, so each would take what the other should; or the default one is the process's
        because the running thread is not in the rank's context.
    """
    chosen = default_generator(mesh.device) if generator is None else checked_generator(generator)
    mesh.communicator.check_rank(chosen, is_default=generator is None)
    return chosen


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
    """Raise on all ranks of a mesh if they are about to draw together from different states.

    Takes one exchange of small objects; without it, parts of different tensors make up one.
    """
    if mesh.get_coordinate() is None:
        return
    group = mesh.get_group()
    states = group.all_gather_object(repr(generator.state))
    advice = "call nbrt.distributed.manual_seed(seed, mesh) before"
    check_alike(states, group.ranks, "state of the generator", advice=advice)
