"""Element-wise operations on distributed tensors give NumPy's bits, and move what they must."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import nbrt.distributed as dist
from helpers.spread import count_collectives, counted, same, spread
from nbrt.distributed import Partial, Replicate, Shard, StridedShard
from nbrt.distributed.dtensor import DTensor
from nbrt.distributed.ops.elementwise_rules import spread_elementwise
from nbrt.distributed.ops.propagation import OperandSpec, bytes_moved
from nbrt.errors import ArgumentError, ArgumentTypeError, PlacementError

SUM = Partial("sum")
UFUNCS = [
    each
    for name in dir(np)
    if isinstance(each := getattr(np, name), np.ufunc)
    and each.signature is None
    and name == each.__name__
]
LAYOUTS: dict[tuple[int, ...], list[tuple[Any, ...]]] = {
    (4,): [(Replicate(),), (Shard(0),), (Shard(1),), (StridedShard(0, 2),)],
    (2, 2): [
        (Shard(0), Shard(1)),
        (Shard(1), Shard(1)),
        (StridedShard(0, 2), Shard(0)),
        (Replicate(), Shard(0)),
    ],
    (2, 3): [(Shard(1), Shard(0)), (Shard(0), Shard(0)), (Shard(1), Replicate())],
}


def on_mesh(shape: tuple[int, ...], body: Any, *args: Any, ranks: int | None = None) -> None:
    """Call a function with a mesh on each of its ranks."""

    def run() -> None:
        body(dist.init_device_mesh("cpu", shape), *args)

    dist.run(run, ranks=ranks or int(np.prod(shape)))


def ints(*shape: int) -> Any:
    return (np.arange(int(np.prod(shape))).reshape(shape) * 7 % 11 - 4).astype("f8")


def test_every_ufunc_gives_the_bits_of_numpy() -> None:
    assert len(UFUNCS) > 80

    def body(mesh: Any) -> None:
        tried = 0
        for dtype in ("f4", "i4", "?"):
            whole = ints(5, 3).astype(dtype)
            other = (ints(3) % 3 + 1).astype(dtype)
            x, y = spread(whole, mesh, [Shard(0)]), spread(other, mesh, [Replicate()])
            for ufunc in UFUNCS:
                try:
                    with np.errstate(all="ignore"):
                        expected = ufunc(*(whole, other)[: ufunc.nin])
                except TypeError:
                    continue
                with np.errstate(all="ignore"):
                    found = ufunc(*(x, y)[: ufunc.nin])
                results = found if ufunc.nout > 1 else (found,)
                for one, right in zip(
                    results, expected if ufunc.nout > 1 else (expected,), strict=True
                ):
                    assert one.placements == (Shard(0),)
                    same(one, right)
                tried += 1
        assert tried > 150

    on_mesh((4,), body)


@pytest.mark.parametrize("shape", list(LAYOUTS))
def test_any_two_layouts_and_broadcasts(shape: tuple[int, ...]) -> None:
    pairs = [((5, 7), (5, 7)), ((5, 7), (7,)), ((5, 1), (1, 7)), ((0, 3), (3,)), ((2, 3), (1, 3)),
             ((1, 1), (6, 2))]  # fmt: skip

    def body(mesh: Any) -> None:
        for left_shape, right_shape in pairs:
            left, right = ints(*left_shape), ints(*right_shape) + 0.5
            for first in LAYOUTS[shape]:
                for second in LAYOUTS[shape]:
                    if any(not each.is_replicate() and each.dim >= right.ndim for each in second):
                        second = (Replicate(),) * mesh.ndim
                    x, y = spread(left, mesh, first), spread(right, mesh, second)
                    same(x * y, left * right)
                    same(y - x, right - left)

    on_mesh(shape, body)


def test_operands_alike_and_replicated_ones_need_no_communication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count_collectives(monkeypatch)

    def body(mesh: Any) -> None:
        a, row = ints(5, 7), ints(7)
        for layout in LAYOUTS[mesh.shape]:
            x, y = spread(a, mesh, layout), spread(a + 1, mesh, layout)
            r = spread(row, mesh, [Replicate()] * mesh.ndim)
            with counted() as met:
                found = [x + y, x * r, r - x, np.exp(x) / 2, -x, x > 3, np.where(x > 0, x, 0)]
                x += y
                x *= 2
            assert not met
            assert all(each.placements == layout for each in found)
            same(x, 2 * (2 * a + 1))

    on_mesh((2, 2), body)


def test_a_cut_that_differs_moves_the_smaller_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)

    def body(mesh: Any) -> None:
        big, small = ints(8, 6), ints(6)
        x, y = spread(big, mesh, [Shard(0)]), spread(small, mesh, [Shard(0)])
        with counted() as met:
            z = x + y
        assert met == ["all_gather"]
        assert z.placements == (Shard(0),)
        same(z, big + small)

    on_mesh((4,), body)


def test_terms_of_an_average_stay_where_that_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)
    average = Partial("avg")

    def body(mesh: Any) -> None:
        a, b = ints(4, 3), ints(4, 3)[::-1].copy()
        p, q = spread(a, mesh, [average]), spread(b, mesh, [average])
        r = spread(b, mesh, [Replicate()])
        with counted() as met:
            kept = [
                (p + q, a + b), (p - q, a - b), (-p, -a), (p * 2.0, a * 2), (p / 4, a / 4),
                (p * r, a * b), (r + p, a + b), (p.T @ r, a.T @ b), (+p, a), (p.copy(), a),
                (np.concatenate([p, q]), np.concatenate([a, b])),
            ]  # fmt: skip
        assert not met
        for found, expected in kept:
            assert found.placements == (average,)
            same(found, expected)
        reduced = [
            (p + 1, a + 1), (p * q, a * b), (2 - p, 2 - a), (np.exp(p), np.exp(a)), (p > 0, a > 0),
            (p.sum(), a.sum()), (p.max(0), a.max(0)), (p.astype(np.int64), a.astype(np.int64)),
            (p + spread(b, mesh, [SUM]), a + b),
        ]  # fmt: skip
        for found, expected in reduced:
            same(found, expected)
        with pytest.raises(PlacementError, match="numbers to average, got int64"):
            p.astype(np.int64).redistribute(placements=[average])

    on_mesh((3,), body)


def test_partial_terms_stay_where_that_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    count_collectives(monkeypatch)

    def body(mesh: Any) -> None:
        a, b = ints(4, 3), ints(4, 3)[::-1].copy()
        p, q = spread(a, mesh, [SUM]), spread(b, mesh, [SUM])
        r, s = spread(b, mesh, [Replicate()]), spread(b, mesh, [Shard(0)])
        high, low = spread(a, mesh, [Partial("max")]), spread(a, mesh, [Partial("min")])
        times = spread(a, mesh, [Partial("prod")])
        with counted() as met:
            kept = [
                (p + q, a + b), (p - q, a - b), (-p, -a), (p * 2.0, a * 2), (3 * p, 3 * a),
                (p / 4, a / 4), (p * r, a * b), (r + p, a + b), (r - p, b - a), (+low, a),
                (np.maximum(high, 1), np.maximum(a, 1)), (np.minimum(low, r), np.minimum(a, b)),
                (times * times, a * a), (p.T, a.T), (p[1:, None], a[1:, None]), (p.copy(), a),
            ]  # fmt: skip
        assert not met
        for found, expected in kept:
            assert found.placements[0].is_partial()
            same(found, expected)
        reduced = [
            (p + 1, a + 1), (np.exp(p), np.exp(a)), (p * p, a * a), (r / p, b / a), (p > 0, a > 0),
            (np.maximum(p, q), np.maximum(a, b)), (p + high, a + a), (p * s, a * b),
            (high + 1, a + 1), (p.astype("f4"), a.astype("f4")),
        ]  # fmt: skip
        for found, expected in reduced:
            assert not found.placements[0].is_partial("max")
            same(found, expected)

    def quiet(mesh: Any) -> None:
        with np.errstate(all="ignore"):
            body(mesh)

    on_mesh((4,), quiet)


def test_scalars_that_terms_do_not_survive() -> None:
    def body(mesh: Any) -> None:
        terms = [[5.0, -3.0], [-3.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
        x = DTensor.from_local(np.array(terms[dist.get_rank()]), mesh, [SUM])
        with np.errstate(all="ignore"):
            for call in (lambda a: a / 0, lambda a: a * np.inf, lambda a: np.nan * a):
                same(call(x), call(np.array([2.0, 0.0])))
            pair = np.array([1.0, 2.0])
            same(spread(pair, mesh, [Shard(0)]).var(ddof=2), np.float64(np.inf))
        assert (x / 4).placements == (SUM,)

    on_mesh((4,), body)


def test_integer_terms_wrap_around_as_their_sum_does() -> None:
    def body(mesh: Any) -> None:
        whole = np.full(3, 100, np.int8)
        local = np.full(3, 50, np.int8) if mesh.get_rank() < 2 else np.zeros(3, np.int8)
        p = DTensor.from_local(local * np.int8(3), mesh, [SUM])
        sum_ = (np.int8(3) * whole.astype(int)).astype(np.int8)
        same(p * np.int8(2), sum_ * np.int8(2))
        same(p * np.int16(2), sum_ * np.int16(2))
        same(p.sum(), sum_.sum())

    on_mesh((4,), body)


def test_terms_along_both_dimensions_of_a_mesh() -> None:
    def body(mesh: Any) -> None:
        a, b = ints(4, 3), ints(3) + 1
        left, right = spread(a, mesh, [SUM, Replicate()]), spread(b, mesh, [Replicate(), SUM])
        product = left * right
        assert product.placements == (SUM, SUM)
        same(product, a * b)
        same(left + right, a + b)
        mixed = spread(a, mesh, [Shard(0), SUM])
        assert (mixed * 2).placements == (Shard(0), SUM)
        same(mixed * 2 + left, 3 * a)

    on_mesh((2, 2), body)


def test_out_where_dtype_and_casting() -> None:
    def body(mesh: Any) -> None:
        a = ints(5, 7)
        x, r = spread(a, mesh, [Shard(0)]), spread(a, mesh, [Replicate()])
        for layout in LAYOUTS[mesh.shape]:
            out = spread(np.zeros_like(a), mesh, layout)
            part = out.to_local()
            assert np.add(x, r, out=out) is out
            assert out.placements == layout
            assert out.to_local() is part
            same(out, a + a)
            mask = spread(a > 0, mesh, [Shard(1)])
            np.multiply(x, 10, out=out, where=mask)
            same(out, np.where(a > 0, 10 * a, a + a))
            whole, rest = (spread(np.zeros_like(a), mesh, layout) for _ in range(2))
            found = np.divmod(x, 3, out=(whole, None))
            assert found[0] is whole
            same(whole, a // 3)
            np.modf(x, whole, rest)
            same(whole, np.modf(a)[0])
            np.add(1, 2, out=rest)
            same(rest, np.full_like(a, 3))
        same(np.add(x, r, dtype="f4"), np.add(a, a, dtype="f4"))
        counts = spread(np.arange(6), mesh, [Shard(0)])
        with pytest.raises(TypeError, match="same_kind"):
            counts += 0.5
        counts *= 2
        same(counts, np.arange(6) * 2)
        terms = spread(a, mesh, [SUM])
        terms += r
        assert terms.placements == (SUM,)
        same(terms, a + a)

    on_mesh((4,), body)


def test_operators_and_scalars() -> None:
    def body(mesh: Any) -> None:
        a = np.arange(1, 11)
        x = spread(a, mesh, [Shard(0)])
        for op in (operator.add, operator.floordiv, operator.mod, operator.pow, operator.and_,
                   operator.lshift, operator.truediv, operator.le, operator.ne):  # fmt: skip
            for scalar in (3, np.int16(2), np.array(4)):
                same(op(x, scalar), op(a, scalar))
                same(op(scalar, x), op(scalar, a))
        same(~x, ~a)
        same(abs(-x), a)
        same(divmod(x, 4)[1], a % 4)
        zero_d = spread(np.array(2.0), mesh, [Replicate()])
        same(zero_d * zero_d, np.array(4.0))
        same(x * zero_d, a * np.array(2.0))
        assert float(zero_d + 1) == 3.0

    on_mesh((4,), body)


def test_what_cannot_be_mixed_says_what_to_do() -> None:
    def body(mesh: Any) -> None:
        a = ints(4, 4)
        x, terms = spread(a, mesh, [Shard(0), Replicate()]), spread(a, mesh, [SUM, Replicate()])
        mixes: Any = (lambda: x + a, lambda: a[0] + x, lambda: np.add(x, [1, 2, 3, 4]))
        for mix in mixes:
            with pytest.raises(ArgumentTypeError, match="distribute_tensor"):
                mix()
        elsewhere = spread(a, mesh.flatten(), [Shard(0)])
        with pytest.raises(PlacementError, match="tensors of one mesh for add"):
            x + elsewhere
        with pytest.raises(ArgumentError, match=r"\(4, 4\) and \(3,\)"):
            x + spread(ints(3), mesh, [Replicate(), Replicate()])
        with pytest.raises(ArgumentError, match="expected out of shape"):
            np.add(x, x, out=spread(a[0], mesh, [Replicate(), Replicate()]))
        with pytest.raises(ArgumentTypeError, match="out as a distributed tensor"):
            np.add(x, x, out=np.empty((4, 4)))
        with pytest.raises(PlacementError, match="out array without partial terms"):
            terms += 1
        with pytest.raises(PlacementError, match=r"np\.add\.accumulate"):
            np.add.accumulate(x)
        with pytest.raises(TypeError):
            x + "text"

        class Other:
            __array_ufunc__ = None

            def __radd__(self, other: Any) -> str:
                return "mine"

        assert x + Other() == "mine"

    on_mesh((2, 2), body)


def test_ranks_off_the_mesh_follow() -> None:
    def body(mesh: Any) -> None:
        a = ints(3, 5)
        for layout in LAYOUTS[(2, 2)]:
            x, y = spread(a, mesh, layout), spread(a, mesh, [Replicate(), SUM])
            z = np.exp(x) + y * 2
            assert z.to_local().shape == z.spec.local_shape
            same(z, np.exp(a) + a * 2)
            x += 1
            same(x > 2, a + 1 > 2)
        assert (mesh.get_coordinate() is None) == (mesh.get_rank() >= 4)

    on_mesh((2, 2), body, ranks=6)


def test_the_rule_takes_the_cheapest_way() -> None:
    held = OperandSpec((64, 64), 8, (Shard(0), Shard(1)))
    turned = OperandSpec((64, 64), 2, (Shard(1), Shard(0)))
    assert spread_elementwise("add", (2, 2), (held, turned))[0] == held.placements
    assert spread_elementwise("add", (2, 2), (turned, held))[0] == held.placements
    assert spread_elementwise("exp", (2, 2), (held,))[1] == (held.placements,)
    row = OperandSpec((1, 64), 8, (Shard(0), Shard(1)))
    assert spread_elementwise("add", (2, 2), (held, row)) == (
        (Shard(0), Shard(1)), ((Shard(0), Shard(1)), (Replicate(), Shard(1)))
    )  # fmt: skip
    assert bytes_moved((2, 2), held, (Replicate(), Replicate())) > bytes_moved(
        (2, 2), held, (Shard(0), Replicate())
    )
