"""Tensors and random numbers over many ranks: meshes, placements, communicators, trackers.

Every public name loads its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from nbrt.distributed.communicators.base import Communicator as Communicator
    from nbrt.distributed.creation.distribute import distribute_tensor as distribute_tensor
    from nbrt.distributed.creation.factories import empty as empty
    from nbrt.distributed.creation.factories import empty_like as empty_like
    from nbrt.distributed.creation.factories import full as full
    from nbrt.distributed.creation.factories import full_like as full_like
    from nbrt.distributed.creation.factories import ones as ones
    from nbrt.distributed.creation.factories import ones_like as ones_like
    from nbrt.distributed.creation.factories import zeros as zeros
    from nbrt.distributed.creation.factories import zeros_like as zeros_like
    from nbrt.distributed.dtensor import DTensor as DTensor
    from nbrt.distributed.index_maps import index_map as index_map
    from nbrt.distributed.launch import run as run
    from nbrt.distributed.mesh import DeviceMesh as DeviceMesh
    from nbrt.distributed.mesh import current_mesh as current_mesh
    from nbrt.distributed.mesh import init_device_mesh as init_device_mesh
    from nbrt.distributed.placements import Partial as Partial
    from nbrt.distributed.placements import Placement as Placement
    from nbrt.distributed.placements import Replicate as Replicate
    from nbrt.distributed.placements import Shard as Shard
    from nbrt.distributed.placements import StridedShard as StridedShard
    from nbrt.distributed.process_group import destroy_process_group as destroy_process_group
    from nbrt.distributed.process_group import get_rank as get_rank
    from nbrt.distributed.process_group import get_world_size as get_world_size
    from nbrt.distributed.process_group import init_process_group as init_process_group
    from nbrt.distributed.process_group import is_initialized as is_initialized
    from nbrt.distributed.process_group import world as world
    from nbrt.distributed.random.collisions import Collisions as Collisions
    from nbrt.distributed.random.collisions import collisions as collisions
    from nbrt.distributed.random.factories import rand as rand
    from nbrt.distributed.random.factories import rand_like as rand_like
    from nbrt.distributed.random.factories import randint as randint
    from nbrt.distributed.random.factories import randint_like as randint_like
    from nbrt.distributed.random.factories import randn as randn
    from nbrt.distributed.random.factories import randn_like as randn_like
    from nbrt.distributed.random.megatron import fork as fork
    from nbrt.distributed.random.megatron import get_rng_tracker as get_rng_tracker
    from nbrt.distributed.random.megatron import (
        model_parallel_manual_seed as model_parallel_manual_seed,
    )
    from nbrt.distributed.random.mesh_generator import MeshGenerator as MeshGenerator
    from nbrt.distributed.random.offset_based import OffsetBasedRNGTracker as OffsetBasedRNGTracker
    from nbrt.distributed.random.seeding import manual_seed as manual_seed
    from nbrt.distributed.random.state_tracker import RNGStateTracker as RNGStateTracker
    from nbrt.distributed.random.state_tracker import (
        SingleDeviceRNGTracker as SingleDeviceRNGTracker,
    )
    from nbrt.distributed.random.state_tracker import current_tracker as current_tracker
    from nbrt.distributed.random.state_tracker import set_tracker as set_tracker
    from nbrt.distributed.random.state_tracker import use_tracker as use_tracker
    from nbrt.distributed.redistribution.plan import RedistributionPlan as RedistributionPlan
    from nbrt.distributed.redistribution.plan import plan_redistribute as plan_redistribute
    from nbrt.distributed.replayable_ops import FromLocal as FromLocal
    from nbrt.distributed.replayable_ops import Redistribute as Redistribute
    from nbrt.distributed.sharding import compute_local_shape as compute_local_shape
    from nbrt.distributed.sharding import (
        compute_local_shape_and_global_offset as compute_local_shape_and_global_offset,
    )
    from nbrt.distributed.sharding import global_to_local as global_to_local
    from nbrt.distributed.sharding import local_to_global as local_to_global
    from nbrt.distributed.spec import DTensorSpec as DTensorSpec
    from nbrt.distributed.visualization.html import sharding_figure as sharding_figure
    from nbrt.distributed.visualization.text import visualize_sharding as visualize_sharding
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
