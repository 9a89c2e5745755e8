"""Factories: shapes, dtypes, values, and what terms they may make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt.distributed as dist
from nbrt.distributed import Partial, Replicate, Shard
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable

R = Replicate()


def made() -> list[Any]:
    mesh = dist.init_device_mesh("cpu", (2,))
    half: dict[str, Any] = {"device_mesh": mesh, "placements": [Shard(0)]}
    tensors = [
        dist.zeros(5, 2, **half),
        dist.ones((5, 2), dtype="int8", **half),
        dist.full((5,), 2.5, **half),
        dist.full(3, True, dtype=bool, device_mesh=mesh),
        dist.zeros(3, device_mesh=mesh, placements=[Partial("prod")]),
        dist.empty(device_mesh=mesh),
    ]
    like = dist.ones((5, 2), dtype="int8", **half)
    tensors += [
        dist.zeros_like(like),
        dist.ones_like(like, dtype="float64"),
        dist.full_like(like, 7, placements=[R]),
        dist.empty_like(like),
        dist.zeros(3, dtype="S3", **half),
        dist.zeros_like(dist.zeros(3, dtype=[("n", "i4"), ("s", "U2")], **half)),
    ]
    return [(each, each.full_tensor()) for each in tensors]


def test_values_shapes_and_dtypes() -> None:
    expected = [
        np.zeros((5, 2), "float32"),
        np.ones((5, 2), "int8"),
        np.full(5, 2.5, "float32"),
        np.full(3, True),
        np.zeros(3, "float32"),
        np.empty((), "float32"),
        np.zeros((5, 2), "int8"),
        np.ones((5, 2)),
        np.full((5, 2), 7, "int8"),
        np.empty((5, 2), "int8"),
        np.zeros(3, "S3"),
        np.zeros(3, [("n", "i4"), ("s", "U2")]),
    ]
    for rank, results in enumerate(dist.run(made, ranks=2)):
        for number, ((tensor, whole), wanted) in enumerate(zip(results, expected, strict=True)):
            assert (whole.shape, whole.dtype) == (wanted.shape, wanted.dtype)
            assert tensor.shape == wanted.shape
            if number not in (5, 9):
                assert np.array_equal(whole, wanted)
        assert results[0][0].to_local().shape == (3 - rank, 2)
        assert results[9][0].placements == (Shard(0),)
        assert results[8][0].placements == (R,)


def test_only_zeros_are_terms() -> None:
    mesh = dist.DeviceMesh("cpu", [0])
    partial: dict[str, Any] = {"device_mesh": mesh, "placements": [Partial()]}
    zeros = dist.zeros(2, **partial)
    makers: list[Callable[[], object]] = [
        lambda: dist.ones(2, **partial),
        lambda: dist.empty(2, **partial),
        lambda: dist.full(2, 1, **partial),
        lambda: dist.ones_like(zeros),
        lambda: dist.full_like(zeros, 0),
        lambda: dist.empty_like(zeros),
    ]
    for make in makers:
        with pytest.raises(PlacementError, match="only zeros"):
            make()
    assert dist.zeros_like(zeros).placements == (Partial(),)


def test_only_a_distributed_tensor_can_be_like() -> None:
    for like in (dist.zeros_like, dist.ones_like, dist.empty_like):
        with pytest.raises(ArgumentTypeError, match="distributed tensor to be like, got ndarray"):
            like(np.zeros(3))  # type: ignore[arg-type]


def test_the_mesh_is_the_current_one() -> None:
    with dist.DeviceMesh("cpu", [0]) as mesh:
        assert dist.zeros(2).device_mesh is mesh
    with pytest.raises(DistributedError, match="expected a device mesh"):
        dist.zeros(2)
    with pytest.raises(ArgumentError, match="without negative sizes"):
        dist.zeros(-1, device_mesh=mesh)


def test_a_rank_beyond_the_mesh_makes_nothing() -> None:
    def beyond() -> tuple[Any, ...]:
        tensor = dist.ones(3, device_mesh=dist.DeviceMesh("cpu", [0]))
        return tensor.shape, tensor.to_local().shape

    assert dist.run(beyond, ranks=2) == [((3,), (3,)), ((3,), (0,))]
