"""Write what torch's OffsetBasedRNGTracker computes to tests/data/torch_offset_tracker.json.

Needs torch; calls its own functions, for every rank of meshes of a fake process group.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

__all__ = ["main"]

_PATH = Path(__file__).parents[1] / "tests" / "data" / "torch_offset_tracker.json"
_MESHES = [(1,), (4,), (5,), (8,), (2, 2), (2, 3), (4, 2), (2, 2, 2)]
_SHAPES = [(0,), (1,), (4,), (8,), (10,), (12,), (16,), (17,), (8, 4), (5, 7), (3, 4, 5)]


def cases() -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]]:
    """Return meshes, shapes, and all lists of cuts and copies, and those of FSDP over TP."""
    found = []
    for mesh_shape, shape in itertools.product(_MESHES, _SHAPES):
        one = ["R", *(f"S({dim})" for dim in range(len(shape)))]
        placed = list(itertools.product(one, repeat=len(mesh_shape)))
        if len(mesh_shape) == 2:
            placed.append(("_S(0, 2)", "S(0)"))
        found += [(mesh_shape, shape, each) for each in placed]
    return found


def increments(
    mesh_shape: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, ...]
) -> list[list[int]]:
    """Return, for every rank, by how much its offset is ahead before and after a draw."""
    # Not import statements: torch is no dependency, and type checkers would look for it.
    torch: Any = importlib.import_module("torch")
    group: Any = importlib.import_module("torch.distributed")
    fake: Any = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    meshes: Any = importlib.import_module("torch.distributed.device_mesh")
    tensors: Any = importlib.import_module("torch.distributed.tensor")
    specs: Any = importlib.import_module("torch.distributed.tensor._dtensor_spec")
    strided: Any = importlib.import_module("torch.distributed.tensor.placement_types")._StridedShard
    known = {"R": tensors.Replicate(), "_S(0, 2)": strided(0, split_factor=2)}
    known.update({f"S({dim})": tensors.Shard(dim) for dim in range(len(shape))})
    size = math.prod(mesh_shape)
    found = []
    for rank in range(size):
        group.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=size)
        mesh = meshes.DeviceMesh("cpu", torch.arange(size).reshape(mesh_shape))
        strides = torch.empty(shape, device="meta").stride()
        meta = specs.TensorMeta(torch.Size(shape), strides, torch.float)
        placed = tuple(known[name] for name in names)
        spec = specs.DTensorSpec(mesh, placed, tensor_meta=meta)
        tracker = object.__new__(tensors._random.OffsetBasedRNGTracker)
        found.append([int(one) for one in tracker._compute_rng_offsets(spec)])
        group.destroy_process_group()
    return found


def main() -> None:
    """Write the file."""
    lines = [json.dumps([*case, increments(*case)]) for case in cases()]
    version = importlib.import_module("torch").__version__
    text = f'{{"torch": "{version}", "cases": [\n' + ",\n".join(lines) + "\n]}\n"
    _PATH.write_text(text, encoding="utf-8")
    print(f"{len(lines)} cases in {_PATH}")


if __name__ == "__main__":
    main()
