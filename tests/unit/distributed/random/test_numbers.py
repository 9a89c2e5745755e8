"""Distributed tensors without dimensions as parameters: they are what 0-d arrays are elsewhere."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
import nbrt.distributed as dist
from helpers.mesh_draws import assert_as_on_one_device
from nbrt.distributed import Partial, Replicate, Shard
from nbrt.distributed.creation.distribute import distribute_tensor
from nbrt.distributed.dtensor import DTensor
from nbrt.errors import ArgumentError, ArgumentTypeError, NbrtError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable

# Numbers that each method takes before `size`.
METHODS: dict[str, tuple[Any, ...]] = {
    "uniform": (-1.5, 2.0),
    "normal": (1.0, 2.0),
    "lognormal": (1.0, 2.0),
    "exponential": (2.0,),
    "cauchy": (1.0, 2.0),
    "laplace": (1.0, 2.0),
    "logistic": (1.0, 2.0),
    "gumbel": (1.0, 2.0),
    "weibull": (2.0,),
    "pareto": (2.0,),
    "power": (2.0,),
    "rayleigh": (2.0,),
    "triangular": (1.0, 2.0, 3.0),
    "truncated_normal": (1.0, 2.0, 3.0, 4.0),
    "standard_gamma": (2.0,),
    "gamma": (2.0, 3.0),
    "beta": (2.0, 3.0),
    "chisquare": (2.0,),
    "noncentral_chisquare": (2.0, 3.0),
    "f": (2.0, 3.0),
    "noncentral_f": (2.0, 3.0, 4.0),
    "standard_t": (2.0,),
    "vonmises": (0.5, 2.0),
    "wald": (1.0, 2.0),
    "bernoulli": (0.25,),
    "geometric": (0.25,),
    "poisson": (3.0,),
    "binomial": (7, 0.25),
    "negative_binomial": (7.0, 0.25),
    "hypergeometric": (5, 6, 7),
    "logseries": (0.25,),
    "zipf": (2.0,),
    "integers": (3, np.int32(9)),
}
VECTORS = {"multinomial", "multivariate_hypergeometric", "multivariate_normal", "dirichlet"}
TORCH: dict[str, Any] = {"layout": "torch", "gpu": "H100 SXM"}
VALUES = np.linspace(0.25, 0.75, 5)


def as_number(generator: Any, value: Any) -> Any:
    """Return a 0-d array; where a mesh draws, as its tensor."""
    array = np.asarray(value)
    if not isinstance(generator, dist.MeshGenerator):
        return array
    return on_mesh(array, generator.device_mesh)


def on_device(value: Any) -> Any:
    return nbrt.full((), value, np.asarray(value).dtype)


def on_mesh(value: Any, mesh: dist.DeviceMesh) -> DTensor:
    return distribute_tensor(np.asarray(value), mesh, [Replicate()] * mesh.ndim)


def test_every_method_that_takes_numbers_takes_them_as_tensors() -> None:
    """Sizes of no elements: all that is done about parameters is done, and nothing compiled."""
    found = {
        name
        for name, method in inspect.getmembers(nbrt.Generator, inspect.isfunction)
        if not name.startswith("_") and "size" in list(inspect.signature(method).parameters)[2:]
    }
    assert found == {*METHODS, *VECTORS, "choice"}

    def rank() -> None:
        mesh = dist.DeviceMesh("cpu", [0, 1])
        drawing = dist.MeshGenerator(mesh, [Shard(0)], nbrt.Generator(1))
        for name, values in METHODS.items():
            method = getattr(drawing, name)
            numbers = [on_mesh(value, mesh) for value in values]
            assert method(*numbers, size=(0, 3)).shape == (0, 3)
            names = list(inspect.signature(method).parameters)
            assert method(**dict(zip(names, numbers, strict=False)), size=0).shape == (0,)
        assert drawing.get_offset() == 0

    dist.run(rank, ranks=3)


DRAWS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "numbers": lambda g, n: (
        g.uniform(n(-1.5), n(np.float32(0.1)), 7, "float32"),
        g.uniform(n(-0.0), high=n(np.int32(2)), size=(7, 2), dtype="float32"),
        g.random(3),
        g.bernoulli(n(0.25), 9),
        g.integers(n(np.int8(-5)), n(np.int32(9)), 7),
        g.random(3),
    ),
    "beside arrays": lambda g, n: (
        g.uniform(n(1.0), 1.0 + VALUES, (3, 5), "float32"),
        g.uniform(VALUES, n(2.0), dtype="float32"),
        g.integers(n(0), np.arange(1, 6)),
        g.random(3, "float32"),
    ),
    "alone": lambda g, n: (g.uniform(n(0.5)), g.integers(n(np.uint8(9))), g.random(3)),
    "vectors": lambda g, n: (
        g.multinomial(n(7), [0.25, 0.75], 3),
        g.multinomial(n(7), [0.25, 0.75]),
        g.random(3),
    ),
}


@pytest.mark.parametrize("placements", [None, [Shard(0)]], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_they_are_the_0d_arrays_of_one_device(name, placements) -> None:
    """With a rank off the mesh, which does not know the values and moves on as far."""

    def draw(generator: Any) -> Any:
        return DRAWS[name](generator, lambda value: as_number(generator, value))

    assert_as_on_one_device(draw, (2,), placements, ranks=3)


def test_the_torch_layout_takes_them_as_numbers() -> None:
    """Not as arrays, which it refuses or draws in another way."""

    def draw(generator: Any) -> Any:
        return (
            generator.uniform(as_number(generator, 1.0), 2.0, 6, "float32"),
            generator.bernoulli(as_number(generator, 0.25), 9),
            generator.random(3, "float32"),
        )

    assert_as_on_one_device(draw, (2,), [Shard(0)], ranks=3, **TORCH)


def test_all_ranks_of_a_mesh_of_all_know_them() -> None:
    def draw(generator: Any) -> Any:
        def n(value: Any) -> Any:
            return as_number(generator, value)

        return (
            generator.integers(n(-5), n(2**40), 7),
            generator.permutation(n(7)),
            generator.choice(n(9), 4),
            *generator.dropout(VALUES.astype(np.float32), n(0.5)),
        )

    assert_as_on_one_device(draw, (2,), [Shard(0)])


def test_what_ranks_off_the_mesh_must_know_is_refused_everywhere() -> None:
    def rank() -> int:
        mesh = dist.DeviceMesh("cpu", [0, 1])
        drawing = dist.MeshGenerator(mesh, [Shard(0)], nbrt.Generator(1))
        count: Any = on_mesh(7, mesh)
        chance: Any = on_mesh(0.5, mesh)
        draws: list[Callable[[], Any]] = [
            lambda: drawing.integers(count, size=4),
            lambda: drawing.integers(-1, on_mesh(np.uint32(7), mesh), 4, endpoint=True),
            lambda: drawing.permutation(count),
            lambda: drawing.choice(count, 4),
            lambda: drawing.dropout(VALUES, chance),
            lambda: nbrt.random.random_(dist.ones(4, device_mesh=mesh), count, generator=drawing),
        ]
        for draw in draws:
            with pytest.raises(ArgumentTypeError, match="as a number that all ranks know"):
                draw()
        assert drawing.get_offset() == 0
        drawing.integers(count, size=4, dtype="int32")
        drawing.integers(count, size=0)
        return drawing.get_offset()

    assert dist.run(rank, ranks=3) == [4, 4, 4]


FUNCTIONS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "normal_": lambda x, n: nbrt.random.normal_(x, n(1.0), n(2.0)),
    "uniform_": lambda x, n: nbrt.random.uniform_(x, high=n(2.0)),
    "exponential_": lambda x, n: nbrt.random.exponential_(x, n(4.0)),
    "bernoulli_": lambda x, n: nbrt.random.bernoulli_(x, n(0.25)),
    "random_": lambda x, n: nbrt.random.random_(x, n(np.int32(3)), n(np.int32(9))),
    "random_ of 0 to": lambda x, n: nbrt.random.random_(x, n(np.uint8(9))),
    "normal": lambda x, n: nbrt.random.normal(x, n(2.0)),
    "bernoulli": lambda _, n: nbrt.random.bernoulli(n(np.float32(0.25))),
    "randint": lambda _, n: nbrt.random.randint(n(np.int32(9)), (5,)),
    "randint_like": lambda x, n: nbrt.random.randint_like(x, n(9), dtype="int32"),
    "rand_like": lambda _, n: nbrt.random.rand_like(n(np.float32(9))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_nbrt_random_take_them(name: str) -> None:
    def rank() -> None:
        mesh = dist.DeviceMesh("cpu", [0, 1])
        nbrt.manual_seed(11)
        single = FUNCTIONS[name](nbrt.full(5, 0.5, "float32"), on_device)
        state = nbrt.default_generator().state
        nbrt.manual_seed(11)
        given = distribute_tensor(np.full(5, 0.5, "float32"), mesh, [Shard(0)])
        result = FUNCTIONS[name](given, lambda value: on_mesh(value, mesh))
        assert nbrt.default_generator().state == state
        assert (result.shape, result.dtype) == (np.shape(single), single.dtype)
        whole = result.full_tensor()
        if mesh.get_coordinate() is not None:
            assert np.array_equal(whole, single)

    dist.run(rank, ranks=3)


def test_what_is_wrong_is_refused_and_moves_nothing() -> None:
    def rank() -> None:
        mesh, other = dist.DeviceMesh("cpu", [0, 1]), dist.DeviceMesh("cpu", [1, 0])
        drawing = dist.MeshGenerator(mesh, [Shard(0)], nbrt.Generator(1))
        terms = DTensor.from_local(np.ones(()), mesh, [Partial()])
        counts = DTensor.from_local(np.ones((), np.int32), mesh, [Partial()])
        one: Any = on_mesh(1.0, mesh)
        nine: Any = on_mesh(np.int32(9), mesh)
        x: Any = dist.zeros(4, device_mesh=mesh)
        lows: list[Any] = [np.arange(4), [1], distribute_tensor(np.ones(1, int), mesh, [Shard(0)])]
        everywhere: list[tuple[type[NbrtError], Callable[[], Any]]] = [
            (PlacementError, lambda: drawing.normal(terms, size=4)),
            (PlacementError, lambda: drawing.normal(on_mesh(1.0, other), size=4)),
            (PlacementError, lambda: drawing.integers(0, counts, 4)),
            (ArgumentTypeError, lambda: drawing.binomial(one, 0.5, 4)),
            (ArgumentTypeError, lambda: drawing.multinomial(one, [0.5, 0.5], 4)),
            (ArgumentTypeError, lambda: drawing.integers(0, one, 4, "int32")),
            (ArgumentTypeError, lambda: drawing.shuffle(one)),
            (ArgumentTypeError, lambda: nbrt.Generator(1).normal(one, size=4)),
            (NbrtError, lambda: nbrt.random.multinomial(np.ones(3), one)),
            *((ArgumentError, partial(nbrt.random.random_, x, low, nine)) for low in lows),
        ]
        for error, draw in everywhere:
            with pytest.raises(error, match="expected"):
                draw()
        if mesh.get_coordinate() is not None:  # where alone the values are known
            with pytest.raises(ArgumentError, match="scale"):
                drawing.normal(one, -1.0, 4)
            for value in (-1.0, math.nan):
                with pytest.raises(ArgumentError, match=r"scale|finite"):
                    drawing.normal(0.0, on_mesh(value, mesh), 4)
        assert drawing.get_offset() == 0

    dist.run(rank, ranks=3)
