"""What the demo proves: each result against NumPy, pieces against the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbrt_kernels.random import normal_reference

if TYPE_CHECKING:
    from nbrt.typing import HostArray

__all__ = ["Check", "check_histogram", "check_image", "check_noise", "check_pieces"]

_IMAGE_TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes
    ----------
    name, against : str
        What was compared, and with what.
    outcome : str
        What was found: "equal, bit for bit", or the largest difference.
    passed : bool
        Whether that is within the bound.
    """

    name: str
    against: str
    outcome: str
    passed: bool


def check_pieces(pieces: HostArray, whole: HostArray) -> Check:
    """Compare noise drawn in four pieces with the noise drawn at once."""
    return _equal("noise", "the same in four pieces on cpu devices", pieces, whole)


def check_noise(noise: HostArray, seed: int) -> Check:
    """Compare the noise with the NumPy reference of the generator."""
    expected = normal_reference(noise.size, seed, 0, np.float32).reshape(noise.shape)
    return _equal("noise", "Philox and Box-Muller in NumPy", noise, expected)


def check_image(name: str, image: HostArray, expected: HostArray) -> Check:
    """Compare a picture with its NumPy reference; pixels span [0, 1]."""
    largest = float(np.abs(image.astype(np.float64) - expected).max())
    outcome = (
        "equal, bit for bit"
        if largest == 0
        else f"largest difference {largest:.1e} (bound {_IMAGE_TOLERANCE:.0e})"
    )
    return Check(name, "NumPy", outcome, largest <= _IMAGE_TOLERANCE)


def check_histogram(name: str, counts: HostArray, image: HostArray) -> Check:
    """Compare counts with `numpy.histogram`, whose last bin alone includes its right edge."""
    inside = image[image < 1]
    expected = np.histogram(inside, bins=counts.size, range=(0, 1))[0]
    return _equal(f"histogram of {name}", "numpy.histogram", counts, expected)


def _equal(name: str, against: str, got: HostArray, expected: HostArray) -> Check:
    different = int(np.count_nonzero(got != expected))
    outcome = "equal, bit for bit" if different == 0 else f"{different} of {got.size} differ"
    return Check(name, against, outcome, different == 0)
