"""The draws that are compiled for GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrt.testing.draws import DrawCase

__all__ = ["is_compiled_for_gpus"]

_SHORT = ("random", "normal")


def is_compiled_for_gpus(case: DrawCase) -> bool:
    """Return whether tests compile a draw for a GPU.

    What is rounded to a short dtype is computed as a float32: two such draws stand for all.
    """
    return case.dtype not in ("float16", "bfloat16") or case.method in _SHORT
