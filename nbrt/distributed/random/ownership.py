"""Whose a generator is, where ranks are threads and might take each other's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.distributed.communicators.threads import ThreadCommunicator
from nbrt.random.defaults import checked_generator, default_generator

if TYPE_CHECKING:
    from nbrt.distributed.mesh import DeviceMesh
    from nbrt.random.generator import Generator

__all__ = ["own_generator"]


def own_generator(mesh: DeviceMesh, generator: Generator | None) -> Generator:
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
    everyone = mesh._communicator
    rank = everyone if isinstance(everyone, ThreadCommunicator) else None
    if rank is not None:
        rank.check_caller()
        if generator is None:
            rank.check_context()
    chosen = default_generator(mesh.device) if generator is None else checked_generator(generator)
    if rank is not None:
        rank.check_own(chosen)
    return chosen
