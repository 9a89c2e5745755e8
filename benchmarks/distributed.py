"""Distributed random numbers: the cost of a shard, of a tracker, and of a plan.

A draw does not communicate, so the benchmark measures one rank of a simulated world.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
import nbrt.distributed as dist
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, absent, measure
from benchmarks.peers import find
from benchmarks.random_peers import row
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH = 4096
_SMALL = 16
_RANKS = (8, 1000, 1_000_000)
_S, _STRIDED = dist.Shard, dist.StridedShard
_SHARDINGS: tuple[tuple[str, tuple[int, ...], tuple[Any, ...]], ...] = (
    ("rows, 8 ranks", (8,), (_S(0),)),
    ("columns, 8 ranks", (8,), (_S(1),)),
    ("blocks, 2 x 4 ranks", (2, 4), (_S(0), _S(1))),
    ("rows cut twice, 2 x 4 ranks", (2, 4), (_S(0), _S(0))),
    ("strided rows, 2 x 4 ranks", (2, 4), (_STRIDED(0, 4), _S(0))),
    ("strided columns, 8 ranks", (8,), (_STRIDED(1, 4),)),
    ("uneven strided rows, 7 ranks", (7,), (_STRIDED(0, 5),)),
    ("columns, 61 ranks", (61,), (_S(1),)),
)


class _OneOf:
    """A communicator of one rank without the other ranks, which a draw does not need."""

    timeout = 1.0

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.ranks = range(size)
        self.device = nbrt.Device("cpu", 0)

    def check_rank(self, generator: object, is_default: bool = False) -> None:
        """Allow every generator: a process is one rank."""


def _mesh(shape: Sequence[int]) -> dist.DeviceMesh:
    size = int(np.prod(shape))
    everyone: Any = _OneOf(size // 3, size)
    return dist.DeviceMesh("cpu", np.arange(size).reshape(shape), communicator=everyone)


# -- in a pinned process ---------------------------------------------------------------------------


def worker(cores: int, quick: bool, *groups: str) -> dict[str, list[Measurement]]:
    """Measure in this process, which is pinned already."""
    short = Options(passes=3 if quick else 9, sample_seconds=0.0)
    fine = Options.quick() if quick else Options()
    found: dict[str, list[Measurement]] = {}
    if "shards" in groups:
        for method in ("random", "standard_normal"):
            found[method] = _shards(method, _WIDTH // 8 if quick else _WIDTH, short)
    if "small" in groups:
        found["small"] = measure(_small(), fine)
    if "plans" in groups:
        found["plans"] = measure(_plans(), fine)
    if "jax" in groups:
        found["jax"] = measure(_jax(_WIDTH // 8 if quick else _WIDTH), short)
    return found


def _shards(method: str, rows: int, options: Options) -> list[Measurement]:
    """Return the time of a rank's draw, each behind that of a local draw of as many elements."""
    found = []
    for name, mesh, placements in _SHARDINGS:
        x = dist.empty(rows, _WIDTH, device_mesh=_mesh(mesh), placements=placements)
        local = nbrt.empty(x.to_local().shape, device="cpu:0")
        alone = getattr(nbrt.Generator(1, device="cpu:0"), method)
        over = dist.MeshGenerator(
            x.device_mesh, placements, generator=nbrt.Generator(1, device="cpu:0")
        )
        both = [
            row(f"local, {local.shape}", partial(_filling, alone, local)),
            row(name, partial(_filling, getattr(over, method), x)),
        ]
        plain, sharded = measure(both, options)
        if plain.seconds and sharded.seconds:
            sharded = replace(sharded, note=f"{sharded.ratio_to(plain):.3g} x local")
        found += [plain, sharded]
    return found


def _filling(method: Callable[..., Any], out: Any) -> Callable[[], object]:
    return partial(method, dtype=np.float32, out=out)


def _small() -> list[Contender]:
    """Return 16 elements drawn alone, in a region, and as a DTensor."""
    mesh = _mesh((8,))
    x = dist.empty(8 * _SMALL, device_mesh=mesh, placements=[dist.Shard(0)])
    local = x.to_local()
    rng = nbrt.Generator(1, device="cpu:0")
    tracker = dist.SingleDeviceRNGTracker()
    offset_based = dist.OffsetBasedRNGTracker(mesh, run_state_sync=False)

    def region(chosen: Any) -> Callable[[], object]:
        def draw() -> None:
            with chosen.distribute_region(x.spec, rng) as part:
                part.random(dtype=np.float32, out=local)

        return draw

    return [
        row("alone", lambda: partial(rng.random, dtype=np.float32, out=local)),
        row("in a region, single-device tracker", lambda: region(tracker)),
        row("in a region, offset-based tracker", lambda: region(offset_based)),
        row("uniform_(dtensor)", lambda: partial(nbrt.random.uniform_, x, generator=rng)),
        row(
            "rand(n, device_mesh=, placements=)",
            lambda: partial(
                dist.rand,
                8 * _SMALL,
                device_mesh=mesh,
                placements=[dist.Shard(0)],
                generator=rng,
            ),
            "makes a DTensor",
        ),
    ]


