"""`MeshGenerator`: vectors, arguments, choices and permutations of distributed tensors."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.mesh_draws import assert_as_on_one_device
from nbrt.distributed import Partial, Replicate, Shard, StridedShard
from nbrt.distributed.creation.distribute import distribute_tensor
from nbrt.distributed.dtensor import DTensor
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistributedError,
    NotSupportedError,
    PlacementError,
    RankFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Mesh, placements of a matrix, ranks.
MATRICES: list[tuple[tuple[int, ...], list[dist.Placement] | None, int]] = [
    ((4,), [Shard(0)], 4),
    ((3,), [Shard(1)], 4),
    ((2, 2), [Shard(0), Shard(1)], 4),
    ((2, 2), [StridedShard(0, 3), Shard(1)], 5),
    ((2,), None, 2),
]
EVERY_MATRIX = pytest.mark.parametrize(("mesh", "placements", "ranks"), MATRICES, ids=str)
DATA = np.arange(40.0).reshape(8, 5)


@EVERY_MATRIX
def test_vectors_are_drawn_whole_and_cut(mesh, placements, ranks) -> None:
    def draw(generator: Any) -> tuple[Any, ...]:
        return (
            generator.dirichlet([1.0, 2.0, 3.0], size=7),
            generator.random((3, 2), "float32"),
            generator.dirichlet([2.0, 0.5], size=3),
        )

    assert_as_on_one_device(draw, mesh, placements, ranks=ranks)


@EVERY_MATRIX
def test_parameters_may_be_arrays(mesh, placements, ranks) -> None:
    def draw(generator: Any) -> tuple[Any, ...]:
        return (
            generator.normal(np.arange(7.0)[:, None], [1.0, 2.0, 3.0, 4.0, 5.0], dtype="float32"),
            generator.integers(np.arange(5), 100, (7, 5)),
            generator.normal(3.0, np.ones((1, 5)), (7, 5), "float32"),
        )

    assert_as_on_one_device(draw, mesh, placements, ranks=ranks)


@EVERY_MATRIX
def test_parameters_may_be_distributed_tensors(mesh, placements, ranks) -> None:
    """Parameters with any placements broadcast to the shape of the draw."""
    means, scales = np.arange(35.0).reshape(7, 5), np.arange(1.0, 6.0)

    def draw(generator: Any) -> tuple[Any, ...]:
        first: Any = means
        second: Any = scales
        bounds: Any = np.arange(1, 8)[:, None]
        if isinstance(generator, dist.MeshGenerator):
            over = generator.device_mesh
            cuts = [Shard(0)] * over.ndim
            first, second, bounds = (
                distribute_tensor(each, over, cuts) for each in (first, second, bounds)
            )
        return (
            generator.normal(first, second, dtype="float32"),
            generator.integers(0, bounds, (7, 5)),
        )

    assert_as_on_one_device(draw, mesh, placements, ranks=ranks)


@EVERY_MATRIX
def test_arrays_are_reordered_as_on_one_device(mesh, placements, ranks) -> None:
    def draw(generator: Any) -> tuple[Any, ...]:
        data: Any = DATA
        if isinstance(generator, dist.MeshGenerator):
            over = generator.device_mesh
            data = distribute_tensor(
                DATA, over, [StridedShard(0, 2)] + [Shard(1)] * (over.ndim - 1)
            )
        kept = (
            data.copy() if isinstance(data, np.ndarray) else DTensor(data._local.copy(), data.spec)
        )
        generator.shuffle(kept, axis=1)
        return (
            kept,
            generator.permutation(data),
            generator.permutation(DATA, axis=-1),
            generator.permuted(data, axis=0),
            generator.permuted(data),
            generator.bytes(5),
            generator.choice(data, 4, replace=False),
        )

    assert_as_on_one_device(draw, mesh, placements, ranks=ranks)


def test_choices_and_orders_of_numbers() -> None:
    def draw(generator: Any) -> tuple[Any, ...]:
        return (
            generator.permutation(11),
            generator.choice(10, 7),
            generator.choice(5, 3, p=[0.2] * 5),
            generator.choice(10),
            generator.random(),
        )

    assert_as_on_one_device(draw, (4,), [Shard(0)], ranks=5)
    torch: dict[str, Any] = {"layout": "torch", "gpu": "H100 SXM"}
    assert_as_on_one_device(lambda g: g.permutation(11), (4,), [Shard(0)], **torch)


def test_choices_along_an_axis_keep_the_other_cuts() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2))
        data = distribute_tensor(DATA, mesh, [Shard(0), Shard(1)])
        generator = dist.MeshGenerator(mesh, None, nbrt.Generator(1))
        picked = generator.choice(data, (2, 3), axis=0)
        assert picked.placements == (Replicate(), Shard(2))
        single = nbrt.Generator(1).choice(DATA, (2, 3), axis=0)
        assert np.array_equal(picked.full_tensor(), single)
        one = dist.MeshGenerator(mesh, [Replicate(), Shard(0)], nbrt.Generator(1)).choice(data)
        assert one.shape == (5,)
        assert np.array_equal(one.full_tensor(), nbrt.Generator(1).choice(DATA))

    dist.run(rank, ranks=4)


def test_out_is_filled_where_it_is() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (3,))
        generator = dist.MeshGenerator(mesh, [Shard(0)], nbrt.Generator(1))
        out = distribute_tensor(np.zeros((4, 5), np.float32), mesh, [Shard(1)])
        local = out.to_local()
        assert generator.random(dtype="float32", out=out) is out
        assert out.to_local() is local
        single = nbrt.Generator(1)
        assert np.array_equal(out.full_tensor(), single.random((4, 5), "float32"))
        wide = distribute_tensor(np.zeros((4, 3)), mesh, [Shard(1)])
        assert generator.dirichlet([1.0, 2.0, 3.0], 4, out=wide) is wide
        assert np.array_equal(wide.full_tensor(), single.dirichlet([1.0, 2.0, 3.0], 4))
        lines = distribute_tensor(DATA, mesh, [Shard(0)])
        assert generator.permuted(lines, axis=1, out=lines) is lines
        assert np.array_equal(lines.full_tensor(), single.permuted(DATA, axis=1))
        before = generator.state
        for size, dtype, given, error in [
            (3, "float32", out, ArgumentError),
            (None, "float64", out, ArgumentTypeError),
            (None, "float32", np.zeros(3, np.float32), ArgumentTypeError),
        ]:
            with pytest.raises(error, match="expected out"):
                generator.random(size, dtype, given)
        assert generator.state == before

    dist.run(rank, ranks=3)


def test_a_parameter_that_fits_the_part_alone_is_refused() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,))
        generator = dist.MeshGenerator(mesh, [Shard(0)], nbrt.Generator(1))
        with pytest.raises(ArgumentError, match=r"broadcast to shape \(8,\), got \(4,\)"):
            generator.normal(np.zeros(4), size=8)
        with pytest.raises(PlacementError, match="no rank has the values of a partial tensor"):
            generator.normal(DTensor.from_local(np.zeros(8), mesh, [Partial()]))
        other = dist.DeviceMesh("cpu", [1, 0])
        with pytest.raises(PlacementError, match="redistribute it first"):
            generator.normal(DTensor.from_local(np.zeros(4), other, [Shard(0)]))
        assert generator.get_offset() == 0

    dist.run(rank, ranks=2)


def test_a_parameter_that_is_wrong_on_one_rank_fails_on_all_of_the_mesh() -> None:
    def rank() -> tuple[str, int]:
        mesh = dist.init_device_mesh("cpu", (3,))
        generator = nbrt.Generator(3)
        drawing = dist.MeshGenerator(mesh, [Shard(0)], generator)
        scale = np.array([1.0, 1.0, -1.0, 1.0, 1.0, 1.0])
        if dist.get_rank() < 3:  # one off the mesh need not come
            with pytest.raises((ArgumentError, RankFailedError)) as caught:
                drawing.normal(0.0, scale)
            with pytest.raises((ArgumentError, RankFailedError)):
                drawing.gamma(distribute_tensor(scale, mesh, [Shard(0)]))
            drawing.normal(0.0, abs(scale))
            return str(caught.value), generator.get_offset()
        return "", 12

    said = dist.run(rank, ranks=4)
    assert [offset for _, offset in said] == [12] * 4
    assert "expected finite scale >= 0" in said[1][0]
    for number in (0, 2):
        assert "rank 1 raised ArgumentError: normal: expected finite scale >= 0" in said[number][0]


def test_weights_that_are_wrong_on_one_rank_fail_on_all_of_the_mesh() -> None:
    def rank() -> tuple[str, int]:
        mesh, generator = dist.init_device_mesh("cpu", (3,)), nbrt.Generator(3)
        rows = np.ones((6, 3))
        rows[5, 0] = -1.0
        weights = distribute_tensor(rows, mesh, [Shard(0)])
        with pytest.raises((ArgumentError, RankFailedError)) as caught:
            nbrt.random.multinomial(weights, 2, True, generator=generator)
        with pytest.raises(ArgumentError, match="at most 3 samples without replacement"):
            nbrt.random.multinomial(weights[:0], 4, generator=generator)
        return str(caught.value), generator.get_offset()

    said = dist.run(rank, ranks=3)
    assert [offset for _, offset in said] == [0, 0, 0]
    assert "rank 2 raised ArgumentError: expected finite weights" in said[0][0]


def test_a_generator_of_another_rank_is_refused_by_what_all_draw() -> None:
    box: list[dist.MeshGenerator] = []

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,))
        if dist.get_rank() == 0:
            box.append(dist.MeshGenerator(mesh, [Shard(0)], nbrt.Generator(7)))
        dist.world().barrier()
        if dist.get_rank() == 1:
            draws: list[Callable[[Any], Any]] = [
                lambda own: own.permutation(8),
                lambda own: own.permuted(np.arange(3)),
                lambda own: own.choice(8, 3),
                lambda own: own.shuffle([1, 2, 3]),
                lambda own: own.bytes(4),
            ]
            for draw in draws:
                with pytest.raises(DistributedError, match="rank 0"):
                    draw(box[0])
            assert box[0].get_offset() == 0

    dist.run(rank, ranks=2)


@pytest.mark.parametrize("axis", [np.arange(2), ["a"], [None], 2.0, True])
def test_what_is_no_axis_is_refused(axis: Any) -> None:
    generator = dist.MeshGenerator(dist.init_device_mesh("cpu", (1,)), None, nbrt.Generator(7))
    for draw in (
        lambda: generator.permutation(DATA, axis),
        lambda: generator.permuted(DATA, axis=axis),
        lambda: generator.choice(DATA, 2, axis=axis),
    ):
        with pytest.raises(ArgumentTypeError, match="expected an axis of type int"):
            draw()
    for draw in (lambda: generator.permutation([[1], [2, 3]]), lambda: generator.choice([[1], 2])):
        with pytest.raises(ArgumentError, match="as an array of numbers"):
            draw()
    assert generator.get_offset() == 0


def test_it_is_a_generator_of_the_state_it_was_given() -> None:
    with dist.init_device_mesh("cpu", (1,)) as mesh:
        plain = nbrt.Generator(3)
        generator = dist.MeshGenerator(placements=Shard(0), generator=plain)
        assert generator.device_mesh is mesh
        assert generator.plain is plain
        generator.random(5)
        assert plain.state == generator.state == (3, 12)
        generator.set_offset(40)
        clone, child = generator.clone(), generator.spawn(1)[0]
        assert isinstance(child, dist.MeshGenerator)
        assert child.state == plain.clone().spawn(2)[0].state or child.get_offset() == 0
        clone.random(5)
        assert (plain.get_offset(), clone.get_offset()) == (40, 52)
        copied = copy.deepcopy(generator)
        assert np.array_equal(copied.random(3).to_local(), generator.random(3).to_local())
        assert copied.state == generator.state
        assert dist.MeshGenerator(mesh, None, generator).plain is plain
        assert dist.MeshGenerator(mesh).plain is nbrt.default_generator()
        with pytest.raises(NotSupportedError, match=r"plain\.shard"):
            generator.shard(3, slice(2))
        assert repr(generator).startswith("MeshGenerator(DeviceMesh('cpu', [0]), Shard(dim=0)")


# -- functions and factories -----------------------------------------------------------------------


def tensors(mesh: dist.DeviceMesh, dtype: str = "float32") -> DTensor:
    return distribute_tensor(np.full((5, 6), 0.5, dtype), mesh, [Shard(0), StridedShard(1, 2)])


FUNCTIONS: dict[str, Any] = {
    "uniform_": lambda x: nbrt.random.uniform_(x, 2.0, 3.0),
    "normal_": lambda x: nbrt.random.normal_(x, 1.0),
    "bernoulli_": lambda x: nbrt.random.bernoulli_(x, 0.3),
    "random_": lambda x: nbrt.random.random_(x, 7),
    "random_ of the dtype": nbrt.random.random_,
    "rand_like": nbrt.random.rand_like,
    "randn_like": lambda x: nbrt.random.randn_like(x, dtype="float32"),
    "randint_like": lambda x: nbrt.random.randint_like(x, 3, 9, dtype="int32"),
    "bernoulli": nbrt.random.bernoulli,
    "normal": lambda x: nbrt.random.normal(x, 2.0),
    "normal to a larger size": lambda x: nbrt.random.normal(x, x, (2, 5, 6)),
    "dropout": lambda x: nbrt.random.dropout(x, 0.3),
    "dropout at rest": lambda x: nbrt.random.dropout(x, 0.3, training=False),
    "multinomial": lambda x: nbrt.random.multinomial(x, 4),
    "multinomial with replacement": lambda x: nbrt.random.multinomial(x, 4, True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_nbrt_random_take_distributed_tensors(name: str) -> None:
    function = FUNCTIONS[name]

    def rank() -> tuple[Any, Any]:
        mesh = dist.init_device_mesh("cpu", (2, 2))
        nbrt.manual_seed(11)
        single = function(nbrt.full((5, 6), 0.5, "float32"))
        state = nbrt.default_generator().state
        nbrt.manual_seed(11)
        given = tensors(mesh)
        result = function(given)
        assert nbrt.default_generator().state == state
        if name.endswith("_"):
            assert result is given
        pairs = (
            zip(result, single, strict=True) if isinstance(result, tuple) else [(result, single)]
        )
        for made, wanted in pairs:
            assert isinstance(made, DTensor)
            whole = made.full_tensor()
            assert made.dtype == wanted.dtype
            if mesh.get_coordinate() is not None:
                assert np.array_equal(whole, wanted)

    dist.run(rank, ranks=5)


def test_functions_follow_the_tensor_and_refuse_partial_ones() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2))
        x = tensors(mesh)
        for made in (nbrt.random.rand_like(x), nbrt.random.bernoulli(x), nbrt.random.dropout(x)[1]):
            assert made.placements == x.placements
        rows = nbrt.random.multinomial(x, 2)
        assert rows.placements == (Shard(0), Replicate())
        wide = nbrt.random.normal(x, 1.0, (2, 5, 6))
        assert wide.placements == (Replicate(), Replicate())
        terms = DTensor.from_local(np.zeros(4), mesh, [Partial(), Replicate()])
        before = nbrt.random.get_offset()
        for function in (nbrt.random.uniform_, nbrt.random.rand_like, nbrt.random.dropout):
            with pytest.raises(PlacementError, match="partial tensor; reduce it first"):
                function(terms)
        assert nbrt.random.get_offset() == before
        own = nbrt.Generator(2)
        nbrt.random.uniform_(x, generator=own)
        assert own.get_offset() == 32
        drawn = nbrt.random.rand(4, generator=dist.MeshGenerator(mesh, [Shard(0), Shard(0)], own))
        assert drawn.to_local().shape == (1,)

    dist.run(rank, ranks=4)


def test_factories_are_torchs_over_the_bits_of_the_generator() -> None:
    def rank() -> None:
        with dist.init_device_mesh("cpu", (2,)) as mesh:
            single = nbrt.Generator(4)
            generator = nbrt.Generator(4)
            x = dist.rand(3, 5, placements=[Shard(0)], generator=generator)
            assert (x.dtype, x.device_mesh) == (np.float32, mesh)
            assert np.array_equal(x.full_tensor(), single.random((3, 5), "float32"))
            y = dist.randn((3, 5), dtype="float32", placements=Shard(1), generator=generator)
            assert np.array_equal(y.full_tensor(), single.standard_normal((3, 5), "float32"))
            z = dist.randint(-3, 8, (7,), device_mesh=mesh, generator=generator)
            assert np.array_equal(z.to_local(), single.integers(-3, 8, 7))
            few = dist.randint(8, (7,), dtype="int32", placements=[Shard(0)], generator=generator)
            assert np.array_equal(few.full_tensor(), single.integers(0, 8, 7, "int32"))
            assert dist.rand_like(x, generator=generator).placements == (Shard(0),)

    dist.run(rank, ranks=2)


FAILING: dict[str, tuple[list[dist.Placement] | None, Callable[[Any, Any], Any]]] = {
    "out": (None, lambda generator, x: generator.permuted(x, axis=0, out=x.to_local())),
    "dtype of out": (None, lambda generator, x: generator.permuted(x.astype("int32"), out=x)),
    "cut of an order": ([Shard(1)], lambda generator, _: generator.permutation(8)),
    "cut of rows": ([Shard(2)], lambda generator, x: generator.permutation(x)),
    "cut of picks": ([Shard(1)], lambda generator, _: generator.choice(8, 3)),
    "cut of picked rows": ([Shard(2)], lambda generator, x: generator.choice(x, 3)),
}


@pytest.mark.parametrize(("placements", "draw"), FAILING.values(), ids=FAILING)
def test_what_fails_after_its_draw_leaves_the_state_as_it_was(placements, draw) -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,))
        x = distribute_tensor(DATA, mesh, [Shard(0)])
        generator = dist.MeshGenerator(mesh, placements, nbrt.Generator(5))
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            draw(generator, x)
        assert generator.get_offset() == 0

    dist.run(rank, ranks=2)
