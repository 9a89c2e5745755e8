"""Bits to numbers: exact edges, accuracy against wider arithmetic, CPU code equal to reference."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from helpers.kernels import launch
from nbrt_kernels._dialect import cuda
from nbrt_kernels._fma import fma_reference
from nbrt_kernels.random import transforms
from nbrt_kernels.random.reference import (
    neg_log_reference,
    normal_pair_reference,
    sincos_reference,
)

WIDE = np.longdouble
needs_extended = pytest.mark.skipif(
    np.finfo(WIDE).nmant < 63, reason="long double has no more bits than float64 here"
)


def log_kernel_f32(out, words):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = transforms.neg_log_32(words[i])


def log_kernel_f64(out, words):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = transforms.neg_log_64(words[i])


def sincos_kernel_f32(sine, cosine, words):
    i = cuda.grid(1)
    if i < sine.shape[0]:
        s, c = transforms.sincos_f32(words[i])
        sine[i] = s
        cosine[i] = c


def sincos_kernel_f64(sine, cosine, words):
    i = cuda.grid(1)
    if i < sine.shape[0]:
        s, c = transforms.sincos_f64(words[i])
        sine[i] = s
        cosine[i] = c


def normal_kernel_f32(out, radii, angles):
    i = cuda.grid(1)
    if i < radii.shape[0]:
        a, b = transforms.normal_pair_f32(radii[i], angles[i])
        out[i, 0] = a
        out[i, 1] = b


def normal_kernel_f64(out, radii, angles):
    i = cuda.grid(1)
    if i < radii.shape[0]:
        a, b = transforms.normal_pair_f64(radii[i], angles[i])
        out[i, 0] = a
        out[i, 1] = b


def uniform_kernel_f32(out, words, low, span, top):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = transforms.scale_uniform(transforms.uniform_f32(words[i]), low, span, top)


def uniform_kernel_f64(out, words, low, span, top):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = transforms.scale_uniform(transforms.uniform_f64(words[i]), low, span, top)


KINDS = {
    "float32": (np.float32, np.uint32, 32),
    "float64": (np.float64, np.uint64, 64),
}
KERNELS = {
    "float32": (log_kernel_f32, sincos_kernel_f32, normal_kernel_f32, uniform_kernel_f32),
    "float64": (log_kernel_f64, sincos_kernel_f64, normal_kernel_f64, uniform_kernel_f64),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def edge_words(kind: str) -> np.ndarray:
    """Words around 0, the largest word, all powers of two, sqrt(1/2) and the octants."""
    _, word, bits = KINDS[kind]
    whole = 2**bits
    centres = [0, whole - 1, *(2**k for k in range(bits)), *(whole - 2**k for k in range(bits))]
    centres += [int(whole * 0.5**0.5) >> k for k in range(bits)]
    centres += [whole * k // 16 for k in range(16)]
    return np.array([(c + d) % whole for c in centres for d in range(-3, 4)], dtype=word)


def sample_words(kind: str, n: int) -> np.ndarray:
    """Edge words, uniform words, and words of every magnitude near both ends."""
    _, word, bits = KINDS[kind]
    rng = np.random.default_rng(20)
    uniform = rng.integers(0, 2**bits, n, dtype=word)
    small = uniform >> rng.integers(0, bits, n).astype(word)
    return np.concatenate([edge_words(kind), uniform, small, ~small])


def ulps_from_correct(result: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest distance from the correctly rounded result, in its ulps."""
    correct = exact.astype(result.dtype)
    spacing = np.spacing(np.abs(correct))
    return float(np.max(np.abs(result - correct) / spacing))


def exact_neg_log(words: np.ndarray, bits: int, real: type) -> np.ndarray:
    rest = (~words).astype(real) / real(2) ** bits  # 1 - u, exact
    u = (words.astype(real) + 1) / real(2) ** bits
    return np.where(rest < 0.5, -np.log1p(-rest), -np.log(u))


def exact_sincos(words: np.ndarray, bits: int, real: type) -> tuple[np.ndarray, np.ndarray]:
    word = words.dtype.type
    quadrant = (words + word(2 ** (bits - 3))) >> word(bits - 2)
    rest = (words - (quadrant << word(bits - 2))).view(f"i{bits // 8}").astype(real)
    # pi as the sum of two float64, exact enough for a 64-bit significand.
    pi = real(np.pi) + real(1.2246467991473532e-16)
    s, c = np.sin(rest * (pi / real(2) ** (bits - 1))), np.cos(rest * (pi / real(2) ** (bits - 1)))
    index = (quadrant % 4).astype(int)
    return np.choose(index, [s, c, -s, -c]), np.choose(index, [c, -s, -c, s])


@every_kind
def test_code_equals_reference(kind):
    real, _, _ = KINDS[kind]
    log_kernel, sincos_kernel, normal_kernel, _ = KERNELS[kind]
    words = sample_words(kind, 20_000)
    n = words.size
    out, s, c = (np.zeros(n, real) for _ in range(3))
    launch(log_kernel, (n,), out, words)
    assert np.array_equal(out, neg_log_reference(words))
    launch(sincos_kernel, (n,), s, c, words)
    sine, cosine = sincos_reference(words)
    assert np.array_equal(s, sine)
    assert np.array_equal(c, cosine)
    pairs = np.zeros((n, 2), real)
    angles = np.roll(words, 1)
    launch(normal_kernel, (n,), pairs, words, angles)
    first, second = normal_pair_reference(words, angles)
    assert np.array_equal(pairs[:, 0], first)
    assert np.array_equal(pairs[:, 1], second)


