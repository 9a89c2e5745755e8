"""Write how torch cuts tensors for ranks, as golden data: ``python tools/torch_sharding.py FILE``.

The file belongs in ``tests/data/``. Needs torch, but no process group: the functions that DTensor
uses take plain shapes. A case holds, for every coordinate of the mesh in row-major order, the local
shape, the offset, and a CRC-32 of the elements (as little-endian int64) that torch gives the rank
when it cuts an ``arange`` of the shape.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import random
import sys
import zlib
from pathlib import Path
from typing import Any

__all__ = ["main"]

_CASES = 320
_SIZES = (0, 1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 17)
_MESHES = ((1,), (2,), (3,), (4,), (7,), (2, 2), (2, 3), (4, 2), (1, 3), (2, 2, 2), (3, 1, 2))


def main(path: str) -> None:
    """Write the cases to a file."""
    torch = importlib.import_module("torch")
    chosen = random.Random(2**31 - 1)
    known: dict[Any, None] = {}
    while len(known) < _CASES:
        shape = tuple(chosen.choice(_SIZES) for _ in range(chosen.randint(1, 3)))
        mesh = chosen.choice(_MESHES)
        places = tuple(_placement(chosen, len(shape)) for _ in mesh)
        known[shape, mesh, places] = None
    cases = [
        {
            "shape": shape,
            "mesh": mesh,
            "placements": places,
            "shards": [_shard(shape, mesh, places, at) for at in _coordinates(mesh)],
        }
        for shape, mesh, places in known
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(path).write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')


def _placement(chosen: random.Random, ndim: int) -> tuple[int, ...]:
    """Return (): replicated; (dim,): cut; (dim, split_factor): strided."""
    dim = chosen.randrange(ndim)
    strided = (dim, chosen.choice((1, 2, 3, 4)))
    return chosen.choice(((), (dim,), (dim,), (dim,), strided, strided))


def _coordinates(mesh: tuple[int, ...]) -> Any:
    return itertools.product(*map(range, mesh))


def _shard(shape: Any, mesh: Any, places: Any, coordinate: tuple[int, ...]) -> list[Any]:
    torch = importlib.import_module("torch")
    kinds = importlib.import_module("torch.distributed.tensor.placement_types")
    utils = importlib.import_module("torch.distributed.tensor._utils")
    made = [
        kinds._StridedShard(place[0], split_factor=place[1])
        if len(place) == 2
        else kinds.Shard(place[0])
        if place
        else kinds.Replicate()
        for place in places
    ]
    local, offset = utils._compute_local_shape_and_global_offset(shape, mesh, coordinate, made)
    held = torch.arange(math.prod(shape)).reshape(shape)
    for place, ranks, at in zip(made, mesh, coordinate, strict=True):
        if not isinstance(place, kinds.Replicate):
            held = place._split_tensor(held, ranks, with_padding=False)[0][at]
    return [local, offset, zlib.crc32(held.contiguous().numpy().tobytes())]


if __name__ == "__main__":
    main(*sys.argv[1:])
