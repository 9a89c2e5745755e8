"""The SIMT compiler: a kernel in the Numba CUDA dialect becomes a native CPU function.

The stages, in the order in which a kernel passes them, each in a file of its own:
`source` (what is a kernel), `resolve` (the dialect's names), `pipeline` (one thread), `entry` (the
loops over blocks and threads), `launch` (argument types and calling). `kernel` holds it together.
"""

from __future__ import annotations

from nbrt.backends.cpu.simt.kernel import LaunchPlan, SimtKernel

__all__ = ["LaunchPlan", "SimtKernel"]