def test_float32_functions_are_within_one_ulp():
    words = sample_words("float32", 1_000_000)
    exact = exact_neg_log(words, 32, np.float64)
    log = neg_log_reference(words)
    last = words == 2**32 - 1
    assert np.all(log[last] == 0.0)
    assert ulps_from_correct(log[~last], exact[~last]) <= 1
    assert ulps_from_correct(np.sqrt(log + log), np.sqrt(2 * exact)) <= 1
    for result, expected in zip(
        sincos_reference(words), exact_sincos(words, 32, np.float64), strict=True
    ):
        assert ulps_from_correct(result, expected) <= 1


@needs_extended
def test_float64_functions_are_within_one_ulp():
    words = sample_words("float64", 200_000)
    exact = exact_neg_log(words, 64, WIDE)
    log = neg_log_reference(words)
    assert ulps_from_correct(log, exact) <= 1
    assert ulps_from_correct(np.sqrt(log + log), np.sqrt(2 * exact)) <= 1
    for result, expected in zip(
        sincos_reference(words), exact_sincos(words, 64, WIDE), strict=True
    ):
        assert ulps_from_correct(result, expected) <= 1


@every_kind
def test_normals_are_finite_at_every_edge(kind):
    real, word, bits = KINDS[kind]
    edges = edge_words(kind)
    radii, angles = (grid.ravel() for grid in np.meshgrid(edges, edges[::5]))
    out = np.zeros((radii.size, 2), real)
    launch(KERNELS[kind][2], (radii.size,), out, radii.copy(), angles.copy())
    assert np.isfinite(out).all()
    # The largest radius belongs to word 0, and angle 0 gives it to the cosine.
    corner = np.zeros((1, 2), real)
    launch(KERNELS[kind][2], (1,), corner, np.zeros(1, word), np.zeros(1, word))
    assert corner[0, 0] == real(np.sqrt(2 * bits * np.log(2.0)))
    assert np.abs(out).max() == corner[0, 0]


@every_kind
def test_radius_falls_as_the_word_grows(kind):
    _, word, bits = KINDS[kind]
    near = np.unique(np.concatenate([np.sort(edge_words(kind)), np.arange(1000, dtype=word)]))
    log = neg_log_reference(near)
    # To within the rounding of the two values.
    assert np.all(np.diff(log) <= np.spacing(log[:-1]))
    assert log[0] == pytest.approx(bits * np.log(2.0))
    assert log[-1] == 0.0


@every_kind
def test_uniform_never_reaches_the_upper_bound(kind):
    real, word, bits = KINDS[kind]
    kept = {32: 24, 64: 53}[bits]
    words = np.array([0, 1, 2 ** (bits - kept), 2**bits - 1], dtype=word)
    out = np.zeros(4, real)
    standard = real(0), real(1), np.nextafter(real(1), real(0))
    launch(KERNELS[kind][3], (4,), out, words, *standard)
    assert out.tolist() == [0.0, 0.0, 2.0**-kept, 1 - 2.0**-kept]
    # Here rounding would give the upper bound itself, 2**kept + 2.
    low, high = real(2.0**kept), real(2.0**kept + 2)
    launch(KERNELS[kind][3], (4,), out, words, low, high - low, np.nextafter(high, low))
    assert out[3] < high
    assert out[0] == low


def test_fma_reference_rounds_once():
    rng = np.random.default_rng(21)
    for real in (np.float32, np.float64):
        a, b = (rng.standard_normal(2000).astype(real) for _ in range(2))
        # Addends that cancel the product almost, or meet it at half an ulp.
        c = np.concatenate([-(a * b)[:1000], rng.standard_normal(1000).astype(real)])
        c *= np.exp2(rng.integers(-60, 3, 2000)).astype(real) ** (np.arange(2000) >= 1000)
        result = fma_reference(a, b, c)
        for x, y, z, r in zip(a, b, c, result, strict=True):
            assert r == exactly_rounded(x, y, z), (x, y, z)


def exactly_rounded(x, y, z):
    """Return x * y + z in exact rational arithmetic, rounded once to the dtype of x."""
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    nearest = type(x)(float(exact))
    candidates = [np.nextafter(nearest, -np.inf), nearest, np.nextafter(nearest, np.inf)]
    ranked = sorted(candidates, key=lambda v: abs(Fraction(float(v)) - exact))
    distances = [abs(Fraction(float(v)) - exact) for v in ranked[:2]]
    if distances[0] == distances[1]:
        bits = f"u{x.dtype.itemsize}"
        return next(v for v in ranked[:2] if int(np.abs(v).view(bits)) % 2 == 0)
    return ranked[0]


def test_fma_reference_refuses_mixed_dtypes():
    with pytest.raises(TypeError, match="expected three float32 or three float64"):
        fma_reference(np.float32(1), np.float64(1), np.float32(1))
