"""Programs of distributed tensors, run eagerly or as the replays of one graph a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import nbrt
import nbrt.distributed as dist
from nbrt.distributed import DTensor, Partial, Replicate, Shard

R, S0, S1 = Replicate(), Shard(0), Shard(1)

Program: TypeAlias = Callable[[dist.DeviceMesh, Any, nbrt.Generator], list[Any]]


def line() -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu", (dist.get_world_size(),))


def bits(arrays: list[Any]) -> list[Any]:
    return [(array.shape, str(array.dtype), np.array(array).tobytes()) for array in arrays]


def outcomes(program: Program, ranks: int, how: str, runs: int = 3) -> list[Any]:
    """Return what runs of a program on ranks give: bits of its arrays, and states of generators."""

    def rank() -> Any:
        mesh = line()
        x = nbrt.asarray(np.arange(12.0).reshape(4, 3) * (dist.get_rank() + 1))
        own = nbrt.Generator(5)
        nbrt.default_generator().manual_seed(3)
        found: list[Any] = []
        arrays: list[Any] = []
        if how != "eager":
            with nbrt.graph(deterministic=how == "deterministic") as g:
                arrays = program(mesh, x, own)
            assert own.get_offset() == nbrt.default_generator().get_offset() == 0
        for _ in range(runs):
            if how == "eager":
                arrays = program(mesh, x, own)
            else:
                g.replay()
            states = own.state, nbrt.default_generator().state
            found.append((bits(arrays), states, dist.current_tracker().get_states()))
            x += 0.5
        return found

    return dist.run(rank, ranks=ranks, timeout=60)


def check(program: Program, ranks: int) -> None:
    eager = outcomes(program, ranks, "eager")
    assert eager[0][0] != eager[0][1]
    assert outcomes(program, ranks, "captured") == eager
    assert outcomes(program, ranks, "deterministic") == eager


def moves(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
    del own
    terms = DTensor.from_local(x, mesh, [Partial()])
    rows = terms.redistribute(placements=[S0])
    columns = rows.redistribute(placements=[S1])
    average = columns.redistribute(placements=[Partial("avg")]).full_tensor()
    return [rows.to_local(), columns.to_local(), columns.full_tensor(), average]


def draws(mesh: dist.DeviceMesh, x: Any, own: nbrt.Generator) -> list[Any]:
    tensor = DTensor.from_local(x, mesh, [S0])
    first = dist.rand(9, device_mesh=mesh, placements=[S0])
    second = dist.randn(5, 7, device_mesh=mesh, placements=[S1], generator=own)
    third = dist.randint(100, (11,), device_mesh=mesh, placements=[S0])
    copied = tensor.redistribute(placements=[R])
    nbrt.random.uniform_(copied, generator=own)
    half = dist.MeshGenerator(mesh, [S0], own).standard_normal(6, dtype=np.float16)
    mixed = dist.MeshGenerator(mesh, [R]).exponential(size=3)
    parts = [each.to_local() for each in (first, second, third, copied, half, mixed)]
    return [*parts, second.full_tensor(), first.redistribute(placements=[R]).to_local()]
