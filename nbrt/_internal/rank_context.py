"""Ambient state of a rank, in ContextVars: its world, meshes, tracker and generators.

Ranks may be threads of one process, so no state of a rank is a module global. A thread or asyncio
task that no rank started belongs to the process.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

__all__ = ["default_generators", "mesh_stack", "meshes", "tracker", "world"]

world: ContextVar[Any] = ContextVar("nbrt_world", default=None)
"""The `Communicator` of all ranks; None: that of the process."""

mesh_stack: ContextVar[tuple[Any, ...]] = ContextVar("nbrt_mesh_stack", default=())
"""The meshes entered by ``with mesh:``, the innermost last."""

meshes: ContextVar[dict[Any, Any]] = ContextVar("nbrt_meshes", default={})  # noqa: B039
"""The meshes of the rank's tensors, by equal value; those of the process by default."""

tracker: ContextVar[Any] = ContextVar("nbrt_rng_tracker", default=None)
"""The tracker of random numbers; None: the default one."""

default_generators: ContextVar[Any] = ContextVar("nbrt_default_generators", default=None)
"""The default generators of the rank; None: those of the process."""
