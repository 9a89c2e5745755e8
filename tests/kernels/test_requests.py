"""Draws as launches of fill kernels: equal to the references, whatever the launch, and frozen."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from helpers.kernels import run_draw
from helpers.torch_draws import TINY
from nbrt.backends.draw import Draw
from nbrt.index_sets import Region, RunTable
from nbrt_kernels.random import (
    bits_reference,
    fills_of,
    integers_reference,
    normal_reference,
    uniform_reference,
)
from nbrt_kernels.random.dropout import keep_threshold

SEED = 0x0123456789ABCDEF
OFFSETS = (0, 4, 4 * 1000, 4 * (2**32 - 7), 4 * (2**62 - 3))
every_float = pytest.mark.parametrize("dtype", ["float32", "float64"])


def drawn(distribution, dtype, n, parameters=(), *, seed=SEED, offset=0, **launched):
    draw = Draw(distribution, dtype, n, parameters, seed=seed, offset=offset)
    return run_draw(draw, **launched)


# -- against the references --------------------------------------------------------------------


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_bits(dtype, offset):
    expected = bits_reference(4097, SEED, offset, dtype)
    for n in (1, 2, 5, 63, 4097):
        assert np.array_equal(drawn("bits", dtype, n, offset=offset), expected[:n])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 7.1), (2.0**20, 2.0**20 + 1), (5, 5)])
@pytest.mark.parametrize("offset", OFFSETS)
@every_float
def test_uniform(dtype, offset, low, high):
    result = drawn("uniform", dtype, 4097, (low, high), offset=offset)
    assert np.array_equal(result, uniform_reference(4097, SEED, offset, dtype, low, high))
    assert result.min() >= low
    assert result.max() < high or low == high


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (-3.0, 0.1), (1.0, 0.0)])
@pytest.mark.parametrize("offset", OFFSETS)
@every_float
def test_normal(dtype, offset, loc, scale):
    result = drawn("normal", dtype, 4097, (loc, scale), offset=offset)
    assert np.array_equal(result, normal_reference(4097, SEED, offset, dtype, loc, scale))


RANGES = [
    ("int8", -128, 128),
    ("int8", -3, 4),
    ("uint8", 0, 256),
    ("int16", -1000, 1000),
    ("uint16", 65535, 65536),
    ("int32", -(2**31), 2**31),
    ("int32", 0, 3 * 2**29),
    ("uint32", 0, 2**32 - 1),
    ("int64", 0, 2**32),
    ("int64", -5, 2**32 - 4),
    ("int64", 0, 2**32 + 1),
    ("int64", -(2**63), 2**63),
    ("int64", -(2**63), 2**62),
    ("uint64", 0, 2**64),
    ("uint64", 1, 2**64),
    ("uint64", 0, 3 * 2**62),
    ("uint64", 2**64 - 1, 2**64),
]


@pytest.mark.parametrize("offset", [0, 4 * (2**32 - 7)])
@pytest.mark.parametrize(("dtype", "low", "high"), RANGES)
def test_integers(dtype, low, high, offset):
    result = drawn("integers", dtype, 1003, (low, high), offset=offset)
    expected = integers_reference(1003, low, high, SEED, offset, dtype)
    assert np.array_equal(result, expected)
    assert low <= int(result.min()) <= int(result.max()) < high


def test_rejection_redraws_only_what_was_rejected():
    # A quarter of all words is rejected for this range.
    span = 3 * 2**30
    first = bits_reference(4000, SEED, 0).astype(object) * span
    accepted = np.array([int(p) % 2**32 >= 2**32 % span for p in first])
    assert 0.7 < accepted.mean() < 0.8
    result = drawn("integers", "int64", 4000, (0, span))
    assert np.array_equal(result[accepted], np.array([int(p) >> 32 for p in first])[accepted])


@pytest.mark.parametrize(
    ("dtype", "ranges"),
    [
        ("int32", [(-3, 4), (0, 1), (-(2**31), 2**30)]),
        ("int64", [(0, 10), (-(2**62), 2**63), (-(2**63), 2**63)]),
    ],
)
def test_each_element_may_have_a_range(dtype, ranges):
    n = 300
    low = np.array([low % 2**64 for low, _ in ranges], np.uint64)
    span = np.array([(high - low) % 2**64 for low, high in ranges], np.uint64)
    parameters = np.tile(low, n // 3), np.tile(span, n // 3)
    result = drawn("integers_each", dtype, n, parameters, offset=4)
    bits = 64 if dtype == "int64" else 32
    for place, (first, last) in enumerate(ranges):
        expected = [first + lemire(i, last - first, 4, bits) for i in range(place, n, 3)]
        assert result[place::3].tolist() == expected


def lemire(index, span, offset, bits):
    """Return an integer in [0, span) made of so many bits, whatever its range would need."""
    attempt = 0
    while True:
        word = int(bits_reference(index + 1, SEED, offset, f"uint{bits}", attempt)[index])
        if word * span % 2**bits >= 2**bits % span:
            return word * span >> bits
        attempt += 1


# -- dropout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.3, 1 - 2.0**-24])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dropout_keeps_by_the_words_of_float32_uniforms(dtype, p):
    n = 1003
    keep = uniform_reference(n, SEED, 8, "float32").astype(np.float64) < 1 - p
    x, mask = np.linspace(-3, 3, n, dtype=dtype), np.full(n, 9, np.uint8)
    compute = np.result_type(dtype, np.float32).type
    expected = np.where(keep, x.astype(compute) * compute(1 / (1 - p)), 0).astype(dtype)
    assert np.array_equal(drawn("dropout", dtype, n, (p, x, mask), offset=8), expected)
    assert np.array_equal(mask, keep)


def test_dropout_of_bfloat16_rounds_to_nearest():
    ones, mask = np.full(1003, 0x3F80, np.uint16), np.zeros(1003, np.uint8)
    bits = drawn("dropout", "bfloat16", 1003, (0.3, ones, mask))
    # 1 / 0.7 is the float32 0x3FB6DB6E.
    assert np.array_equal(bits, np.where(mask, 0x3FB7, 0))
    assert 0 < mask.sum() < mask.size


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan")])
def test_impossible_probability_is_refused(probability):
    with pytest.raises(ValueError, match=r"probability in \[0, 1\], got"):
        keep_threshold(probability)


# -- the launch does not matter ----------------------------------------------------------------

# A range for each way to make integers, and the other draws with a reference.
PARAMETERS = {
    "bits": (),
    "uniform": (-1.5, 2.5),
    "normal": (1.0, 3.0),
    "integers": (0, 100),
    "integers_wide": (0, 2**33 + 1),
}


def typical(kind, dtype, n, **options):
    distribution = "integers" if kind == "integers_wide" else kind
    return drawn(distribution, dtype, n, PARAMETERS[kind], **options)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("uniform", "float32"),
        ("normal", "float64"),
        ("integers", "int8"),
        ("integers_wide", "int64"),
    ],
)
def test_bits_depend_neither_on_the_tile_nor_on_the_thread_block(kind, dtype):
    for n in (1, 5, 10_007):
        expected = typical(kind, dtype, n)
        assert np.array_equal(typical(kind, dtype, n, block=64), expected)
        assert np.array_equal(typical(kind, dtype, n, gpu=True), expected)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("normal", "float32"), ("uniform", "float64"), ("integers", "int8")]
)
def test_pieces_make_the_whole(kind, dtype):
    n, per_block = 10_007, 2 if dtype == "float64" else 4
    whole = typical(kind, dtype, n, offset=8)
    pieces, offset, start = [], 8, 0
    for blocks in (1, 2, 61, 500, 5000):
        size = min(blocks * per_block, n - start)
        pieces.append(typical(kind, dtype, size, offset=offset))
        offset += 4 * blocks
        start += size
    assert np.array_equal(np.concatenate(pieces), whole)


def test_seeds_and_offsets_give_different_streams():
    seeds = (0, 1, 2**32, 2**63)
    results = [drawn("bits", "uint32", 64, seed=s, offset=o) for s in seeds for o in (0, 64)]
    assert len({result.tobytes() for result in results}) == len(results)


def test_draws_of_one_kind_share_a_kernel_and_its_types():
    def launched(parameters, n):
        (fill,) = fills_of(Draw("normal", "float32", n, parameters))
        return fill.kernel, [type(value) for value in fill.arguments]

    assert launched((0, 1), 5) == launched((np.float64(0.5), 2.5), 5000)


# -- parts of a draw ---------------------------------------------------------------------------

SHAPE = (5, 4, 6, 9)
NUMBERS = np.arange(np.prod(SHAPE)).reshape(SHAPE)
PARTS = [
    NUMBERS[1:3],
    NUMBERS[:, 1:3],
    NUMBERS[..., ::2],
    NUMBERS[::2, 1:3, ::3, 2:7],
    NUMBERS[4:, 3:, 5:, 8:],
    NUMBERS.transpose(2, 0, 3, 1)[1:4, ::2],
]
LOCS = np.linspace(-1.0, 1.0, NUMBERS.size)
SPANS = np.arange(1, NUMBERS.size + 1, dtype=np.uint64)
CASES = [
    ("normal", "float32", (0.0, 1.0), "element", ()),
    ("normal", "float64", (LOCS, 2.0), "element", ()),
    ("integers", "int64", (0, 3 * 2**30), "element", ()),
    ("integers_each", "int64", (SPANS, SPANS), "element", ()),
    ("exponential", "float32", (2.0,), "torch", TINY),
    ("uniform", "float32", (0.0, 1.0), "torch_stateless", ()),
]


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters", "layout", "constants"),
    CASES,
    ids=[f"{layout}-{distribution}-{dtype}" for distribution, dtype, _, layout, _ in CASES],
)
def test_parts_equal_the_whole(distribution, dtype, parameters, layout, constants):
    head = (distribution, dtype, NUMBERS.size)
    rest = {"seed": SEED, "offset": 12}
    whole = run_draw(Draw(*head, parameters, layout, constants, **rest))
    for numbers in PARTS:
        strides = tuple(step // numbers.itemsize for step in numbers.strides)
        region = Region(int(numbers.flat[0]), numbers.shape, strides)
        own = tuple(p[numbers.ravel()] if np.ndim(p) else p for p in parameters)
        part = run_draw(Draw(*head, own, layout, constants, region=region, **rest))
        assert np.array_equal(part, whole[numbers.ravel()])


# Runs of 1 to 500 elements, from anywhere; they are taken twice.
LENGTHS = np.array([1, 3, 100, 2, 4, 1, 500, 8, 5, 7, 33, 1, 90])
STARTS = np.array([0, 3, 8, 511, 7, 9, 61, 256, 130, 5, 400, 77, 123])


@pytest.mark.parametrize(
    ("case", "gpu"),
    [(CASES[0], False), (CASES[0], True), (CASES[1], False), (CASES[3], False)],
    ids=["normal", "normal on a GPU", "normal64", "integers_each"],
)
def test_tables_equal_the_whole(case, gpu):
    distribution, dtype, parameters, _, _ = case
    head = (distribution, dtype, NUMBERS.size)
    rest = {"seed": SEED, "offset": 12}
    whole = run_draw(Draw(*head, parameters, **rest))
    once = np.concatenate([np.arange(n) + at for at, n in zip(STARTS, LENGTHS, strict=True)])
    picked = np.concatenate([once, once + 499])
    region = RunTable(STARTS, np.append(0, np.cumsum(LENGTHS)), once.size, 1, 2, 499)
    own = tuple(p[picked] if np.ndim(p) else p for p in parameters)
    part = run_draw(Draw(*head, own, region=region, **rest), gpu=gpu)
    assert np.array_equal(part, whole[picked])


def test_part_of_a_dropout():
    x = np.linspace(1.0, 2.0, NUMBERS.size, dtype=np.float32)
    mask = np.zeros(NUMBERS.size, np.uint8)
    whole = drawn("dropout", "float32", x.size, (0.5, x, mask))
    numbers = PARTS[3]
    region = Region(int(numbers.flat[0]), numbers.shape, tuple(s // 8 for s in numbers.strides))
    own = np.zeros(numbers.size, np.uint8)
    parameters = (0.5, x[numbers.ravel()], own)
    part = run_draw(Draw("dropout", "float32", x.size, parameters, region=region, seed=SEED))
    assert np.array_equal(part, whole[numbers.ravel()])
    assert np.array_equal(own, mask[numbers.ravel()])


# -- frozen: these bits are kept for ever --------------------------------------------------------

# SHA-256, first 16 digits, of 1000 little-endian elements with seed 0x0123456789abcdef, offset 8
# and the parameters of PARAMETERS. A change here is a new stream version: see docs/rng_policy.md.
FROZEN = {
    ("bits", "uint32"): "b6c75efdf6d4a535",
    ("bits", "uint64"): "eb544c955c47d73d",
    ("uniform", "float32"): "6eb1629c07a54cb9",
    ("uniform", "float64"): "ebf3aa75e637997c",
    ("normal", "float32"): "c4f365d81531c770",
    ("normal", "float64"): "1b85dd8216e5c820",
    ("integers", "int8"): "c444e64716b23a6f",
    ("integers", "uint8"): "c444e64716b23a6f",
    ("integers", "int16"): "bad26719840145da",
    ("integers", "uint16"): "bad26719840145da",
    ("integers", "int32"): "1a526fd5c5d2895a",
    ("integers", "uint32"): "1a526fd5c5d2895a",
    ("integers", "int64"): "b3be16c835ad2b7b",
    ("integers", "uint64"): "b3be16c835ad2b7b",
    ("integers_wide", "int64"): "2e3a7756f2a791da",
    ("integers_wide", "uint64"): "2e3a7756f2a791da",
}


@pytest.mark.parametrize(("kind", "dtype"), FROZEN)
def test_bits_are_those_of_stream_version_one(kind, dtype):
    result = typical(kind, dtype, 1000, offset=8)
    little = result.astype(result.dtype.newbyteorder("<"))
    assert hashlib.sha256(little.tobytes()).hexdigest()[:16] == FROZEN[kind, dtype]


UNIFORM_42 = [
    "0x1.39d5e00000000p-1",
    "0x1.dfd5240000000p-2",
    "0x1.2bf5000000000p-4",
    "0x1.5d0acc0000000p-2",
]
NORMAL_42 = [
    "-0x1.f0bcb80000000p-1",
    "0x1.8d59ce0000000p-3",
    "-0x1.3c51a60000000p+0",
    "0x1.ec86780000000p+0",
]


def test_first_values_of_seed_42():
    uniform = drawn("uniform", "float32", 4, (0.0, 1.0), seed=42)
    normal = drawn("normal", "float32", 4, (0.0, 1.0), seed=42)
    assert [float(v).hex() for v in uniform] == UNIFORM_42
    assert [float(v).hex() for v in normal] == NORMAL_42


# -- what there is no draw for -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters", "error"),
    [
        ("uniform", "float32", (1.0, 0.0), ValueError),
        ("uniform", "float32", (0.0, np.inf), ValueError),
        ("uniform", "float64", (np.nan, 1.0), ValueError),
        ("uniform", "float32", (-3e38, 3e38), ValueError),
        ("uniform", "float32", (0.0, 1e300), ValueError),
        ("uniform", "int32", (0.0, 1.0), TypeError),
        ("normal", "float32", (0.0, -1.0), ValueError),
        ("normal", "float32", (np.nan, 1.0), ValueError),
        ("normal", "float64", (0.0, np.inf), ValueError),
        ("normal", "int8", (0.0, 1.0), TypeError),
        ("integers", "int32", (0, 0), ValueError),
        ("integers", "int32", (5, 3), ValueError),
        ("integers", "uint8", (0, 257), ValueError),
        ("integers", "int8", (-129, 0), ValueError),
        ("integers", "uint64", (-1, 10), ValueError),
        ("integers", "float32", (0, 10), TypeError),
        ("dropout", "int32", (0.5, None, None), TypeError),
    ],
)
def test_impossible_draw_is_refused(distribution, dtype, parameters, error):
    with pytest.raises(error, match=f"{distribution}: expected"):
        fills_of(Draw(distribution, dtype, 3, parameters))


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(TypeError, match=r"expected a distribution of uniform, .*got 'uniforn'"):
        fills_of(Draw("uniforn", "float32", 3, (0.0, 1.0)))
    with pytest.raises(ValueError, match="expected a layout of this backend, got 'own'"):
        fills_of(Draw("uniform", "float32", 3, (0.0, 1.0), "own"))
