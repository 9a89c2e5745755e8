"""The torch layout: published values of torch on CUDA, and the NumPy transcription of its rules."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.kernels import memory_dtype
from helpers.torch_draws import TINY, rounded, run, torch_draw, value_of
from helpers.torch_reference import (
    dropout_uniforms_reference,
    each_uniforms_reference,
    integers_reference,
    normals_reference,
    permutation_reference,
    torch_words_reference,
    uniforms_reference,
)
from nbrt.random.layouts.torch import permutation_keys
from nbrt_kernels._fma import fma_reference
from nbrt_kernels.random.launches import Fill
from nbrt_kernels.random.philox import philox4x32_reference
from nbrt_kernels.random.torch.fills import RECIPROCAL_BITS, shuffle_runs
from nbrt_kernels.random.torch.requests import pieces, torch_launches
from nbrt_kernels.random.torch.specs import vector_width

SEED = 0x0123456789ABCDEF
OFFSETS = (0, 4 * (2**32 - 1))
GRID = TINY[0]
# Within one grid (with a ragged end), past it, past a block of every thread, and far past.
SIZES = (1, 300, 512, 700, 2048, 5 * 512 + 3, 9001)
H100 = (270336, 2**28)


def uniforms(n, offset, dtype="float32"):
    lanes = 2 if dtype == "float64" else 4
    return uniforms_reference(torch_words_reference(n, SEED, offset, GRID, lanes))


# -- published values -------------------------------------------------------------------------


def test_published_uniforms():
    # pytorch#47347, seed 0; course notes, torch.rand(3, 4) with seed 42.
    five = torch_draw("uniform", "float32", 5, 0.0, 1.0, constants=H100)
    assert np.round(five, 4).tolist() == pytest.approx([0.3990, 0.5167, 0.0249, 0.9401, 0.9459])
    twelve = torch_draw("uniform", "float32", 12, 0.0, 1.0, seed=42, constants=H100)
    expected = [0.6130, 0.0101, 0.3984, 0.0403, 0.1563, 0.4825]
    expected += [0.7362, 0.4060, 0.5189, 0.2867, 0.2416, 0.9228]
    assert np.abs(twelve - expected).max() <= 0.5e-4 + 1e-7


@pytest.mark.parametrize("hardware", [False, True])
def test_published_normals(hardware):
    # torch.randn, seed 0, as shown in notes on Triton kernels.
    ten = torch_draw("normal", "float32", 10, 0.0, 1.0, constants=H100, hardware=hardware)
    expected = [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284]
    assert np.abs(ten - [*expected, -1.0745, -0.3631]).max() <= 0.5e-4 + 1e-6


def test_published_thresholds():
    # pytorch#194676: up to the threads of a GPU's grid, two GPUs agree; not beyond.
    def last_two(n, grid):
        launches = torch_launches("uniform", "float32", n, (0.0, 1.0), (grid, 2**28))
        return launches[0].arguments[0]

    assert last_two(40960, 40960) == last_two(40960, 89088) == 40960
    assert last_two(40961, 40960) != last_two(40961, 89088)


# -- words and values, exactly -----------------------------------------------------------------


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.1, 0.1), (1.0, 1.0078125)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_uniform(dtype, low, high, offset):
    real = np.float64 if dtype == "float64" else np.float32
    first, last = (value_of(rounded(np.array([x], real), dtype), dtype) for x in (low, high))
    span = value_of(rounded((last - first).astype(real), dtype), dtype)
    for n in SIZES:
        u = uniforms(n, offset, dtype)
        value = fma_reference(u, span.astype(real), first.astype(real))
        value = value_of(rounded(value, dtype), dtype)
        # (0, 1] is turned to [0, 1): the upper end becomes the lower.
        expected = rounded(np.where(value == last, first, value).astype(real), dtype)
        drawn = torch_draw("uniform", dtype, n, low, high, seed=SEED, offset=offset)
        assert np.array_equal(drawn, expected)


INTEGERS = [
    ("int32", 0, 100),
    ("int32", -5, 2**28 - 6),
    ("int32", -5, 2**28 - 5),
    ("int8", -128, 128),
    ("int64", -(2**63), 2**63 - 1),
    ("int64", 10, 10**18),
    ("float16", -2048, 2049),
    ("float32", 0, 2**24 + 1),
]


@pytest.mark.parametrize(("dtype", "low", "high"), INTEGERS)
def test_integers(dtype, low, high):
    lanes = 2 if high - low >= 2**28 else 4
    for n in (300, 2048, 9001):
        words = torch_words_reference(n, SEED, 8, GRID, lanes)
        expected = integers_reference(words, high - low, low, memory_dtype(dtype))
        drawn = torch_draw("integers", dtype, n, low, high, seed=SEED, offset=8)
        assert np.array_equal(drawn, expected)


def test_all_64_bit_integers_are_the_bits():
    words = torch_words_reference(3000, SEED, 0, GRID, 2).astype(np.uint64)
    expected = (words[:, 0] << np.uint64(32) | words[:, 1]).view(np.int64)
    drawn = torch_draw("integers", "int64", 3000, -(2**63), 2**63, seed=SEED)
    assert np.array_equal(drawn, expected)


@pytest.mark.parametrize(
    ("dtype", "modulus", "lanes"),
    [
        ("bool", 2, 4), ("int8", 2**7, 4),
        ("int32", 2**31, 4), ("int64", 2**63, 2), ("float16", 2**11 + 1, 4),
        ("float32", 2**24 + 1, 4), ("float64", 2**53 + 1, 2),
    ],
)  # fmt: skip
def test_random_without_bounds(dtype, modulus, lanes):
    words = torch_words_reference(3000, SEED, 4, GRID, lanes)
    expected = integers_reference(words, modulus, 0, memory_dtype(dtype))
    assert np.array_equal(torch_draw("random", dtype, 3000, seed=SEED, offset=4), expected)


@pytest.mark.parametrize(
    ("dtype", "p"), [("bool", 0.3), ("float64", 0.3), ("bfloat16", 1.0), ("int64", 0.0)]
)
def test_bernoulli(dtype, p):
    real = np.float64 if dtype == "float64" else np.float32
    u = uniforms(3000, 0, dtype)
    drawn = torch_draw("bernoulli", dtype, 3000, p, seed=SEED)
    assert np.array_equal(
        drawn, rounded((u < real(p)).astype(real), dtype).astype(memory_dtype(dtype))
    )


@pytest.mark.parametrize("dtype", ["bool", "float64"])
def test_bernoulli_of_an_array(dtype):
    # One chunk of four to a thread, whatever the GPU, and "not above" instead of "below".
    p = np.linspace(0.0, 1.0, 3001).astype("float64" if dtype == "float64" else "float32")
    u = each_uniforms_reference(3001, SEED, 40)
    p[7], p[8] = u[7], np.nextafter(u[8], np.float32(0))
    expected = u <= p
    assert expected[7]
    assert not expected[8]
    for grid in (256, GRID):
        drawn = torch_draw("bernoulli", dtype, 3001, p, seed=SEED, offset=40, constants=(grid, 1))
        assert np.array_equal(drawn, expected.astype(memory_dtype(dtype)))
    # Probabilities of double precision are rounded before a single uniform meets them.
    near = np.full(3001, np.nextafter(np.float64(u[7]), 0))
    drawn = torch_draw("bernoulli", dtype, 3001, near, seed=SEED, offset=40)
    assert bool(drawn[7]) == (dtype == "bool")


@pytest.mark.parametrize(
    ("dtype", "n", "width"),
    [
        ("float32", 4, 4), ("float32", 5000, 4), ("float32", 4999, 1), ("float32", 4998, 2),
        ("float16", 9000, 8), ("bfloat16", 8, 8), ("float16", 4500, 4), ("float64", 3000, 2),
        ("float64", 3001, 1),
    ],
)  # fmt: skip
def test_dropout(dtype, n, width):
    assert vector_width(n, np.dtype(memory_dtype(dtype)).itemsize) == width
    real = np.float64 if dtype == "float64" else np.float32
    x = rounded(np.random.default_rng(5).normal(size=n).astype(real), dtype)
    u = uniforms(n, 8) if width == 1 else dropout_uniforms_reference(n, SEED, 8, GRID, width)
    keep = real(1.0 - 0.3)
    kept = u.astype(real) < keep
    scaled = value_of(x, dtype).astype(real) * kept * (real(1) / keep)
    mask = np.full(n, 9, np.uint8)
    drawn = torch_draw("dropout", dtype, n, 0.3, x, mask, seed=SEED, offset=8)
    assert np.array_equal(mask, kept)
    assert np.array_equal(drawn, rounded(scaled, dtype))


# -- elementary functions, to an error -----------------------------------------------------------

# Of the model, in units of the larger of 1 and the value. `hardware` is compiled for the CPU too:
# the same source with the C library's functions.
BOUNDS = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}


def assert_close(drawn, model, dtype, scale=1.0):
    error = np.abs(value_of(drawn, dtype) - model) / np.maximum(1.0, np.abs(model))
    assert error.max() < BOUNDS[dtype] * scale


@pytest.mark.parametrize("hardware", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_normal(dtype, hardware):
    lanes = 2 if dtype == "float64" else 4
    for n in (300, 9001):
        z = normals_reference(n, SEED, 16, GRID, lanes)
        drawn = torch_draw("normal", dtype, n, 0.5, 2.0, seed=SEED, offset=16, hardware=hardware)
        assert_close(drawn, 2.0 * z + 0.5, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_normal(dtype):
    z = normals_reference(9001, SEED, 0, GRID, 2 if dtype == "float64" else 4)
    drawn = torch_draw("log_normal", dtype, 9001, 0.125, 0.5, seed=SEED)
    assert_close(drawn, np.exp(0.5 * z + 0.125), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_exponential(dtype):
    real = np.float64 if dtype == "float64" else np.float32
    u = uniforms(9001, 0, dtype).astype(np.float64)
    epsilon = np.finfo(real).eps / 2
    drawn = torch_draw("exponential", dtype, 9001, 0.5, seed=SEED)
    assert_close(drawn, -0.5 * np.where(u >= 1 - epsilon, -epsilon, np.log(u)), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_geometric(dtype):
    u = uniforms(9001, 0, dtype).astype(np.float64)
    p = 0.3 if dtype == "float64" else float(np.float32(1) - np.float32(0.3))
    trials = np.log(u) / (np.log1p(-p) if dtype == "float64" else np.log(p))
    sure = np.abs(trials - np.round(trials)) > 1e-5
    drawn = torch_draw("geometric", dtype, 9001, 0.3, seed=SEED)
    assert sure.mean() > 0.99
    assert np.array_equal(drawn[sure], np.ceil(trials)[sure])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cauchy(dtype):
    real = np.float64 if dtype == "float64" else np.float32
    u = uniforms(9001, 0, dtype)
    # The float32 step before the tangent decides what comes of it near the poles.
    angle = (real(np.pi) * (u - real(0.5))).astype(np.float64)
    drawn = torch_draw("cauchy", dtype, 9001, -1.0, 3.0, seed=SEED)
    assert_close(drawn, 3.0 * np.tan(angle) - 1.0, dtype, 500 if dtype == "float64" else 1)


# -- parts, permutations, geometry ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters"),
    [("uniform", "float32", (0.0, 1.0)), ("integers", "int64", (0, 2**40))],
)
def test_a_region_is_the_slice_of_the_whole(distribution, dtype, parameters):
    rows, columns = 24, 300
    n = rows * columns
    whole = torch_draw(distribution, dtype, n, *parameters, seed=SEED).reshape(rows, columns)
    for first, run_length in ((0, 300), (7, 5), (299, 1)):
        # Columns of every second row of the last 12, as two halves of rows.
        region = (12 * columns + first, run_length, 3, 2 * columns, 6 * columns)
        part = torch_draw(
            distribution, dtype, n, *parameters, seed=SEED, count=6 * run_length, region=region
        )
        expected = whole[12::2, first : first + run_length]
        assert np.array_equal(part.reshape(6, run_length), expected)


def test_a_region_may_be_the_whole_in_another_order():
    whole = torch_draw("uniform", "float32", 900, 0.0, 1.0, seed=SEED)
    region = (0, 1, 90, 10, 1)
    drawn = torch_draw("uniform", "float32", 900, 0.0, 1.0, seed=SEED, count=900, region=region)
    assert np.array_equal(drawn.reshape(10, 90), whole.reshape(90, 10).T)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 9000), (1, 2047), (2048, 2048), (2000, 7001), (700, 5), (2048, 3000)]
)
def test_a_run_is_the_slice_of_the_whole(first, count):
    whole = torch_draw("uniform", "float32", 9001, 0.0, 1.0, seed=SEED)
    region = (first, count, 1, 0, 0)
    part = torch_draw("uniform", "float32", 9001, 0.0, 1.0, seed=SEED, count=count, region=region)
    assert np.array_equal(part, whole[first : first + count])


def test_a_region_of_dropout_and_of_bernoulli_is_the_slice():
    n = 9000
    p, x = np.linspace(0, 1, n).astype(np.float32), np.arange(n, dtype=np.float16)
    mask = np.zeros(n, np.uint8)
    region, part = (4001, 100, 1, 0, 0), slice(4001, 4101)
    whole = torch_draw("bernoulli", "bool", n, p, seed=1)
    drawn = torch_draw("bernoulli", "bool", n, p[part].copy(), seed=1, count=100, region=region)
    assert np.array_equal(drawn, whole[part])
    whole = torch_draw("dropout", "float16", n, 0.4, x, mask, seed=1)
    some = np.zeros(100, np.uint8)
    numbers = (0.4, x[part].copy(), some)
    drawn = torch_draw("dropout", "float16", n, *numbers, seed=1, count=100, region=region)
    assert np.array_equal(drawn, whole[part])
    assert np.array_equal(some, mask[part])


@pytest.mark.parametrize("block", [32, 64])
def test_bits_do_not_depend_on_the_thread_block(block):
    expected = torch_draw("uniform", "float32", 9001, 0.0, 1.0, seed=SEED)
    drawn = torch_draw("uniform", "float32", 9001, 0.0, 1.0, seed=SEED, block=block)
    assert np.array_equal(drawn, expected)


def test_the_state_may_be_an_array():
    launches = torch_launches("uniform", "float32", 3000, (0.0, 1.0), TINY)
    state = np.array([SEED, 44], dtype=np.uint64)
    drawn = run(launches, np.zeros(3000, np.float32), state)
    assert np.array_equal(
        drawn, torch_draw("uniform", "float32", 3000, 0.0, 1.0, seed=SEED, offset=44)
    )


@pytest.mark.parametrize("n", [1, 100, 26000, 33000])
def test_permutation(n):
    expected = permutation_reference(n, 11, 8, GRID)
    assert np.array_equal(np.sort(expected), np.arange(n))
    dtype, low, high, mask = permutation_keys(n)
    keys = torch_draw("integers", dtype, n, low, high, seed=11, offset=8)
    keys = keys if mask is None else keys & mask
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    skip_blocks = -(-n // (min(-(-n // 256) * 256, GRID) * 2))
    (launch,) = torch_launches("shuffle_runs", "int64", n, (keys,), TINY)
    launch = launch._replace(skip_blocks=skip_blocks)
    assert np.array_equal(run([launch], order, (np.uint64(11), np.uint64(8))), expected)


def test_equal_keys_are_shuffled():
    keys = np.repeat([3, 4, 5, 9], [1, 20, 2, 7]).astype(np.int32)
    order = np.arange(30)
    run([Fill(shuffle_runs, 30, (keys,))], order, (np.uint64(SEED), np.uint64(4)))
    expected = list(range(30))
    for start, size in ((1, 20), (21, 2), (23, 7)):
        counters = [(1 + block, 0, start, 0) for block in range(5)]
        words = philox4x32_reference(counters, [SEED & 0xFFFFFFFF, SEED >> 32]).reshape(-1)
        for word, last in zip(words, range(start + size - 1, start, -1), strict=False):
            other = start + int(word) % (last - start + 1)
            expected[last], expected[other] = expected[other], expected[last]
    assert order.tolist() == expected


def test_draws_beyond_32_bit_offsets_are_halved():
    grid = 270336
    n = 2**30 + 5
    per_grid = grid * 4
    found = pieces(n, 4, grid, 4)
    middle = n // 2
    assert [(begin, end) for begin, end, _ in found] == [
        (0, middle // 2),
        (middle // 2, middle),
        (middle, middle + (n - middle) // 2),
        (middle + (n - middle) // 2, n),
    ]
    turns = [-(-(end - begin) // per_grid) for begin, end, _ in found]
    # The words for the whole are reserved first and never used.
    whole = -(-n // per_grid)
    assert [skip_blocks for *_, skip_blocks in found] == [
        whole, whole + turns[0], whole + sum(turns[:2]), whole + sum(turns[:3]),
    ]  # fmt: skip
    assert pieces(2**29 - 1, 4, grid, 4) == [(0, 2**29 - 1, 0)]
    assert len(pieces(2**29 + 1, 4, grid, 4)) == 2


@pytest.mark.parametrize("tiles_per_row", [1, 2, 3, 160, 1056, 1184, 2 * 1504])
def test_rows_are_found_without_a_division(tiles_per_row):
    tiles = np.random.default_rng(1).integers(0, 2**23, 10_000, dtype=np.uint64)
    tiles = np.append(tiles, np.arange(1, 9, dtype=np.uint64) * np.uint64(tiles_per_row))
    tiles = np.append(tiles, tiles[-8:] - np.uint64(1))
    factor = np.uint64((1 << RECIPROCAL_BITS) // tiles_per_row + 1)
    rows = tiles * factor >> np.uint64(RECIPROCAL_BITS)
    assert np.array_equal(rows, tiles // np.uint64(tiles_per_row))


def test_a_part_of_a_halved_draw():
    # The first elements of the second half are those of a draw of that half at its own offset.
    n = 2**31 + 2
    begin, end, skip_blocks = pieces(n, 1, 270336, 4)[1]
    constants = (270336, 2**28)
    region = (begin, 100, 1, 0, 0)
    part = torch_draw("random", "uint8", n, constants=constants, count=100, region=region)
    expected = torch_draw(
        "random", "uint8", end - begin, offset=4 * skip_blocks, constants=constants, count=100
    )
    assert np.array_equal(part, expected)
    assert part.any()


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters", "message"),
    [
        ("uniform", "float32", (1.0, 0.0), "low <= high"),
        ("uniform", "float16", (-60000.0, 60000.0), "finite"),
        ("normal", "float32", (0.0, -1.0), "standard deviation"),
        ("exponential", "float32", (0.0,), "scale > 0"),
        ("geometric", "float32", (1.0,), r"\(0, 1\)"),
        ("bernoulli", "float32", (1.5,), r"\[0, 1\]"),
        ("cauchy", "float64", (0.0, 0.0), "sigma > 0"),
        ("integers", "uint8", (0, 257), "uint8"),
        ("integers", "uint64", (0, 2**64), "torch layout"),
        ("dropout", "float32", (1.0, None, None), r"\[0, 1\)"),
    ],
)
def test_parameters_out_of_range(distribution, dtype, parameters, message):
    with pytest.raises(ValueError, match=message):
        torch_launches(distribution, dtype, 10, parameters, TINY)


@pytest.mark.parametrize(
    ("distribution", "dtype", "parameters"),
    [("gamma", "float32", (1.0,)), ("normal", "int32", (0.0, 1.0)), ("random", "uint32", ())],
)
def test_draws_that_torch_does_not_have(distribution, dtype, parameters):
    with pytest.raises(TypeError, match="expected"):
        torch_launches(distribution, dtype, 10, parameters, TINY)
