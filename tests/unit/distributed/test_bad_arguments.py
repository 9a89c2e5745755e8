"""Arguments of wrong types end in errors of nbrt that say what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable

WRONG = [None, "x", 1.5, -1, 2**70, np.int64(-3), True, [1], {}, object(), np.array([1, 2])]


def enter(context: Any) -> None:
    with context:
        pass


def spec_of(mesh: Any, dtype: Any = "float32") -> dist.DTensorSpec:
    return dist.DTensorSpec(mesh, None, (4,), dtype)


MESHES: dict[str, Callable[[Any], Any]] = {
    "DTensorSpec": spec_of,
    "replaced": lambda x: spec_of(dist.init_device_mesh("cpu")).replaced(mesh=x),
    "manual_seed": lambda x: dist.manual_seed(0, x),
    "model_parallel_manual_seed": lambda x: dist.model_parallel_manual_seed(0, x),
    "OffsetBasedRNGTracker": dist.OffsetBasedRNGTracker,
}
SPECS: dict[str, Callable[[Any], Any]] = {
    "index_map": dist.index_map,
    "collisions": dist.collisions,
    "distribute_region": lambda x: enter(dist.current_tracker().distribute_region(x)),
}


@pytest.mark.parametrize("use", [*MESHES.values(), dist.MeshGenerator], ids=[*MESHES, "generator"])
def test_what_is_no_mesh_is_refused(use: Callable[[Any], Any]) -> None:
    for wrong in WRONG[1:] if use is dist.MeshGenerator else WRONG:
        with pytest.raises(ArgumentTypeError, match="expected a DeviceMesh, got"):
            use(wrong)


@pytest.mark.parametrize("use", SPECS.values(), ids=SPECS)
def test_what_is_no_spec_is_refused(use: Callable[[Any], Any]) -> None:
    for wrong in WRONG:
        with pytest.raises(ArgumentTypeError, match="expected a DTensorSpec"):
            use(wrong)


def of_a_mesh(method: str) -> Callable[[Any], Any]:
    def use(wrong: Any) -> Any:
        return getattr(dist.init_device_mesh("cpu", (1,), mesh_dim_names=("a",)), method)(wrong)

    return use


OTHERS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "size": (of_a_mesh("size"), ["x", 1.5, -2, True, {}, np.array([1, 2])]),
    "get_group": (of_a_mesh("get_group"), ["x", 1.5, 2**70, {}, np.array([1, 2])]),
    "get_local_rank": (of_a_mesh("get_local_rank"), ["x", object(), np.array([1, 2])]),
    "from_group": (dist.DeviceMesh.from_group, [*WRONG, []]),
    "communicator": (lambda x: dist.DeviceMesh("cpu", [0], communicator=x), WRONG[1:]),
    "device_type": (lambda x: dist.run(int, ranks=1, device_type=x), [1, [1], np.array([1, 2])]),
    "ranks": (lambda x: dist.run(int, ranks=x), WRONG),
    "Shard": (dist.Shard, [None, "x", 1.5, True, [1], np.array([1, 2])]),
    "StridedShard": (lambda x: dist.StridedShard(0, x), WRONG[:4] + WRONG[5:]),
    "Partial": (dist.Partial, WRONG),
    "dtype": (lambda x: spec_of(dist.init_device_mesh("cpu"), x), ["x", 1.5, -1, np.ones(2)]),
    "shape": (lambda x: dist.compute_local_shape(x, (2,), (0,), [dist.Shard(0)]), WRONG[:7]),
    "mesh_shape": (lambda x: dist.compute_local_shape((4,), x, (0,), [dist.Shard(0)]), WRONG[:7]),
    "placements": (
        lambda x: dist.MeshGenerator(dist.init_device_mesh("cpu"), x).random(3),
        [x for x in WRONG if x is not None],
    ),
    "runs_of": (lambda x: spec_of(dist.init_device_mesh("cpu")).runs_of(x), WRONG),
    "words": (lambda x: dist.collisions(spec_of(dist.init_device_mesh("cpu")), x), WRONG[1:]),
    "root": (lambda x: dist.world().broadcast(np.ones(1), x), WRONG),
    "op": (lambda x: dist.world().all_reduce(np.ones(1), x), WRONG),
    "shapes": (lambda x: dist.world().all_gather(np.ones(1), x), WRONG[1:]),
    "group": (lambda x: dist.world().group(x), WRONG),
    "stream": (lambda x: dist.RNGStateTracker().add(x, 1), [None, 1, [1], {}, np.ones(2)]),
    "fork": (lambda x: enter(dist.RNGStateTracker().fork(x)), WRONG),
    "set_states": (lambda x: dist.RNGStateTracker().set_states(x), [*WRONG[:8], {"a": 1}]),
    "fill_integers": (
        lambda x: dist.MeshGenerator(dist.init_device_mesh("cpu")).fill_integers(x),
        WRONG,
    ),
}


@pytest.mark.parametrize(("use", "wrong"), OTHERS.values(), ids=OTHERS)
def test_other_arguments_are_refused(use: Callable[[Any], Any], wrong: list[Any]) -> None:
    before = nbrt.random.get_state().tobytes()
    for each in wrong:
        with pytest.raises((ArgumentError, ArgumentTypeError), match="expected"):
            use(each)
    assert nbrt.random.get_state().tobytes() == before


def test_a_parameter_of_another_mesh_is_named_as_such() -> None:
    row, square = dist.init_device_mesh("cpu", (1,)), dist.init_device_mesh("cpu", (1, 1))
    loc = dist.zeros(4, device_mesh=row, placements=[dist.Shard(0)])
    with pytest.raises(PlacementError, match=r"expected a tensor of DeviceMesh\('cpu', \[\[0\]\]"):
        dist.MeshGenerator(square).normal(loc)
