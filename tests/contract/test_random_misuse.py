"""Misuse of generators is refused with a reason and takes no numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.random import PhiloxState, Region, audit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def generator(device: nbrt.Device) -> nbrt.Generator:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return nbrt.Generator(7, device)


def test_dropout_in_a_shard_has_its_shape(generator: nbrt.Generator) -> None:
    x = nbrt.full(20, 1.0, "float32", device=generator.device)
    whole, mask = (nbrt.to_host(a) for a in generator.clone().dropout(x, 0.5))
    shard = generator.shard(20, slice(5, 15))
    part, kept = (nbrt.to_host(a) for a in shard.dropout(x[5:15].copy(), 0.5))
    assert np.array_equal(part, whole[5:15])
    assert np.array_equal(kept, mask[5:15])
    for size in (3, 20, 40):
        with pytest.raises(ArgumentError, match=r"shape of the shard, \(10,\)"):
            shard.dropout(nbrt.zeros(size, device=generator.device), 0.5)
    assert generator.state.offset == 20


def test_a_scalar_choice_of_words(generator: nbrt.Generator) -> None:
    if generator.device.kind == "cuda":
        pytest.skip("no arrays of words on cuda")
    assert generator.choice(["heads", "tails"]) in ("heads", "tails")
    assert generator.choice([b"a", b"b"], p=[0.0, 1.0]) == b"b"
    assert generator.choice(["a", "b"], size=()).shape == ()


def test_a_matrix_is_filled_like_an_array() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.asmatrix(np.zeros((2, 3)))
    assert nbrt.Generator(7, "cpu:0").random(out=matrix) is matrix
    assert np.array_equal(np.asarray(matrix), nbrt.Generator(7, "cpu:0").random((2, 3)))


def test_permutations_fit_their_dtype(generator: nbrt.Generator) -> None:
    order = nbrt.random.randperm(128, dtype="int8", generator=generator)
    assert sorted(nbrt.to_host(order).tolist()) == list(range(128))
    before = generator.state
    wrong: list[tuple[Any, Any]] = [(129, "int8"), (3, "bool"), (2050, "float16"), ([3], "int64")]
    for n, dtype in [*wrong, (4, "junk")]:
        with pytest.raises((ArgumentError, ArgumentTypeError), match="expected"):
            nbrt.random.randperm(n, dtype=dtype, generator=generator)
    assert generator.state == before


def test_counts_saturate(generator: nbrt.Generator) -> None:
    counts = nbrt.to_host(generator.clone().poisson(120.0, 200))
    short = nbrt.to_host(generator.poisson(120.0, 200, dtype="int8"))
    assert np.array_equal(short, np.minimum(counts, 127).astype(np.int8))


def test_equal_parameters_give_equal_bits(generator: nbrt.Generator) -> None:
    first = nbrt.to_host(generator.normal(0.0, 0.0, 2))
    generator.set_offset(0)
    second = nbrt.to_host(generator.normal(-0.0, 0.0, 2))
    assert first.tobytes() == second.tobytes()


@dataclass(frozen=True)
class Broken:
    words: Any = 4
    numbers: tuple[Any, ...] = ()
    name: str = "broken"
    follows_memory: ClassVar[bool] = False
    index_to_counter: ClassVar[Any] = None

    def increment(self, distribution: str, dtype: str, n: int, parameters: tuple[Any, ...]) -> Any:
        return self.words

    def constants(self, distribution: str, dtype: str, n: int) -> tuple[Any, ...]:
        return self.numbers


@pytest.mark.parametrize(
    "layout",
    [
        Broken(None),
        Broken(0),
        Broken(3),
        Broken(4.0),
        Broken(-4),
        Broken(4, (-1,)),
        Broken(4, (1.5,)),
    ],
)
def test_layouts_that_break_their_word(generator: nbrt.Generator, layout: Broken) -> None:
    drawing = nbrt.Generator(7, generator.device, layout)
    with pytest.raises(ArgumentError, match="layout 'broken'"):
        drawing.random(5)
    assert drawing.state.offset == 0


def test_a_layout_has_a_name_of_its_own(generator: nbrt.Generator) -> None:
    with pytest.raises(ArgumentError, match="another name"):
        nbrt.Generator(7, generator.device, Broken(name="element"))


WRONG: list[tuple[str, Callable[[nbrt.Generator], Any]]] = [
    ("got arrays", lambda g: nbrt.Generator(1, g.device, "torch", gpu="T4").normal([0.0, 1.0])),
    ("got arrays", lambda g: nbrt.Generator(1, g.device, "torch_stateless").uniform([0.0, 1.0])),
    ("one integer", lambda g: g.multivariate_hypergeometric([4, 4], [1, 2])),
    ("one number", lambda g: nbrt.random.exponential_(nbrt.zeros(3, device=g.device), [1.0, 2.0])),
    ("n to broadcast", lambda g: g.multinomial([5, 10], [0.5, 0.5], size=3)),
    ("list or an array", lambda g: g.shuffle(np.array(3))),
    ("at most 2..62", lambda g: g.shard(2**64, slice(0, 8))),
    ("as many strides", lambda g: g.shard(9, Region(0, (3, 2), (1,)))),
    ("integers in a region", lambda g: g.shard(9, Region(0.5, (3,), (1,)))),  # type: ignore[arg-type]
    ("whole draws", lambda g: g.shard(10, slice(5, 10)).permutation(5)),
    ("whole draws", lambda g: g.shard(10, slice(5, 10)).choice(5, 5, replace=False)),
    ("same shape", lambda g: g.permuted(np.arange(4), out=np.arange(5))),
    ("nbrt.Generator", lambda g: nbrt.random.rand(2, generator=np.random.default_rng(1))),  # type: ignore[arg-type]
    ("real number", lambda g: g.normal(2**2000)),
    ("a seed of type int, got array", lambda _: nbrt.Generator(np.arange(3))),
    ("an offset of type int", lambda g: g.set_offset(np.arange(3))),
    ("words to skip of type int", lambda g: g.advance(np.arange(3))),
    ("n_children of type int", lambda g: g.spawn(np.arange(3))),
    ("words to skip of type int", lambda g: g.state.advance(None)),
    ("an axis of type int", lambda g: g.permutation(np.arange(3), axis=np.arange(3))),
    ("loc as an array of numbers", lambda g: g.normal([[1.0], [1.0, 2.0]])),
    ("low as an array of numbers", lambda g: g.integers([[1], [1, 2]], 5)),
    ("cov as a matrix", lambda g: g.multivariate_normal([0.0], "x")),
    ("out to be an array", lambda g: g.fill_integers([1, 2])),
    ("both bounds or none", lambda g: g.fill_integers(np.ones(2), 3)),
    ("both bounds or none", lambda g: g.fill_integers(np.ones(2), high=3)),
    ("the argument to be an array", lambda _: nbrt.random.rand_like([1.0])),
    ("the argument to be an array", lambda g: nbrt.random.uniform_([1.0], generator=g)),
    ("a dtype", lambda g: nbrt.random.rand_like(np.ones(2), dtype=np.ones(2), generator=g)),
    ("one integer each", lambda g: nbrt.random.random_(np.ones(2), [1, 2], 5, generator=g)),
    ("devices as an iterable", lambda _: nbrt.random.fork_rng(2.5).__enter__()),
]


@pytest.mark.parametrize(("message", "draw"), WRONG)
def test_refused_with_a_reason(
    generator: nbrt.Generator, message: str, draw: Callable[[nbrt.Generator], Any]
) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError, NotSupportedError), match=message):
        draw(generator)
    assert generator.state == PhiloxState(7, 0)


@pytest.mark.parametrize(
    ("message", "draw"),
    [
        ("scale >= 0", lambda g, size: g.normal(0.0, -1.0, size)),
        ("low <= high", lambda g, size: g.uniform(2.0, 1.0, size, "float32")),
        (r"p in \(0, 1\]", lambda g, size: g.geometric(0.0, size)),
        ("shape >= 0", lambda g, size: g.gamma(-2.0, 1.0, size)),
        (r"p in \[0, 1\]", lambda g, size: g.binomial(3, 1.5, size)),
    ],
)
def test_parameters_of_empty_draws_are_checked(
    generator: nbrt.Generator, message: str, draw: Callable[[nbrt.Generator, Any], Any]
) -> None:
    for _ in range(2):
        for size in (0, (0, 3), (1,)):
            with pytest.raises(ArgumentError, match=message):
                draw(generator, size)
    assert generator.normal(0.0, 1.0, (3, 0)).shape == (3, 0)
    assert generator.gamma(2.0, 1.0, 0).shape == (0,)
    assert generator.state == PhiloxState(7, 0)


def test_states_that_are_none_derive_nothing() -> None:
    for use in (lambda s: s.split(1), lambda s: s.fold_in(1), lambda s: s.to_bytes()):
        with pytest.raises(ArgumentError, match="multiple of 4"):
            use(PhiloxState(1, 3))


def test_chances_of_float32(generator: nbrt.Generator) -> None:
    chances = np.full(10, 0.1, np.float32)
    assert 0 <= int(generator.choice(10, p=chances)) < 10
    weights = [1e308] * 3
    picked = nbrt.to_host(nbrt.random.multinomial(weights, 300, True, generator=generator))
    assert set(picked.tolist()) == {0, 1, 2}


def test_vectors_of_a_shard(generator: nbrt.Generator) -> None:
    whole = nbrt.to_host(generator.clone().dirichlet([1.0, 2.0, 3.0], 10))
    shard = generator.shard((10, 3), (slice(2, 5),))
    assert np.array_equal(nbrt.to_host(shard.dirichlet([1.0, 2.0, 3.0])), whole[2:5])


def test_an_audit_replaces_recordings_only(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import nbrt\n")
    with pytest.raises(ArgumentError, match="new file or a recording"), audit.record(script):
        pass
    assert script.read_text() == "import nbrt\n"
    for _ in range(2):
        with audit.record(tmp_path / "run.jsonl"):
            nbrt.Generator(1, "cpu:0").random(3)
    assert len(audit.load(tmp_path / "run.jsonl").draws) == 1


def test_parameters_are_read_at_every_draw(generator: nbrt.Generator) -> None:
    """Draws of one kind share what was made for them, but not what their arrays held."""
    means = nbrt.asarray(np.zeros(3), device=generator.device)
    generator.normal(means, 0.0)
    nbrt.copy(means, np.array([1.0, 2.0, 3.0]))
    assert nbrt.to_host(generator.normal(means, 0.0)).tolist() == [1.0, 2.0, 3.0]
    x = nbrt.asarray(np.ones(64, np.float32), device=generator.device)
    generator.dropout(x, 0.5)
    nbrt.copy(x, np.full(64, 3.0, np.float32))
    assert set(nbrt.to_host(generator.dropout(x, 0.5)[0]).tolist()) == {0.0, 6.0}


FLAGS: dict[str, Callable[[nbrt.Generator, Any], Any]] = {
    "training": lambda generator, flag: generator.dropout(np.ones(3), 0.5, flag),
    "endpoint": lambda generator, flag: generator.integers(0, 3, 2, endpoint=flag),
    "replacement": lambda generator, flag: nbrt.random.multinomial(
        [0.5, 0.5], 1, flag, generator=generator
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_an_array_is_no_flag(generator: nbrt.Generator, name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"expected {name} to be True or False"):
        FLAGS[name](generator, np.array([True, False]))
    assert generator.get_offset() == 0


def test_empty_draws_refuse_arrays_that_numpy_refuses(generator: nbrt.Generator) -> None:
    draws: list[Callable[[Any], Any]] = [
        lambda own: own.normal(0.0, [-1.0], size=0),
        lambda own: own.gamma([-1.0], size=(0, 1)),
        lambda own: own.dirichlet([-1.0, 1.0], size=0),
        lambda own: own.binomial([-1], 0.5, size=0),
    ]
    for draw in draws:
        with pytest.raises(ValueError, match="< 0"):
            draw(np.random.default_rng())
        with pytest.raises(ArgumentError, match="expected"):
            draw(generator)
    assert generator.normal(0.0, [1.0], size=0).shape == (0,)
    assert generator.get_offset() == 0


def test_numbers_of_other_types_and_lists_of_no_shape(generator: nbrt.Generator) -> None:
    x, same = (nbrt.zeros(4, device=generator.device) for _ in range(2))
    nbrt.random.exponential_(x, Decimal("1.5"), generator=generator.clone())
    nbrt.random.exponential_(same, 1.5, generator=generator.clone())
    assert nbrt.to_host(x).tolist() == nbrt.to_host(same).tolist()
    for draw in (generator.permutation, generator.choice, generator.permuted):
        with pytest.raises(ArgumentError, match="as an array of numbers"):
            draw([[1], [2, 3]])
    with pytest.raises(ArgumentError, match=r"below 2\*\*32"):
        generator.spawn(2**70)
    assert generator.get_offset() == 0
