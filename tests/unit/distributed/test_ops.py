"""NumPy's functions on distributed tensors: shapes, products, joins, and clear refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nbrt.distributed as dist
from helpers.spread import count_collectives, counted, same, spread
from nbrt.distributed import Partial, Replicate, Shard, StridedShard
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError

LAYOUTS: dict[tuple[int, ...], list[tuple[Any, ...]]] = {
    (4,): [(Replicate(),), (Shard(0),), (Shard(1),), (StridedShard(0, 2),), (Partial(),)],
    (2, 2): [(Shard(0), Shard(1)), (Shard(1), Shard(1)), (Shard(0), Partial())],
    (2, 3): [(Shard(1), Shard(0)), (StridedShard(0, 3), Shard(0))],
}


def on_mesh(shape: tuple[int, ...], body: Any, ranks: int | None = None) -> None:
    dist.run(lambda: body(dist.init_device_mesh("cpu", shape)), ranks=ranks or int(np.prod(shape)))


def ints(*shape: int) -> Any:
    return (np.arange(int(np.prod(shape))).reshape(shape) * 7 % 11 - 4).astype("f8")


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_shapes_and_elementwise_functions_equal_numpy(shape: tuple[int, ...]) -> None:
    whole = ints(5, 6)
    calls: list[Any] = [
        np.transpose, lambda x: np.swapaxes(x, 0, 1), lambda x: np.moveaxis(x, 0, -1),
        lambda x: np.expand_dims(x, (0, 2)), lambda x: np.squeeze(np.expand_dims(x, 1)),
        lambda x: np.where(x > 1, x, -1.5), lambda x: np.clip(x, -2, 3), np.copy, np.ravel,
        lambda x: np.round(x / 3, 1), lambda x: np.isclose(x, x + 1e-9), lambda x: x.mT,
        lambda x: np.concatenate([x, x + 1, x], axis=1), lambda x: np.stack([x, -x], axis=1),
        lambda x: np.concatenate([x, x[:2]]), lambda x: np.cumsum(x, axis=0), np.cumprod,
        lambda x: np.sort(x), lambda x: np.argsort(x, axis=0, kind="stable"), np.zeros_like,
        lambda x: np.full_like(x, 7, dtype="i2"), lambda x: np.ones_like(x, dtype="?"),
        lambda x: x.astype("i4"), lambda x: x.reshape(6, 5), lambda x: np.reshape(x, (-1,)),
        lambda x: x.reshape(5, 2, 3), lambda x: x[:4].reshape(2, 2, 6), lambda x: np.dot(x, 3),
        lambda x: x.T.reshape(2, 15), lambda x: np.nan_to_num(x, nan=1.0), lambda x: x.conj(),
        lambda x: (x + 1j).real, lambda x: (1j * x).imag, lambda x: x.clip(max=0),
        lambda x: x.copy(),
    ]  # fmt: skip

    def body(mesh: Any) -> None:
        for layout in LAYOUTS[shape]:
            x = spread(whole, mesh, layout)
            for call in calls:
                same(call(x), call(whole))
            out = spread(whole, mesh, layout if not x.spec.is_partial else [Shard(0)] * mesh.ndim)
            np.copyto(out, x * 2)
            same(out, whole * 2)
            assert np.cumsum(x, axis=0, out=out) is out
            same(out, whole.cumsum(axis=0))
            np.clip(x, 0, 4, out=out)
            same(out, whole.clip(0, 4))
            assert np.shape(x) == (5, 6)
            assert (np.ndim(x), np.size(x), np.size(x, 1)) == (2, 30, 6)
            assert np.result_type(x, np.float32) == np.float64
            assert np.allclose(x, x + 1e-12)
            assert not np.allclose(x, x + 1)
            assert np.array_equal(x, x.copy())
            assert not np.array_equal(x, x.T)
            assert not np.array_equal(x, x + 1)
            assert np.array_equal(x * np.nan, x * np.nan, equal_nan=True)
            assert np.empty_like(x, dtype="u1").dtype == np.uint8

    on_mesh(shape, body)


def test_dimensions_take_their_cuts_along(monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)

    def body(mesh: Any) -> None:
        x: Any = spread(ints(8, 6, 3), mesh, [Shard(0), Shard(1)])
        with counted() as met:
            assert x.T.placements == (Shard(2), Shard(1))
            turned: Any = np.moveaxis(x, 0, 1)
            assert turned.placements == (Shard(1), Shard(0))
            assert np.expand_dims(x, 0).placements == (Shard(1), Shard(2))
            assert x.reshape(2, 4, 6, 3).placements == (Shard(0), Shard(2))
            assert x.reshape(8, 18).placements == (Shard(0), Shard(1))
            assert x.reshape(8, 1, 6, 3).placements == (Shard(0), Shard(2))
            assert x.reshape(4, 2, 2, 9).placements == (Shard(0), Shard(2))
            joined: Any = np.concatenate([x, x], axis=2)
            assert joined.placements == (Shard(0), Shard(1))
            assert np.zeros_like(x).placements == (Shard(0), Shard(1))
        assert not met
        with counted() as met:
            assert x.reshape(48, 3).placements == (Shard(0), Replicate())
            joined = np.concatenate([x, x], axis=0)
            assert joined.placements == (Replicate(), Shard(1))
        assert len(met) == 3
        same(x.reshape(4, 2, 2, 9), ints(8, 6, 3).reshape(4, 2, 2, 9))
        same(x.reshape(48, 3), ints(8, 6, 3).reshape(48, 3))

    on_mesh((2, 2), body)


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_matrix_products(shape: tuple[int, ...]) -> None:
    a, b, v = ints(5, 6), ints(6, 7), ints(6)

    def body(mesh: Any) -> None:
        for first in LAYOUTS[shape]:
            for second in LAYOUTS[shape]:
                x, w = spread(a, mesh, first), spread(b, mesh, second)
                same(x @ w, a @ b)
            whole = [Replicate()] * mesh.ndim
            same(x @ spread(v, mesh, whole), a @ v)
            same(spread(v, mesh, whole) @ w, v @ b)
            same(np.dot(spread(v, mesh, whole), spread(v, mesh, whole)), np.asarray(v @ v))
        batch = ints(3, 5, 6)
        y = spread(batch, mesh, [Shard(0)] * mesh.ndim)
        same(y @ w, batch @ b)
        same(y @ y.swapaxes(1, 2), batch @ batch.swapaxes(1, 2))
        same(y[:1] @ y.mT, batch[:1] @ batch.swapaxes(1, 2))

    on_mesh(shape, body)


def test_columns_times_rows_need_no_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)
    a, first, second = ints(3, 4), ints(4, 8), ints(8, 4)

    def body(mesh: Any) -> None:
        x = spread(a, mesh, [Shard(0), Replicate()])
        w1 = spread(first, mesh, [Replicate(), Shard(1)])
        w2 = spread(second, mesh, [Replicate(), Shard(0)])
        with counted() as met:
            hidden = np.maximum(x @ w1, 0)
            y = hidden @ w2 + x
        assert not met
        assert hidden.placements == (Shard(0), Shard(1))
        assert y.placements == (Shard(0), Partial("sum"))
        with counted() as met:
            same(y, np.maximum(a @ first, 0) @ second + a)
        assert met == ["all_reduce", "all_gather"]

    on_mesh((2, 2), body)


S0, S1, R, P = Shard(0), Shard(1), Replicate(), Partial("sum")
# What torch 2.13.0's DTensor gives for x, y = zeros(8, 8) on a mesh (2, 2), read off by running it.
TORCH: list[tuple[Any, ...]] = [
    # x, y, x + y and x * y, x @ y, x.sum(0), x / 2
    ((S0, S1), (S0, S1), (S0, S1), (S0, S1), (P, S0), (S0, S1)),
    ((S0, R), (R, S1), (S0, S1), (S0, S1), (P, R), (S0, R)),
    ((P, R), (R, R), (P, R), (P, R), (P, R), (P, R)),
    ((S0, R), (S0, S1), (S0, S1), (S0, S1), (P, R), (S0, R)),
]


def test_placements_come_out_as_torch_has_them() -> None:
    def body(mesh: Any) -> None:
        for first, second, same_shape, product, total, halved in TORCH:
            x, y = spread(ints(8, 8), mesh, first), spread(ints(8, 8), mesh, second)
            assert (x + y).placements == (x * y).placements == same_shape
            assert (x @ y).placements == product
            assert x.sum(0).placements == total
            assert (x / 2).placements == halved
        # Where torch gathers half of y, an exchange of quarters of x is less.
        x, y = spread(ints(8, 8), mesh, (R, S0)), spread(ints(8, 8), mesh, (S0, R))
        assert (x + y).placements == (S0, S0)

    on_mesh((2, 2), body)


def test_softmax_and_layer_norm_as_people_write_them() -> None:
    def body(mesh: Any) -> None:
        a = ints(6, 5)
        for layout in ([Shard(0), Shard(1)], [Shard(1), Replicate()]):
            x = spread(a, mesh, layout)
            shifted = np.exp(x - x.max(-1, keepdims=True))
            soft = shifted / shifted.sum(-1, keepdims=True)
            right = np.exp(a - a.max(-1, keepdims=True))
            right /= right.sum(-1, keepdims=True)
            np.testing.assert_allclose(soft.full_tensor(), right, rtol=1e-15)
            normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            right = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
            np.testing.assert_allclose(normed.full_tensor(), right, rtol=1e-13)

    on_mesh((2, 2), body)


def test_what_has_no_rule_names_itself_and_a_way_out() -> None:
    def body(mesh: Any) -> None:
        x = spread(ints(4, 4), mesh, [Shard(0)])
        for call, says in (
            (lambda: np.einsum("ij,jk", x, x), "np.einsum; write it with np.matmul"),
            (lambda: np.linalg.norm(x), r"np.norm; use it on full_tensor\(\) or to_local\(\)"),
            (lambda: np.nonzero(x), "np.nonzero; how many"),
            (lambda: np.zeros_like(x, shape=(3,)), "np.zeros_like takes .* 'shape'"),
            (lambda: np.where(x > 0), "np.where takes .* missing"),
            (lambda: np.mean(x, where=x > 0), "np.mean takes .* 'where'"),
            (lambda: np.add.at(x, 0, 1), r"np\.add\.at"),
        ):
            with pytest.raises(PlacementError, match=says):
                call()
        with pytest.raises(ArgumentTypeError, match="distribute_tensor"):
            np.concatenate([x, np.zeros((4, 4))])
        with pytest.raises(ArgumentError, match="one shape apart from axis 0"):
            np.concatenate([x, x[:, 1:]])
        with pytest.raises(ArgumentError, match="one shape to stack"):
            np.stack([x, x[1:]])
        with pytest.raises(ArgumentError, match="16 elements"):
            x.reshape(3, -1)
        with pytest.raises(ArgumentError, match="axes of one element"):
            np.squeeze(x, 0)
        with pytest.raises(ArgumentError, match=r"\(\.\.\., m, k\)"):
            x @ x[1:]
        with pytest.raises(ArgumentTypeError, match="matmul"):
            x @ 3
        with pytest.raises(ArgumentTypeError, match="to stack, got a scalar"):
            np.stack([x, 1.0])

    on_mesh((4,), body)


def test_every_rank_refuses_alike_also_one_without_elements() -> None:
    def body(mesh: Any) -> None:
        x = spread(ints(3, 4), mesh, [Shard(0)])
        calls: list[tuple[Any, str]] = [
            (lambda: x + None, "scalars for add, got None of type NoneType"),
            (lambda: x * {}, "scalars for multiply, got {} of type dict"),
            (lambda: x + "a", "others: .*'add' did not contain a loop"),
            (lambda: np.add(x, 1, dtype="i4"), "others: Cannot cast ufunc 'add'"),
            (lambda: (1j * x) // 2, "others: ufunc 'floor_divide' not supported"),
            (lambda: x.astype("u1") + 300, "others: Python integer 300 out of bounds"),
            (lambda: np.sort(x, kind="bubble"), "others: .*bubble"),
            (lambda: np.bitwise_or.reduce(x), "others: ufunc 'bitwise_or' not supported"),
            (lambda: x.sum(dtype="number"), "others: data type 'number' not understood"),
            (lambda: x.mean(dtype="number"), "others: data type 'number' not understood"),
            (lambda: x.astype("number"), "others: data type 'number' not understood"),
            (lambda: x.sum(axis="rows"), "axes as ints, got"),
            (lambda: x.transpose(0.0, 1), "axes as ints, got"),
            (lambda: x.reshape("rows"), "sizes as ints, got"),
            (lambda: x.var(ddof="all"), "others: unsupported operand"),
            (lambda: np.size(x, 2), "axes of a 2-d tensor, got 2"),
            (lambda: np.cumsum(x, axis=1, out=ints(3, 4)), "out as a distributed tensor for cum"),
            (lambda: x[::0], "others: slice step cannot be zero"),
            (lambda: x["a":], "others: slice indices must be integers"),
            (lambda: x.__setitem__(0, "abc"), "others: could not convert string"),
        ]  # fmt: skip
        for call, says in calls:
            with pytest.raises((ArgumentError, ArgumentTypeError), match=says):
                call()
        same(x, ints(3, 4))

    on_mesh((4,), body)


def test_a_product_has_the_dtype_of_numpy_on_every_rank() -> None:
    def body(mesh: Any) -> None:
        whole = ints(4, 4).astype(ml_dtypes.bfloat16)
        x = spread(whole, mesh, [Shard(0)])
        assert (x @ x).dtype == (whole @ whole).dtype

    on_mesh((2,), body, ranks=3)


def test_ranks_off_the_mesh_follow() -> None:
    def body(mesh: Any) -> None:
        a = ints(4, 6)
        x = spread(a, mesh, [Shard(0), Shard(1)])
        same((x @ x.T).reshape(2, 8), (a @ a.T).reshape(2, 8))
        same(np.concatenate([x.T, x.T], axis=1), np.concatenate([a.T, a.T], axis=1))
        same(np.argsort(x, axis=0, kind="stable"), np.argsort(a, axis=0, kind="stable"))
        same(np.cumsum(x.astype("i2")), np.cumsum(a.astype("i2")))
        same(np.squeeze(x[None, :1]), a[:1].squeeze())
        same(np.ones_like(x), np.ones_like(a))

    on_mesh((2, 2), body, ranks=5)
