"""Shards of lists of slices and of runs: parts of the whole draw, in one region or in several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random import Region, Runs, audit
from nbrt.testing.recorder import CommandRecorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nbrt.typing import HostArray

pytestmark = pytest.mark.usefixtures("no_garbage")

SHAPE = (7, 12)
ALL = slice(None)
REGULAR: list[Any] = [
    ([slice(0, 2), slice(5, 7)], ALL),
    (ALL, [slice(1, 3), slice(5, 7), slice(9, 11)]),
    ([slice(0, 1), slice(3, 4), slice(6, 7)], [slice(0, 2), slice(6, 8)]),
    ([slice(0, 2), slice(2, 5)], slice(1, 12, 4)),
    ((Runs(1, 2, 2, 3),), (Runs(0, 1, 6, 2),)),
    ([slice(0, 1), slice(2, 3), slice(4, 5), slice(6, 7)], 3),
    Runs(0, 3, 2, 4),
    ([slice(1, 4), slice(2, 5), slice(3, 3)], slice(2, 9, 3)),
]
IRREGULAR: list[Any] = [
    ([slice(0, 2), slice(4, 5)], ALL),
    ([slice(5, 7), slice(0, 2)], ALL),
    (ALL, [slice(0, 3), slice(4, 6), slice(11, 12)]),
    ([slice(1, 2), slice(3, 6)], [Runs(0, 2, 2, 4), slice(7, 12, 2)]),
    (2, [slice(0, 1), slice(4, 12, 3)]),
]
EMPTY: list[Any] = [
    ([], ALL),
    (ALL, [slice(3, 3), Runs(2, 0, 4, 1)]),
    ([slice(0, 2), slice(4, 5)], []),
]


@pytest.fixture
def generator(device: nbrt.Device) -> nbrt.Generator:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return nbrt.Generator(7, device)


@pytest.fixture
def torch(generator: nbrt.Generator) -> nbrt.Generator:
    return nbrt.Generator(7, generator.device, "torch", gpu="T4")


def indices(index: Any, size: int) -> Any:
    """Return the indices that one axis of a region takes, from Python's own ranges."""
    if isinstance(index, slice):
        return list(range(size))[index]
    if isinstance(index, Runs):
        runs = range(index.count)
        return [index.start + i * index.step + j for i in runs for j in range(index.length)]
    if isinstance(index, int):
        return index
    return [one for part in index for one in indices(part, size)]


def taken(array: Any, region: Any) -> Any:
    """Take a region out of a whole array, axis by axis."""
    region = region if type(region) is tuple else (region,)
    result = nbrt.to_host(array)
    dropped = 0
    for axis, (index, size) in enumerate(zip(region, array.shape, strict=False)):
        result = np.take(result, np.asarray(indices(index, size), int), axis - dropped)
        dropped += isinstance(index, int)
    return result


NUMBERS = np.random.default_rng(3).random(SHAPE).astype(np.float32)

Draws = dict[str, "Callable[[nbrt.Generator, Any], Any]"]
ELEMENT: Draws = {
    "random": lambda g, x: g.random(x.shape, "float32"),
    "normal": lambda g, x: g.normal(x, 2.0, dtype="float32"),
    "bernoulli": lambda g, x: g.bernoulli(x),
    "gamma": lambda g, x: g.gamma(2.0, size=x.shape, dtype="float16"),
    "dropout": lambda g, x: g.dropout(x, 0.4),
    "random_": lambda g, x: g.fill_integers(nbrt.zeros(x.shape, "int16", device=g.device)),
}
TORCH: Draws = {
    "random": ELEMENT["random"],
    "bernoulli": lambda g, x: g.bernoulli(x, dtype="float32"),
    "dropout": ELEMENT["dropout"],
}