def _plans() -> list[Contender]:
    """Return the plan of one rank's shard in worlds of many sizes, beside torch's."""
    shape, placements = (2**24 + 1, 4096), [dist.Shard(0)]
    rows = [
        row(
            f"nbrt, {ranks} ranks",
            lambda ranks=ranks: partial(
                dist.compute_local_shape_and_global_offset,
                shape,
                (ranks,),
                (ranks // 3,),
                placements,
            ),
        )
        for ranks in _RANKS
    ]
    rows.append(
        row(
            "nbrt, 10^6 ranks, strided over sharded",
            lambda: partial(
                dist.compute_local_shape_and_global_offset,
                shape,
                (1000, 1000),
                (333, 77),
                [dist.StridedShard(0, 1000), dist.Shard(0)],
            ),
        )
    )
    torch, reason = find("torch")
    if torch is None:
        return [*rows, absent("torch", reason)]

    def theirs(ranks: int) -> Callable[[], object]:
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

        return partial(
            _compute_local_shape_and_global_offset, shape, (ranks,), [ranks // 3], [Shard(0)]
        )

    return rows + [row(f"torch, {ranks} ranks", partial(theirs, ranks)) for ranks in _RANKS]


def _jax(rows: int) -> list[Contender]:
    """Return JAX's draws on eight virtual devices, sharded in several ways and not at all."""
    jax, reason = find("jax")
    if jax is None:
        return [absent("JAX", reason)]
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((8,), ("x",))
    key = jax.random.key(1)

    def drawn(spec: Any) -> Callable[[], object]:
        draw = jax.jit(
            partial(jax.random.normal, shape=(rows, _WIDTH)),
            out_shardings=None if spec is None else NamedSharding(mesh, PartitionSpec(*spec)),
        )
        return lambda: draw(key).block_until_ready()

    specs = (("one device", None), ("rows, 8 devices", ("x",)), ("columns, 8 devices", (None, "x")))
    return [row(f"JAX, {name}", partial(drawn, spec)) for name, spec in specs]


# -- the report ------------------------------------------------------------------------------------


def fill(report: Report, quick: bool) -> None:
    flags = ["--quick"] if quick else []
    found = run_pinned("benchmarks.distributed", 1, "shards", "small", "plans", *flags)
    # Read by JAX when it is imported.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    found |= run_pinned("benchmarks.distributed", 1, "jax", *flags)
    rows = {name: [Measurement.from_json(one) for one in each] for name, each in found.items()}
    for method, name in (("random", "uniform"), ("standard_normal", "normal")):
        table = Table(f"{name} float32, shards of {_WIDTH} columns", rows[method], _SHARDINGS[0][0])
        report.tables.append(table)
        local, shard = table.rows[:2]
        over = shard.ratio_to(local) if local.seconds and shard.seconds else None
        text = f"{name} float32, {shard.name}, over a local draw of as many: at most 1.1"
        report.targets.append(Target(text, over, 1.1, "x"))
    small = Table(f"{_SMALL} uniform float32 on this rank", rows["small"], "alone")
    alone = small.row("alone")
    for one in rows["small"][1:4]:
        over = one.excess_over(alone) if alone is not None and one.seconds else None
        report.targets.append(Target(f"{one.name}, over alone: at most 20 µs", over, 20e-6, "s"))
    plans = Table("Which part is this rank's", rows["plans"], f"nbrt, {_RANKS[0]} ranks")
    most, least = plans.row(f"nbrt, {_RANKS[-1]} ranks"), plans.row(f"nbrt, {_RANKS[0]} ranks")
    if most is not None and least is not None:
        text = "a plan for 10^6 ranks over one for 8: at most 1.2"
        report.targets.append(Target(text, most.ratio_to(least), 1.2, "x"))
    report.tables += [
        small,
        plans,
        Table(
            "JAX, normal float32, all of its devices on one core", rows["jax"], "JAX, one device"
        ),
    ]
    report.notes.append(
        "A sharded draw is timed beside a local one into an array of the same shape, pass by pass."
    )


if __name__ == "__main__":
    run("distributed", "Distributed random numbers", fill)
