"""`DTensor`: made of parts, checked, and as a Python object."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from nbrt.distributed import DTensor, Partial, Replicate, Shard, StridedShard
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError, RankMismatchError

R = Replicate()
P = Partial()
S0, S1 = Shard(0), Shard(1)


def alone(array: Any, placements: Any = None) -> DTensor:
    return DTensor.from_local(array, dist.DeviceMesh("cpu", [0]), placements)


# -- from parts ------------------------------------------------------------------------------------


def shapes_from_equal_parts() -> list[tuple[int, ...]]:
    mesh = dist.init_device_mesh("cpu", (2, 3))
    local = np.zeros((4, 6), "int16")
    lists = [(R, R), (S0, R), (S0, S0), (S1, S0), (P, S1), (StridedShard(0, 2), S0)]
    return [DTensor.from_local(local, mesh, each).shape for each in lists]


def test_equal_parts_give_the_shape() -> None:
    expected = [(4, 6), (8, 6), (24, 6), (12, 12), (4, 18), (24, 6)]
    assert dist.run(shapes_from_equal_parts, ranks=6) == [expected] * 6


def test_the_part_is_shared_and_goes_to_the_current_mesh() -> None:
    x = np.arange(4)
    with dist.DeviceMesh("cpu", [0]) as mesh:
        tensor = DTensor.from_local(x)
    assert tensor.device_mesh is mesh
    assert tensor.placements == (R,)
    assert tensor.to_local() is x
    assert tensor.full_tensor() is x
    assert tensor.redistribute(placements=[S0]).to_local() is x
    with pytest.raises(DistributedError, match="expected a device mesh"):
        DTensor.from_local(x)


def uneven() -> list[Any]:
    mesh = dist.init_device_mesh("cpu", (3,))
    x = np.arange(14).reshape(7, 2)
    mine = x[3 * dist.get_rank() : 3 * dist.get_rank() + 3]
    gathered = DTensor.from_local(mine, mesh, [S0], run_check=True)
    told = DTensor.from_local(mine, mesh, [S0], shape=(7, 2))
    both = DTensor.from_local(mine, mesh, [S0], shape=(7, 2), run_check=True)
    return [(each.shape, each.full_tensor().tolist()) for each in (gathered, told, both)]


def test_parts_of_different_shapes_are_gathered_or_told() -> None:
    whole = np.arange(14).reshape(7, 2).tolist()
    assert dist.run(uneven, ranks=3) == [[((7, 2), whole)] * 3] * 3


def test_a_part_that_does_not_fit_is_refused() -> None:
    mesh = dist.DeviceMesh("cpu", [0])
    with pytest.raises(ArgumentError, match=r"a part of float64 and shape \(3,\)"):
        DTensor.from_local(np.zeros(2), mesh, [S0], shape=3)
    with pytest.raises(ArgumentError, match="dimension of a 1-d tensor"):
        DTensor.from_local(np.zeros(2), mesh, [S1])
    with pytest.raises(ArgumentError, match="expected a part of float32"):
        DTensor(np.zeros(2), dist.DTensorSpec(mesh, [R], (2,), "float32"))


def checked(parts: list[Any], placements: list[Any], shapes: Any = None) -> Any:
    mesh = dist.init_device_mesh("cpu", (len(parts),))
    rank = dist.get_rank()
    shape = None if shapes is None else shapes[rank]
    try:
        return DTensor.from_local(parts[rank], mesh, placements, run_check=True, shape=shape).shape
    except RankMismatchError as error:
        return str(error)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (np.zeros(3, "float64"), "same dtype on every rank, float32 as most have, got float64"),
        (np.zeros((3, 1), "float32"), "number of dimensions"),
        (np.zeros(2, "float32"), "expected rank 1 to have a part of shape (3,)"),
        (np.array([0.0, -0.0, 0.0], "float32"), "same values on ranks [0, 1, 2]"),
    ],
    ids=["dtype", "ndim", "shape", "bits"],
)
def test_the_check_names_the_rank_that_differs(odd: Any, said: str) -> None:
    usual = np.zeros(3, "float32")
    results = dist.run(checked, [usual, odd, usual], [R], ranks=3)
    assert all(said in each for each in results), results
    assert all("rank 1" in each for each in results)


def test_the_check_compares_what_is_asked_for() -> None:
    parts = [np.zeros(3)] * 3
    results = dist.run(checked, parts, [R], [(3,), (3,), None], ranks=3)
    assert all("got None on rank 2" in each for each in results)


def test_the_check_leaves_terms_and_equal_bits_alone() -> None:
    parts = [np.array([np.nan, rank]) for rank in range(2)]
    assert dist.run(checked, parts, [P], ranks=2) == [(2,)] * 2
    assert dist.run(checked, [parts[0]] * 2, [R], ranks=2) == [(2,)] * 2
    assert dist.run(checked, [np.zeros((2, 3)), np.zeros((1, 3))], [S0], ranks=2) == [(3, 3)] * 2


def test_a_hole_in_the_parts_is_found() -> None:
    results = dist.run(checked, [np.zeros(1), np.zeros(3)], [S0], ranks=2)
    assert all("expected rank 0 to have a part of shape (2,)" in each for each in results)


def replicas_of_parts() -> Any:
    mesh = dist.init_device_mesh("cpu", (2, 2))
    row, column = mesh.get_coordinate() or (0, 0)
    mine = np.full(2, row + (row == column == 1))
    try:
        return DTensor.from_local(mine, mesh, [S0, R], run_check=True).shape
    except RankMismatchError as error:
        return str(error)


def test_replicas_are_compared_part_by_part() -> None:
    for said in dist.run(replicas_of_parts, ranks=4):
        assert "same values on ranks [2, 3]" in said


# -- as an object ----------------------------------------------------------------------------------


def test_attributes_are_those_of_the_whole() -> None:
    tensor = dist.run(
        lambda: DTensor.from_local(np.zeros((2, 3), "int16"), dist.init_device_mesh(), [S0]),
        ranks=4,
    )[2]
    assert (tensor.shape, tensor.ndim, tensor.size) == ((8, 3), 2, 24)
    assert (tensor.dtype, tensor.itemsize, tensor.nbytes) == (np.dtype("int16"), 2, 48)
    assert len(tensor) == 8
    assert tensor.spec == dist.DTensorSpec(tensor.device_mesh, [S0], (8, 3), "int16")
    assert repr(tensor).startswith("DTensor(int16[8, 3], [S(0)], DeviceMesh('cpu', [0, 1, 2, 3])")
    assert "local=array([[0, 0, 0]," in repr(tensor)


def scalars() -> tuple[Any, ...]:
    mesh = dist.init_device_mesh("cpu", (2,))
    total = DTensor.from_local(np.float64(1.5) * np.ones(()), mesh, [P])
    one = DTensor.from_local(np.full(1 - dist.get_rank(), 7), mesh, [S0], shape=1)
    values = total.item(), float(total), int(total), complex(total), bool(one), one.item()
    return *values, f"{total:.2f}"


def test_one_element_has_the_value_of_the_whole_on_every_rank() -> None:
    assert dist.run(scalars, ranks=2) == [(3.0, 3.0, 3, 3 + 0j, True, 7, "3.00")] * 2


def test_what_has_no_one_value_says_so() -> None:
    tensor = alone(np.zeros(2))
    with pytest.raises(ArgumentError, match="one element"):
        tensor.item()
    with pytest.raises(ArgumentError, match="one element"):
        bool(tensor)
    with pytest.raises(ArgumentTypeError, match="0-d"):
        len(alone(np.zeros(())))


def test_it_is_no_array_by_accident() -> None:
    tensor = alone(np.zeros(2))
    for convert in (np.asarray, nbrt.asarray, alone):
        with pytest.raises(ArgumentTypeError, match=r"full_tensor\(\).*to_local\(\)"):
            convert(tensor)


def test_it_is_copied_but_not_pickled() -> None:
    tensor = alone(np.zeros(2))
    for again in (tensor.copy(), copy.copy(tensor), copy.deepcopy(tensor)):
        again[:] = 1
        assert again.to_local().tolist() == [1, 1]
    assert tensor.to_local().tolist() == [0, 0]
    with pytest.raises(ArgumentTypeError, match=r"make it again by from_local; copy\(\)"):
        pickle.dumps(tensor)


def test_a_deep_copy_is_of_this_rank_alone_and_goes_to_no_other() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,))
        first = dist.get_rank() == 0
        terms = DTensor.from_local(np.full(3, 2j), mesh, [dist.Partial("prod")])
        parts = DTensor.from_local(np.arange(3.0)[::-1], mesh, [S0])
        if first:  # the other one need not come
            model = copy.deepcopy({"terms": [terms, terms], "parts": parts, "own": parts._local})
            again, own = model["parts"], model["own"]
            own[:] = 7.0
            assert model["terms"][0] is model["terms"][1]
            assert model["terms"][0].spec == terms.spec
            assert again.spec == parts.spec
            assert again.to_local() is own
            assert parts.to_local().tolist() == [2.0, 1.0, 0.0]
            assert model["terms"][0].to_local().tolist() == [2j, 2j, 2j]
            mixed = DTensor.from_local(
                np.ones(3),
                dist.init_device_mesh("cpu", (2, 1)),
                [dist.Partial(), dist.Partial("max")],
            )
            for copied in (mixed.copy(), copy.copy(mixed)):
                assert copied.spec == mixed.spec
                assert not np.shares_memory(copied.to_local(), mixed.to_local())
        with pytest.raises(ArgumentTypeError, match="make it again by from_local"):
            dist.world().all_gather_object({"x": parts})

    dist.run(rank, ranks=2)


def test_what_makes_no_tensor_is_refused() -> None:
    array: Any = np.zeros(2)
    with pytest.raises(ArgumentTypeError, match="array and a DTensorSpec, got ndarray and NoneT"):
        DTensor(array, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="expected a DeviceMesh, got 'cpu'"):
        DTensor.from_local(array, "cpu", [S0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="expected a DeviceMesh, got 4"):
        alone(array).redistribute(4, [S0])  # type: ignore[arg-type]


def test_a_subclass_counts_as_the_plain_array_and_is_shared() -> None:
    records = np.rec.array([(1, 2.0)], dtype=[("count", "i8"), ("size", "f8")])
    masked = np.ma.masked_array([1, 2, 3], [0, 1, 0])
    for array in (records, masked):
        tensor = alone(array)
        assert type(tensor.to_local()) is np.ndarray
        assert np.shares_memory(tensor.to_local(), array)
    assert tensor.sum().item() == 6


def test_flattening_gives_the_part_and_the_spec_and_back() -> None:
    tensor = alone(np.arange(3))
    names, spec = tensor.__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}
    again = DTensor.__tensor_unflatten__(inner, spec, (3,), (1,))
    assert names == ["_local"]
    assert again.to_local() is tensor.to_local()
    assert again.spec == tensor.spec


def beyond() -> tuple[Any, ...]:
    mesh = dist.DeviceMesh("cpu", [0])
    tensor = DTensor.from_local(np.arange(3), mesh, [S0])
    try:
        last = tensor[:1].item()
    except DistributedError as error:
        last = str(error)
    return tensor.shape, tensor.to_local().tolist(), tensor.full_tensor().tolist(), last


def test_a_rank_beyond_the_mesh_has_an_empty_part() -> None:
    inside, outside = dist.run(beyond, ranks=2)
    assert inside == ((3,), [0, 1, 2], [0, 1, 2], 0)
    assert outside[:3] == ((3,), [], [])
    assert "holds nothing of the tensor" in outside[3]
