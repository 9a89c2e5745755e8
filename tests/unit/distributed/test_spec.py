"""`DTensorSpec`: a value, and what it says of each rank."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import nbrt.distributed as dist
import nbrt.distributed.spec as spec_module
from helpers.clocks import HANG_TIMEOUT
from nbrt.distributed import DTensorSpec, Partial, Replicate, Shard, init_device_mesh
from nbrt.errors import ArgumentError, ArgumentTypeError


def spec_of(shape: Any = (7, 4), **changes: Any) -> DTensorSpec:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    return DTensorSpec(mesh, [Shard(0), Shard(-1)], shape, "f4").replaced(**changes)


def test_it_is_a_value() -> None:
    spec = spec_of()
    assert (spec.ndim, spec.size, spec.nbytes, spec.is_partial) == (2, 28, 112, False)
    assert spec.placements == (Shard(0), Shard(1))
    others = [
        spec_of(shape=(4, 7)),
        spec_of(dtype="f8"),
        spec_of(placements=[Shard(0), Replicate()]),
        spec_of(mesh=init_device_mesh("cpu", (1, 1))),
    ]
    assert spec == spec_of()
    assert len({spec, spec_of(), *others}) == 5
    assert spec != "spec"
    assert spec_of(placements=[Partial("max"), Replicate()]).is_partial
    assert repr(spec) == f"DTensorSpec(float32[7, 4], [S(0), S(1)], {spec.mesh!r})"
    for name in ("mesh", "placements", "shape", "dtype"):
        with pytest.raises(AttributeError, match="replaced"):
            setattr(spec, name, getattr(others[0], name))
    with pytest.raises(TypeError):
        spec.replaced(placement=None)
    with pytest.raises(ArgumentError, match="each of the 2 dimensions"):
        spec.replaced(placements=[Shard(0)])


def test_each_rank_finds_its_own_part() -> None:
    def part() -> Any:
        mesh = init_device_mesh("cpu", (3,))
        spec = DTensorSpec(mesh, [Shard(0)], 7, np.int8)
        return spec.local_shape, spec.local_runs, spec.runs_of((2,))

    last = ((6, 1, 1, 0),)
    assert dist.run(part, ranks=4, timeout=HANG_TIMEOUT) == [
        ((3,), (((0, 3, 1, 0),),), (last,)),
        ((3,), (((3, 3, 1, 0),),), (last,)),
        ((1,), (last,), (last,)),
        ((0,), None, (last,)),
    ]


def test_specs_of_draws_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_module, "_MAX_SPECS", 3)
    mesh = init_device_mesh("cpu", (1,))
    for size in (4, 5, 6, 7, 4, 5):
        x = dist.rand(size, device_mesh=mesh, placements=[Shard(0)])
        assert x.spec == DTensorSpec(mesh, [Shard(0)], (size,), "float32")
        assert dist.randn(size, device_mesh=mesh, placements=[Shard(0)]).spec is x.spec
        assert 1 <= len(mesh._specs) <= 3


def test_a_copy_from_another_rank_is_of_the_rank_that_has_it() -> None:
    def part() -> Any:
        mesh = init_device_mesh("cpu", (2,))
        spec = DTensorSpec(mesh, [Shard(0)], (5,), "f4")
        assert spec.local_shape == (3 - dist.get_rank(),)  # memoised
        sent = dist.world().broadcast_object(spec)
        assert sent == spec
        assert hash(sent) == hash(spec)
        assert copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec)) == spec
        return math.prod(sent.local_shape)

    assert dist.run(part, ranks=2, timeout=HANG_TIMEOUT) == [3, 2]


@pytest.mark.parametrize("coordinate", [([1], 2), ("a", 0), (0.5, 0)])
def test_what_is_no_coordinate_has_no_runs(coordinate: Any) -> None:
    mesh = dist.init_device_mesh("cpu", (1, 1))
    with pytest.raises(ArgumentTypeError, match="a rank's coordinate of type int"):
        dist.DTensorSpec(mesh, None, (3,), "float32").runs_of(coordinate)
