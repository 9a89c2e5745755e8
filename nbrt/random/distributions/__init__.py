"""The distributions of a generator, over one abstract draw method."""

from __future__ import annotations

from nbrt.random.distributions.continuous import ContinuousDistributions
from nbrt.random.distributions.discrete import DiscreteDistributions
from nbrt.random.distributions.rejection import RejectionSampled

__all__ = ["Distributions"]


class Distributions(ContinuousDistributions, RejectionSampled, DiscreteDistributions):
    """All methods of `numpy.random.Generator` that draw each element, or each vector, for itself.

    A subclass implements `device`, `layout` and `_draw`, and sets `_position`.
    """
