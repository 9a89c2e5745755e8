"""Samplers: distributions drawn by rejection or search, an element from Philox blocks of its own.

Element i of a draw owns the blocks of number ``offset // 4 + i``, whose counter word 2 is the
attempt: 0, 1, 2, ...; how many it takes depends on the distribution, its parameters and the words.
So the element is a function of (seed, offset, i, parameters) alone, as everywhere in the `element`
layout.  Counts are computed in float64.  Shorter floats are float32 draws that the caller rounds.
"""

from __future__ import annotations

from nbrt_kernels.random.distributions.samplers._launches import SAMPLED, sampler_fills

__all__ = ["SAMPLED", "sampler_fills"]
