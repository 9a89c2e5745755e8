"""The meshes that the running rank made tensors over, found by equal value.

Groups belong to a mesh, and the ranks of a mesh must make them alike; so a mesh that comes from
elsewhere, such as a recorded program, is replaced by the one that this rank used before.
"""

from __future__ import annotations

from nbrt._internal import rank_context
from nbrt.distributed.mesh import DeviceMesh, checked_mesh
from nbrt.distributed.process_group import world

__all__ = ["own_mesh", "remember"]


def remember(mesh: DeviceMesh) -> None:
    """Note a mesh of the running rank, unless an equal one is known."""
    rank_context.meshes.get().setdefault(mesh, mesh)


def own_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the running rank's mesh that equals one, in its own world; made if there is none."""
    known = rank_context.meshes.get()
    found: DeviceMesh | None = known.get(checked_mesh(mesh))
    if found is None or found.communicator is not world():
        found = DeviceMesh(mesh.device_kind, mesh.mesh, mesh.mesh_dim_names)
        known.pop(mesh, None)
        known[found] = found
    return found
