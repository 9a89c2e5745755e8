"""The fill kernels: equal to the references, whatever the launch, and frozen."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest

from helpers.kernels import launch
from nbrt.backends.cpu.simt import SimtKernel
from nbrt_kernels.random import (
    DRAWS,
    bits_reference,
    integer_parameters,
    integers_reference,
    normal_parameters,
    normal_reference,
    uniform_parameters,
    uniform_reference,
)

SEED = 0x0123456789ABCDEF
OFFSETS = (0, 4, 4 * 1000, 4 * (2**32 - 7), 4 * (2**62 - 3))
SIZES = (1, 2, 3, 4, 5, 63, 1000, 4097)


def draw(key, n, parameters, seed=SEED, offset=0, block=64, extra=0):
    spec = DRAWS[key]
    out = np.zeros(n, dtype=key[1])
    threads = spec.threads(n) + extra
    launch(spec.kernel, (threads,), out, *spec.arguments(seed, offset), *parameters, block=(block,))
    return out


def integers(low, high, dtype, n, **options):
    name, parameters = integer_parameters(low, high, dtype)
    return draw((name, np.dtype(dtype).name), n, parameters, **options)


# One parameter set per draw, for the tests that are about launching.
PARAMETERS = {
    key: {
        "bits": lambda _: (),
        "uniform": lambda dtype: uniform_parameters(-1.5, 2.5, dtype),
        "normal": lambda dtype: normal_parameters(1.0, 3.0, dtype),
        "integers": lambda dtype: integer_parameters(0, 100, dtype)[1],
        "integers_wide": lambda dtype: integer_parameters(0, 2**33 + 1, dtype)[1],
    }[key[0]](key[1])
    for key in DRAWS
}
every_draw = pytest.mark.parametrize("key", DRAWS, ids="-".join)
# One of the integer dtypes stands for all where each would be compiled once more.
every_kernel = pytest.mark.parametrize(
    "key",
    [key for key in DRAWS if key[0] != "integers" or key[1] in {"int8", "int64"}],
    ids="-".join,
)
every_float = pytest.mark.parametrize("dtype", ["float32", "float64"])


# -- against the references --------------------------------------------------------------------


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_bits(dtype, n, offset):
    expected = bits_reference(n, SEED, offset, dtype)
    assert np.array_equal(draw(("bits", dtype), n, (), offset=offset), expected)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 7.1), (2.0**20, 2.0**20 + 1), (5, 5)])
@pytest.mark.parametrize("offset", OFFSETS)
@every_float
def test_uniform(dtype, offset, low, high):
    parameters = uniform_parameters(low, high, dtype)
    result = draw(("uniform", dtype), 4097, parameters, offset=offset)
    assert np.array_equal(result, uniform_reference(4097, SEED, offset, dtype, low, high))
    assert result.min() >= low
    assert result.max() < high or low == high


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 1.0), (-3.0, 0.1), (1.0, 0.0)])
@pytest.mark.parametrize("offset", OFFSETS)
@every_float
def test_normal(dtype, offset, loc, scale):
    parameters = normal_parameters(loc, scale, dtype)
    result = draw(("normal", dtype), 4097, parameters, offset=offset)
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
    result = integers(low, high, dtype, 1003, offset=offset)
    expected = integers_reference(1003, low, high, SEED, offset, dtype)
    assert np.array_equal(result, expected)
    assert low <= int(result.min()) <= int(result.max()) < high


def test_rejection_redraws_only_what_was_rejected():
    # A quarter of all words is rejected for this range.
    span = 3 * 2**30
    first = bits_reference(4000, SEED, 0).astype(object) * span
    accepted = np.array([int(p) % 2**32 >= 2**32 % span for p in first])
    assert 0.7 < accepted.mean() < 0.8
    result = integers(0, span, "int64", 4000)
    assert np.array_equal(result[accepted], np.array([int(p) >> 32 for p in first])[accepted])


# -- the launch does not matter ----------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 1000, 4096, 10_007])
@every_kernel
def test_bits_do_not_depend_on_the_thread_block(key, n):
    parameters = PARAMETERS[key]
    expected = draw(key, n, parameters, block=32)
    for block in (64, 256, 1024):
        assert np.array_equal(draw(key, n, parameters, block=block), expected)
    assert np.array_equal(draw(key, n, parameters, block=64, extra=1000), expected)


@every_kernel
def test_pieces_make_the_whole(key):
    spec, parameters, n = DRAWS[key], PARAMETERS[key], 10_007
    whole = draw(key, n, parameters, offset=8)
    pieces, offset, start = [], 8, 0
    for blocks in (1, 2, 61, 500, 3000):
        size = min(blocks * spec.elements_per_block, n - start)
        pieces.append(draw(key, size, parameters, offset=offset))
        assert spec.increment(size) == 4 * blocks or start + size == n
        offset += spec.increment(size)
        start += size
    if start < n:
        pieces.append(draw(key, n - start, parameters, offset=offset))
    assert np.array_equal(np.concatenate(pieces), whole)


@every_kernel
def test_nothing_is_written_past_the_end(key):
    spec, parameters = DRAWS[key], PARAMETERS[key]
    for n in (1, 2, 3, 4, 5, 255, 256, 257):
        buffer = np.full(n + 64, 7, dtype=key[1])
        launch(spec.kernel, (64 * 5,), buffer[:n], *spec.arguments(SEED, 0), *parameters)
        assert np.all(buffer[n:] == 7)
        assert np.array_equal(buffer[:n], draw(key, n, parameters))


@every_draw
def test_table_is_consistent(key):
    spec = DRAWS[key]
    assert (spec.distribution, spec.dtype) == key
    assert spec.elements_per_block * spec.words_per_element == 4
    assert len(PARAMETERS[key]) == len(spec.parameters)
    assert [spec.threads(n) for n in (0, 1, spec.elements_per_block + 1)] == [0, 1, 2]
    assert spec.increment(0) == 0


def test_seeds_and_offsets_give_different_streams():
    key, parameters = ("bits", "uint32"), ()
    seeds = (0, 1, 2**32, 2**63)
    results = [draw(key, 64, parameters, seed=s, offset=o) for s in seeds for o in (0, 64)]
    assert len({result.tobytes() for result in results}) == len(results)


@pytest.mark.parametrize("key", [k for k in DRAWS if k[0] in {"uniform", "normal"}], ids="-".join)
def test_whole_thread_blocks_are_vectorised(key):
    spec, n = DRAWS[key], 4096
    plan = SimtKernel(spec.kernel).plan((spec.threads(n) // 64, 1, 1), (64, 1, 1))
    code = plan.llvm(np.zeros(n, key[1]), *spec.arguments(SEED, 0), *PARAMETERS[key])
    kind = {"float32": "float", "float64": "double"}[key[1]]
    assert re.search(rf"call [^\n]*<\d+ x {kind}> @llvm\.fma", code)


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


@every_draw
def test_bits_are_those_of_stream_version_one(key):
    result = draw(key, 1000, PARAMETERS[key], offset=8)
    little = result.astype(result.dtype.newbyteorder("<"))
    assert hashlib.sha256(little.tobytes()).hexdigest()[:16] == FROZEN[key]


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
    uniform = draw(("uniform", "float32"), 4, uniform_parameters(), seed=42)
    normal = draw(("normal", "float32"), 4, normal_parameters(), seed=42)
    assert [float(v).hex() for v in uniform] == UNIFORM_42
    assert [float(v).hex() for v in normal] == NORMAL_42


# -- parameters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "dtype", "error"),
    [
        (1.0, 0.0, "float32", ValueError),
        (0.0, np.inf, "float32", ValueError),
        (np.nan, 1.0, "float64", ValueError),
        (-3e38, 3e38, "float32", ValueError),
        (0.0, 1e300, "float32", ValueError),
        (0.0, 1.0, "int32", TypeError),
        (0.0, 1.0, "float16", TypeError),
    ],
)
def test_impossible_uniform_is_refused(low, high, dtype, error):
    with pytest.raises(error, match="uniform: expected"):
        uniform_parameters(low, high, dtype)


@pytest.mark.parametrize(
    ("loc", "scale", "dtype", "error"),
    [
        (0.0, -1.0, "float32", ValueError),
        (np.nan, 1.0, "float32", ValueError),
        (0.0, np.inf, "float64", ValueError),
        (0.0, 1.0, "int8", TypeError),
    ],
)
def test_impossible_normal_is_refused(loc, scale, dtype, error):
    with pytest.raises(error, match="normal: expected"):
        normal_parameters(loc, scale, dtype)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "error"),
    [
        (0, 0, "int32", ValueError),
        (5, 3, "int32", ValueError),
        (0, 257, "uint8", ValueError),
        (-129, 0, "int8", ValueError),
        (-1, 10, "uint64", ValueError),
        (0, 10, "float32", TypeError),
        (0, 2, "bool", TypeError),
    ],
)
def test_impossible_integers_are_refused(low, high, dtype, error):
    with pytest.raises(error, match="integers: expected"):
        integer_parameters(low, high, dtype)


def test_parameters_have_the_types_of_the_kernel():
    assert {type(p) for p in uniform_parameters(0, 1, "float32")} == {np.float32}
    assert {type(p) for p in normal_parameters(0, 1, "float64")} == {np.float64}
    assert {type(p) for p in integer_parameters(-5, 5, "int8")[1]} == {np.uint64}
    types = tuple(type(a) for a in DRAWS["bits", "uint32"].arguments(2**64 - 1, 2**63))
    assert types == (np.uint32, np.uint32, np.uint64)
