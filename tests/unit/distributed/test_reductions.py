"""Reductions of distributed tensors are NumPy's; ranks talk only when the values are wanted."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nbrt.distributed as dist
from helpers.spread import count_collectives, counted, same, spread
from nbrt.distributed import Partial, Replicate, Shard, StridedShard
from nbrt.errors import ArgumentError, ArgumentTypeError, DistributedError, PlacementError

LAYOUTS: dict[tuple[int, ...], list[tuple[Any, ...]]] = {
    (4,): [(Replicate(),), (Shard(0),), (Shard(1),), (StridedShard(1, 2),)],
    (2, 2): [(Shard(0), Shard(1)), (Shard(1), Shard(1)), (StridedShard(0, 2), Shard(0))],
    (2, 3): [(Shard(1), Shard(0)), (Shard(0), Shard(0)), (Replicate(), Shard(1))],
}
SHAPES = [(5, 7), (3, 0), (1, 6)]
AXES: list[Any] = [None, 0, -1, ()]


def on_mesh(shape: tuple[int, ...], body: Any, *args: Any, ranks: int | None = None) -> None:
    def run() -> None:
        body(dist.init_device_mesh("cpu", shape), *args)

    dist.run(run, ranks=ranks or int(np.prod(shape)))


def numbers(shape: tuple[int, ...], dtype: Any = "i8") -> Any:
    return (np.arange(int(np.prod(shape))).reshape(shape) * 7 % 11 - 4).astype(dtype)


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_reductions_of_integers_are_exact(shape: tuple[int, ...]) -> None:
    def body(mesh: Any) -> None:
        for size in SHAPES:
            whole = numbers(size)
            for layout in LAYOUTS[shape]:
                x = spread(whole, mesh, layout)
                for axis in AXES:
                    for name in ("sum", "prod", "any", "all", "count_nonzero", "min", "max", "ptp"):
                        if name in ("min", "max", "ptp") and 0 in size and axis != 0:
                            continue
                        keepdims = name in ("sum", "all", "min")
                        reduce = getattr(np, name)
                        found = reduce(x, axis=axis, keepdims=keepdims)
                        same(found, reduce(whole, axis=axis, keepdims=keepdims))

    on_mesh(shape, body)


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_first_extremes(shape: tuple[int, ...]) -> None:
    values = numbers((6, 7), "f4")
    unknown = values.copy()
    unknown[3, 2] = unknown[4, 1] = np.nan
    tied, lowest = np.ones((3, 5), "f4"), np.full((2, 4), -np.inf, "f4")

    def body(mesh: Any) -> None:
        for whole in (values, unknown, tied, lowest, tied > 0):
            for layout in LAYOUTS[shape]:
                x = spread(whole, mesh, layout)
                for axis in (None, 0, 1, -1):
                    same(x.argmax(axis), whole.argmax(axis))
                    same(np.argmin(x, axis=axis, keepdims=True),
                         np.argmin(whole, axis=axis, keepdims=True))  # fmt: skip
        same(spread(np.array(3), mesh, [Replicate()] * mesh.ndim).argmax(), np.array(0))
        cube = numbers((4, 3, 5))
        y = spread(cube, mesh, [Shard(2), *[Shard(0)] * (mesh.ndim - 1)])
        same(y.argmax(), cube.argmax())
        same(y.argmin(2), cube.argmin(2))

    on_mesh(shape, body)


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_means_and_variances_use_the_number_of_all_elements(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)

    def body(mesh: Any) -> None:
        for dtype in ("f4", "f2", "i4", "c16"):
            whole = (3 * values + 2).astype(dtype)
            for layout in LAYOUTS[shape]:
                x = spread(whole, mesh, layout)
                for axis in (None, 0, 1):
                    for name in ("mean", "var", "std"):
                        found = getattr(np, name)(x, axis=axis)
                        right = np.asarray(getattr(np, name)(whole, axis=axis))
                        assert (found.dtype, found.shape) == (right.dtype, right.shape)
                        close = {"f2": 2e-3, "f4": 2e-6}.get(dtype, 1e-12)
                        np.testing.assert_allclose(found.full_tensor(), right, rtol=close)
        x = spread(values, mesh, LAYOUTS[shape][1])
        np.testing.assert_allclose(
            x.var(0, ddof=1, keepdims=True).full_tensor(), values.var(0, ddof=1, keepdims=True)
        )
        np.testing.assert_allclose(x.sum(0).full_tensor(), values.sum(0))
        assert x.mean(dtype="f4").dtype == "f4"

    values = rng.standard_normal((5, 7))
    on_mesh(shape, body)


def test_results_wait_as_terms_until_their_values_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count_collectives(monkeypatch)

    def body(mesh: Any) -> None:
        whole = numbers((8, 6), "f4")
        x = spread(whole, mesh, [Shard(0), Shard(1)])
        with counted() as met:
            by_row, by_column, total = x.sum(1), x.max(0, keepdims=True), x.mean()
            norm = (x * x).sum() / 2
        assert not met
        assert by_row.placements == (Shard(0), Partial("sum"))
        assert by_column.placements == (Partial("max"), Shard(1))
        assert total.placements == norm.placements == (Partial("sum"), Partial("sum"))
        assert x.all(1).placements == (Shard(0), Partial("min"))
        with counted() as met:
            same(norm, (whole * whole).sum() / 2)
        assert len(met) == 1
        with counted() as met:
            terms = spread(whole, mesh, [Partial("sum"), Shard(0)])
            assert terms.sum(0).placements == (Partial("sum"), Partial("sum"))
            assert terms.max(1).placements == (Replicate(), Shard(0))
        assert met == ["all_reduce"]
        with counted() as met:
            x.var(0)
        assert met == ["all_reduce"]

    on_mesh((2, 2), body)


def test_terms_of_another_reduction_are_reduced_first() -> None:
    def body(mesh: Any) -> None:
        whole = numbers((5, 6))
        for first in (Partial("sum"), Partial("max"), Partial("min")):
            x = spread(whole, mesh, [first, Shard(0)])
            for name in ("sum", "max", "min", "prod", "any"):
                same(getattr(x, name)(0), getattr(whole, name)(0))
            same(x.argmax(1), whole.argmax(1))

    on_mesh((2, 2), body)


def test_shards_without_elements_take_the_identity() -> None:
    def body(mesh: Any) -> None:
        for dtype in ("f2", "f4", "i1", "u2", "?", "c8", ml_dtypes.bfloat16):
            whole = (numbers((2, 3)) - 20).astype(dtype)  # ranks 2 and 3 have no row
            x = spread(whole, mesh, [Shard(0)])
            for name in ("max", "min", "sum", "prod", "any", "all"):
                if name in ("sum", "prod") and dtype == ml_dtypes.bfloat16:
                    continue  # the sums of NumPy itself have no dtype that both agree on
                same(getattr(np, name)(x, axis=0), getattr(np, name)(whole, axis=0))
        with pytest.raises(ArgumentError, match="no identity"):
            spread(np.empty((0, 3)), mesh, [Shard(0)]).max(0)
        same(spread(np.empty((0, 3)), mesh, [Shard(0)]).max(1), np.empty(0))
        with pytest.raises(ArgumentError, match="expected elements for argmin"):
            spread(np.empty((0, 3)), mesh, [Shard(1)]).argmin(0)
        with pytest.raises(ArgumentTypeError, match="expected numbers"):
            spread(np.zeros((2, 3), "M8[s]"), mesh, [Shard(0)]).max(0)

    on_mesh((4,), body)


def test_bytes_in_another_order_give_native_results() -> None:
    def body(mesh: Any) -> None:
        whole = numbers((2, 3)).astype(">f4")  # ranks 2 and 3 have no row
        x = spread(whole, mesh, [Shard(0)])
        for name in ("max", "min", "mean", "var", "argmax", "ptp"):
            same(getattr(np, name)(x, axis=0), getattr(np, name)(whole, axis=0))

    on_mesh((4,), body)


def test_out_dtype_initial_and_other_ufuncs() -> None:
    def body(mesh: Any) -> None:
        whole = numbers((5, 6))
        x = spread(whole, mesh, [Shard(0)])
        out = spread(np.zeros(6), mesh, [Shard(0)])
        assert np.sum(x, axis=0, out=out) is out
        assert out.placements == (Shard(0),)
        same(out, whole.sum(0).astype("f8"))
        with pytest.raises(ArgumentError, match="expected out of shape"):
            x.sum(out=out)
        same(x.sum(0, dtype="f4"), whole.sum(0, dtype="f4"))
        same(np.sum(x, axis=0, initial=100), whole.sum(0, initial=100))
        same(np.max(x, axis=1, initial=3), whole.max(1, initial=3))
        same(np.max(spread(np.empty((0, 2)), mesh, [Shard(0)]), axis=0, initial=3), [3.0, 3.0])
        same(np.max(x, initial=30.9), whole.max(initial=30.9))  # as 30
        same(np.max(x > 99, initial=3), np.True_)
        same(np.sum(x, initial=x.max()), whole.sum(initial=whole.max()))
        with pytest.raises(ArgumentError, match=r"others: .*out of bounds for int8"):
            np.max(x.astype("i1"), initial=300)
        same(np.add.reduce(x), whole.sum(0))
        same(np.bitwise_xor.reduce(x, axis=0), np.bitwise_xor.reduce(whole, axis=0))
        same(np.bitwise_or.reduce(x, axis=1), np.bitwise_or.reduce(whole, axis=1))
        same(np.hypot.reduce(x[0]), np.hypot.reduce(whole[0]))
        with pytest.raises(PlacementError, match=r"np\.where"):
            np.sum(x, where=x > 0)
        with pytest.raises(ArgumentError, match="axes of a 2-d tensor"):
            x.sum(2)
        with pytest.raises(ArgumentError, match="every axis once"):
            x.sum((0, -2))

    on_mesh((4,), body)


def test_ranks_off_the_mesh_know_shape_and_dtype() -> None:
    def body(mesh: Any) -> None:
        whole = numbers((5, 6), "f4")
        x = spread(whole, mesh, [Shard(0), Shard(1)])
        same(x.argmax(), whole.argmax())
        same(x.any(0), whole.any(0))
        same(x.astype("i4").sum(), whole.astype("i4").sum())
        same(np.bitwise_xor.reduce(x.astype("i2")), np.bitwise_xor.reduce(whole.astype("i2")))
        spread_ = x.std(0)
        assert (spread_.shape, spread_.dtype) == ((6,), np.dtype("f4"))
        if mesh.get_coordinate() is None:
            with pytest.raises(DistributedError, match="holds nothing"):
                float(x.sum())
        else:
            assert float(x.sum()) == whole.sum()
            assert bool((x > -5).all())

    on_mesh((2, 2), body, ranks=5)