def check(
    generator: nbrt.Generator, region: Any, draws: Draws, numbers: HostArray = NUMBERS
) -> None:
    for name, draw in draws.items():
        twin = generator.clone()
        whole = draw(twin, nbrt.asarray(numbers, device=generator.device))
        x = nbrt.asarray(np.ascontiguousarray(taken(numbers, region)), device=generator.device)
        shard = generator.clone().shard(numbers.shape, region)
        part = draw(shard, x)
        nbrt.synchronize(generator.device)
        held = [found if isinstance(found, tuple) else (found,) for found in (part, whole)]
        for ours, theirs in zip(*held, strict=True):
            assert ours.shape == x.shape, name
            assert nbrt.to_host(ours).tobytes() == taken(theirs, region).tobytes(), name
        assert shard.state == twin.state != generator.state, name


@pytest.mark.parametrize("region", REGULAR + IRREGULAR + EMPTY, ids=str)
def test_lists_are_parts_of_the_whole(generator: nbrt.Generator, region: Any) -> None:
    check(generator, region, ELEMENT)


@pytest.mark.parametrize("region", REGULAR + IRREGULAR + EMPTY, ids=str)
def test_lists_are_parts_of_torchs_whole(torch: nbrt.Generator, region: Any) -> None:
    check(torch, region, TORCH)


