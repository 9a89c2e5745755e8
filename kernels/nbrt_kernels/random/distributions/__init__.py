"""Distributions in closed form: each element is a function of one word, or of a pair of them."""

from __future__ import annotations

from nbrt_kernels.random.distributions.specs import (
    DISTRIBUTIONS,
    DistributionSpec,
    integer_spec,
    spec_of,
)

__all__ = ["DISTRIBUTIONS", "DistributionSpec", "integer_spec", "spec_of"]
