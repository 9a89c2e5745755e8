"""Samplers: distributions drawn by rejection or search, from separate Philox blocks per element.

Element i of a draw uses the blocks of number ``offset // 4 + i``, whose counter word 2 is the
attempt 0, 1, 2, ... The number of attempts depends on the distribution, its parameters and the
words, so the element is a function of (seed, offset, i, parameters) alone, as in the whole
`element` layout. Counts are computed in float64. Shorter floats are rounded float32 draws.
"""

from __future__ import annotations

from nbrt_kernels.random.distributions.samplers._launches import SAMPLED, sampler_fills

__all__ = ["SAMPLED", "sampler_fills"]