MANY = [Runs(2 * i * i, 1 + i % 7, 1 + i % 3, 9) for i in range(40)]
SPACED = [slice(3 * i + i // 9, 3 * i + i // 9 + 2) for i in range(36)]
LONG: list[Any] = [
    ((5, 3300), (ALL, MANY)),
    ((5, 3300), (slice(1, 5, 2), MANY)),
    ((5, 3300, 3), (slice(1, 3), MANY)),
    ((3300, 5), (MANY, slice(1, 4))),
    ((3300, 5), (MANY, 2)),
    ((3300, 5), (MANY[::-1] + MANY[:3],)),
    ((40, 9), ([slice(2, 5)] * 40, slice(1, 8))),
    ((3300, 700), (MANY[:9], [slice(400, 700), *MANY[:4]])),
    ((2, 120, 120), (1, SPACED, SPACED)),
    (40_000, [slice(0, 9001), slice(9003, 39_000, 5), *MANY, slice(20_000, 30_001)]),
]


@pytest.mark.parametrize(("shape", "region"), LONG, ids=range(len(LONG)))
def test_many_runs_are_one_draw(
    generator: nbrt.Generator, torch: nbrt.Generator, shape: Any, region: Any
) -> None:
    numbers = np.random.default_rng(3).random(shape).astype(np.float32)
    check(generator, region, {name: ELEMENT[name] for name in ("random", "dropout")}, numbers)
    check(torch, region, {"random": TORCH["random"]}, numbers)
    with CommandRecorder() as recorder:
        generator.shard(shape, region).random(dtype="float32")
    assert [command.kind for command in recorder.commands].count("draw") == 1


def test_many_runs_of_other_distributions(generator: nbrt.Generator) -> None:
    (shape, region), (rows, lists) = LONG[1], LONG[3]
    numbers = np.random.default_rng(3).random(shape).astype(np.float32)
    check(generator, region, {"gamma": ELEMENT["gamma"]}, numbers)
    whole = nbrt.to_host(generator.clone().dirichlet([1.0, 2.0, 3.0, 4.0, 5.0], 3300))
    shard = generator.clone().shard(rows, (MANY,))
    expected = taken(whole, (MANY,))
    assert np.array_equal(nbrt.to_host(shard.dirichlet([1.0, 2.0, 3.0, 4.0, 5.0])), expected)
    with pytest.raises(ArgumentError, match="whole vectors"):
        generator.shard(rows, lists).dirichlet([1.0, 2.0, 3.0])
    assert generator.state.offset == 0


def test_a_table_of_many_runs_is_recorded_and_repeated(
    generator: nbrt.Generator, tmp_path: Path
) -> None:
    shape, region = LONG[1]
    for name in ("one", "two"):
        with audit.record(tmp_path / name, digests=True):
            generator.clone().shard(shape, region).random(dtype="float32")
    (draw,) = audit.load(tmp_path / "one").draws
    assert "RunTable(" in str(draw)
    array = audit.replay(draw, device=generator.device, pieces=2)
    nbrt.synchronize(generator.device)
    assert audit.digest(array) == draw.digest
    assert audit.compare(audit.load(tmp_path / "one"), audit.load(tmp_path / "two")) is None


def test_a_wrong_run_among_many_is_named(generator: nbrt.Generator) -> None:
    wrong: list[Any] = [Runs(3298, 3), Runs(0, 2, 2, 2**61), Runs(0, 1, 3), Runs(10**400, 1)]
    wrong += [Runs(0, 1.5), slice(9, 1, -1), slice(0, 9, 0), slice(0.5, 2), 3]  # type: ignore[arg-type]
    for index in wrong:
        with pytest.raises((ArgumentError, ArgumentTypeError), match="on axis 0"):
            generator.shard(3300, [*MANY, index])


def test_pieces_on_a_stream_of_their_own(generator: nbrt.Generator) -> None:
    stream = nbrt.Stream(generator.device)
    stream.wait_stream(nbrt.current_stream(generator.device))
    with nbrt.stream(stream):
        check(generator, IRREGULAR[3], ELEMENT)
    stream.synchronize()


def test_what_is_regular_is_one_draw(generator: nbrt.Generator) -> None:
    for regions, most in ((REGULAR, 1), (IRREGULAR, 4)):
        for region in regions:
            with CommandRecorder() as recorder:
                generator.shard(SHAPE, region).random(dtype="float32")
            drawn = [command for command in recorder.commands if command.kind == "draw"]
            assert (len(drawn) == 1) == (most == 1)
            assert len(drawn) <= most


def test_the_number_of_runs_costs_nothing(generator: nbrt.Generator) -> None:
    """A shard of 2**40 runs is planned like that of one; a few of them are drawn."""
    n = 2**60
    generator.shard(n, [Runs(2**20 - 4, 4, 2**40, 2**20)])
    shard = generator.clone().shard(n, Runs(8, 4, 5, 2**57))
    values = nbrt.to_host(shard.random(dtype="float32")).reshape(5, 4)
    for run, expected in enumerate(values):
        twin = generator.clone().advance(8 + run * 2**57)
        assert np.array_equal(nbrt.to_host(twin.random(4, "float32")), expected)
    assert shard.state.offset == n


def test_numbers_of_numpy_do_not_wrap_around(generator: nbrt.Generator) -> None:
    small: Any = np.int32
    start, length, step = small(3), small(2), small(2**30)
    runs, expected = Runs(start, length, small(3), step), Runs(3, 2, 3, 2**30)
    values = nbrt.to_host(generator.clone().shard(2**40, runs).random(dtype="float32"))
    whole = nbrt.to_host(generator.clone().shard(2**40, expected).random(dtype="float32"))
    assert np.array_equal(values, whole)
    box = Region(start, (small(3), length), (step, small(1)))
    found = generator.clone().shard(2**40, box).random(dtype="float32")
    assert np.array_equal(nbrt.to_host(found).reshape(-1), whole)
    with pytest.raises(ArgumentError, match="element 3221225472"):
        generator.shard(2**31, Region(small(0), (small(4),), (step,)))


def test_vectors_in_pieces(generator: nbrt.Generator) -> None:
    alpha, cov = [1.0, 2.0, 3.0], np.diag([1.0, 4.0, 9.0])
    rows = [slice(1, 3), slice(6, 7)]
    picked = [1, 2, 6]
    whole = nbrt.to_host(generator.clone().dirichlet(alpha, 10))
    part = nbrt.to_host(generator.clone().shard((10, 3), (rows,)).dirichlet(alpha))
    assert np.array_equal(part, whole[picked])
    whole = nbrt.to_host(generator.clone().multivariate_normal(np.zeros(3), cov, 10))
    shard = generator.shard((10, 3), (rows,))
    assert np.array_equal(nbrt.to_host(shard.multivariate_normal(np.zeros(3), cov)), whole[picked])
    columns = generator.shard((10, 3), (ALL, [slice(0, 1), slice(2, 3)]))
    before = generator.state
    with pytest.raises(ArgumentError):
        columns.dirichlet(alpha)
    assert generator.state == before


@pytest.mark.parametrize("region", [(slice(1, 5), slice(2, 9)), IRREGULAR[3]], ids=str)
def test_a_shard_counts_in_the_wholes_order(torch: nbrt.Generator, region: Any) -> None:
    """Torch counts a transposed tensor as it lies in memory; the whole of a shard lies in C."""
    whole = torch.clone().random(SHAPE, "float32")
    expected = taken(whole, region)
    turned = nbrt.empty(expected.shape[::-1], "float32", device=torch.device).T
    gaps = nbrt.zeros((*expected.shape, 2), "float32", device=torch.device)
    for out in (turned, gaps[..., 1]):
        torch.clone().shard(SHAPE, region).random(out=out, dtype="float32")
        assert np.array_equal(nbrt.to_host(out), expected)
    assert not nbrt.to_host(gaps)[..., 0].any()
    _, mask = torch.clone().dropout(nbrt.full(SHAPE, 1.0, device=torch.device))
    ones = nbrt.full(expected.shape[::-1], 1.0, device=torch.device).T
    _, kept = torch.clone().shard(SHAPE, region).dropout(ones)
    assert np.array_equal(nbrt.to_host(kept), taken(mask, region))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_parameter_that_is_wrong_in_the_last_piece(generator: nbrt.Generator, axis: int) -> None:
    lists = [slice(0, 2), slice(4, 5)]
    shard = generator.shard(SHAPE, (lists, ALL) if axis == 0 else (ALL, lists))
    scale = np.ones((3, 12) if axis == 0 else (7, 3), np.float32)
    scale[-1, -1] = -1.0
    out = nbrt.zeros(scale.shape, "float32", device=generator.device)
    with pytest.raises(ArgumentError, match="scale"):
        shard.normal(0.0, nbrt.asarray(scale, device=generator.device), dtype="float32", out=out)
    assert generator.state.offset == 0
    assert not nbrt.to_host(out).any()


def test_a_piece_that_fails_gives_all_words_back(
    generator: nbrt.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = generator.shard(SHAPE, (ALL, [slice(0, 3), slice(4, 6)]))
    interface = nbrt.current_stream(generator.device).interface
    draw, given = interface.draw, []

    def fail_at_the_second(queue: Any, out: Any, one: Any) -> None:
        given.append(one)
        if len(given) == 2:
            raise MemoryError
        draw(queue, out, one)

    monkeypatch.setattr(interface, "draw", fail_at_the_second)
    out = nbrt.zeros((7, 5), "float32", device=generator.device)
    with pytest.raises(MemoryError):
        shard.random(out=out, dtype="float32")
    assert generator.state.offset == 0
    assert not nbrt.to_host(out).any()
    values = nbrt.to_host(shard.random(dtype="float32"))
    whole = nbrt.to_host(nbrt.Generator(7, generator.device).random(SHAPE, "float32"))
    assert np.array_equal(values, whole[:, [0, 1, 2, 4, 5]])


def test_an_audit_repeats_pieces(generator: nbrt.Generator, tmp_path: Path) -> None:
    with audit.record(tmp_path / "run.jsonl", digests=True):
        for region in (REGULAR[2], IRREGULAR[3]):
            generator.shard(SHAPE, region).random(dtype="float32")
    draws = audit.load(tmp_path / "run.jsonl").draws
    assert len(draws) == 5
    assert {draw.offset for draw in draws} == {0, 84}
    for draw in draws:
        array = audit.replay(draw, device=generator.device, pieces=2)
        assert array.shape == draw.shape
        nbrt.synchronize(generator.device)
        assert audit.digest(array) == draw.digest


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ([slice(0, 2), 3], "lists of slices and Runs, got 3 on axis 0"),
        ([[slice(0, 2)]], "lists of slices and Runs"),
        ([slice(2, 0, -1)], "positive steps"),
        (
            slice(0, 7, 0),
            "slices of integers in a shard, got .* on axis 0: slice step cannot be zero",
        ),
        ([slice(0.5, 2)], "slices of integers"),
        (np.arange(3), "slices and ints"),
        (Runs(0, 3, 2, 5), r"runs within 7 indices, got Runs\(start=0, length=3"),
        (Runs(-1, 2), "without negative"),
        (Runs(0, 2, 3), "step above 0"),
        (Runs(0, 1.5), "integers in runs"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_wrong_lists(generator: nbrt.Generator, region: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        generator.shard(SHAPE, region)
