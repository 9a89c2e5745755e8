"""Random numbers from Philox4x32-10: a value depends on (seed, offset, element) alone."""

from __future__ import annotations

from nbrt.random.generator import Generator, default_generator, manual_seed
from nbrt.random.state import PhiloxState

__all__ = ["Generator", "PhiloxState", "default_generator", "manual_seed"]
