"""Distributions in closed form: each element is a function of one word, or of a pair of them."""

from __future__ import annotations

from nbrt_kernels.random.distributions.recipes import DISTRIBUTIONS, Recipe, recipe

__all__ = ["DISTRIBUTIONS", "Recipe", "recipe"]
