"""Tensors and random numbers over many ranks: meshes, placements, communicators, trackers.

Names are loaded when they are first asked for (PEP 562), as in `nbrt` itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrt.distributed.communicators.base import Communicator
    from nbrt.distributed.distribute import distribute_tensor
    from nbrt.distributed.dtensor import DTensor
    from nbrt.distributed.factories import (
        empty,
        empty_like,
        full,
        full_like,
        ones,
        ones_like,
        zeros,
        zeros_like,
    )
    from nbrt.distributed.index_maps import index_map
    from nbrt.distributed.launch import run
    from nbrt.distributed.mesh import DeviceMesh, current_mesh, init_device_mesh
    from nbrt.distributed.picture import sharding_figure
    from nbrt.distributed.placements import Partial, Placement, Replicate, Shard, StridedShard
    from nbrt.distributed.prims import FromLocal, Redistribute
    from nbrt.distributed.process_group import (
        destroy_process_group,
        get_rank,
        get_world_size,
        init_process_group,
        is_initialized,
        world,
    )
    from nbrt.distributed.random.collisions import Collisions, collisions
    from nbrt.distributed.random.current import current_tracker, set_tracker, use_tracker
    from nbrt.distributed.random.factories import (
        rand,
        rand_like,
        randint,
        randint_like,
        randn,
        randn_like,
    )
    from nbrt.distributed.random.mesh_generator import MeshGenerator
    from nbrt.distributed.random.named import fork, get_rng_tracker, model_parallel_manual_seed
    from nbrt.distributed.random.offset_based import OffsetBasedRNGTracker
    from nbrt.distributed.random.seeding import manual_seed
    from nbrt.distributed.random.single_device import SingleDeviceRNGTracker
    from nbrt.distributed.random.state_tracker import RNGStateTracker
    from nbrt.distributed.redistribution.plan import Plan, plan_redistribute
    from nbrt.distributed.sharding import (
        compute_local_shape,
        compute_local_shape_and_global_offset,
        global_to_local,
        local_to_global,
    )
    from nbrt.distributed.spec import DTensorSpec
    from nbrt.distributed.visualize import visualize_sharding

__all__ = [
    "Collisions",
    "Communicator",
    "DTensor",
    "DTensorSpec",
    "DeviceMesh",
    "FromLocal",
    "MeshGenerator",
    "OffsetBasedRNGTracker",
    "Partial",
    "Placement",
    "Plan",
    "RNGStateTracker",
    "Redistribute",
    "Replicate",
    "Shard",
    "SingleDeviceRNGTracker",
    "StridedShard",
    "collisions",
    "compute_local_shape",
    "compute_local_shape_and_global_offset",
    "current_mesh",
    "current_tracker",
    "destroy_process_group",
    "distribute_tensor",
    "empty",
    "empty_like",
    "fork",
    "full",
    "full_like",
    "get_rank",
    "get_rng_tracker",
    "get_world_size",
    "global_to_local",
    "index_map",
    "init_device_mesh",
    "init_process_group",
    "is_initialized",
    "local_to_global",
    "manual_seed",
    "model_parallel_manual_seed",
    "ones",
    "ones_like",
    "plan_redistribute",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "run",
    "set_tracker",
    "sharding_figure",
    "use_tracker",
    "visualize_sharding",
    "world",
    "zeros",
    "zeros_like",
]

_HOMES = {
    "communicators.base": "Communicator",
    "distribute": "distribute_tensor",
    "dtensor": "DTensor",
    "factories": "empty empty_like full full_like ones ones_like zeros zeros_like",
    "index_maps": "index_map",
    "launch": "run",
    "mesh": "DeviceMesh current_mesh init_device_mesh",
    "picture": "sharding_figure",
    "placements": "Partial Placement Replicate Shard StridedShard",
    "prims": "FromLocal Redistribute",
    "process_group": (
        "destroy_process_group get_rank get_world_size init_process_group is_initialized world"
    ),
    "random.collisions": "Collisions collisions",
    "random.current": "current_tracker set_tracker use_tracker",
    "random.factories": "rand rand_like randint randint_like randn randn_like",
    "random.mesh_generator": "MeshGenerator",
    "random.named": "fork get_rng_tracker model_parallel_manual_seed",
    "random.offset_based": "OffsetBasedRNGTracker",
    "random.seeding": "manual_seed",
    "random.single_device": "SingleDeviceRNGTracker",
    "random.state_tracker": "RNGStateTracker",
    "redistribution.plan": "Plan plan_redistribute",
    "sharding": (
        "compute_local_shape compute_local_shape_and_global_offset global_to_local local_to_global"
    ),
    "spec": "DTensorSpec",
    "visualize": "visualize_sharding",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'nbrt.distributed' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nbrt.distributed.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
