"""Ambient state of a rank: its world and its meshes, in ContextVars.

Ranks may be threads of one process, so nothing of a rank is a module global; a thread or an asyncio
task that a rank did not start belongs to the process itself.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

__all__ = ["default_generators", "mesh_stack", "meshes", "tracker", "world"]

world: ContextVar[Any] = ContextVar("nbrt_world", default=None)
"""The `Communicator` of all ranks; None: the process's own."""

mesh_stack: ContextVar[tuple[Any, ...]] = ContextVar("nbrt_mesh_stack", default=())
"""Meshes entered by ``with mesh:``, the innermost last."""

meshes: ContextVar[dict[Any, Any]] = ContextVar("nbrt_meshes", default={})  # noqa: B039
"""Meshes over which it made tensors, by equal value; the process's own by default."""

tracker: ContextVar[Any] = ContextVar("nbrt_rng_tracker", default=None)
"""The tracker of random numbers that was chosen; None: the default one."""

default_generators: ContextVar[Any] = ContextVar("nbrt_default_generators", default=None)
"""The default generators of its own; None: the process's."""
