"""Checks of the demo: each result against NumPy, and noise in pieces against the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels.random import normal_reference

if TYPE_CHECKING:
    from nbrt.typing import HostArray

__all__ = ["DemoCheck", "check_histogram", "check_image", "check_noise", "check_pieces"]

_IMAGE_TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """A comparison of a result with its reference.

    Attributes
    ----------
    name, against : str
        The result and the reference.
    outcome : str
        "equal, bit for bit", or the largest difference.
    passed : bool
        Whether the difference is within the bound.
    """

    name: str
    against: str
    outcome: str
    passed: bool


def check_pieces(pieces: HostArray, whole: HostArray) -> DemoCheck:
    """Compare noise drawn in four pieces with noise drawn at once."""
    return _equal("noise", "the same in four pieces on cpu devices", pieces, whole)


def check_noise(noise: HostArray, seed: int) -> DemoCheck:
    """Compare the noise with the NumPy reference of the generator."""
    expected = normal_reference(noise.size, seed, 0, np.float32).reshape(noise.shape)
    return _equal("noise", "Philox and Box-Muller in NumPy", noise, expected)


def check_image(name: str, image: HostArray, expected: HostArray) -> DemoCheck:
    """Compare an image with its NumPy reference; pixels span [0, 1]."""
    largest = float(np.abs(image.astype(np.float64) - expected).max())
    outcome = (
        "equal, bit for bit"
        if largest == 0
        else f"largest difference {largest:.1e} (bound {_IMAGE_TOLERANCE:.0e})"
    )
    return DemoCheck(name, "NumPy", outcome, largest <= _IMAGE_TOLERANCE)


def check_histogram(name: str, counts: HostArray, image: HostArray) -> DemoCheck:
    """Compare counts with `numpy.histogram`, which counts 1 in its last bin."""
    inside = image[image < 1]
    expected = np.histogram(inside, bins=counts.size, range=(0, 1))[0]
    return _equal(f"histogram of {name}", "numpy.histogram", counts, expected)


def _equal(name: str, against: str, got: HostArray, expected: HostArray) -> DemoCheck:
    different = int(np.count_nonzero(got != expected))
    outcome = "equal, bit for bit" if different == 0 else f"{different} of {got.size} differ"
    return DemoCheck(name, against, outcome, different == 0)
