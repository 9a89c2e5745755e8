"""Kernels in plain Python, for debuggers: ``NBRT_INTERPRET=1`` and `nbrt.interpret`.

The kernel's bytecode runs under globals in which the names of ``numba.cuda`` are substituted
(`functions`, `dialect`). `scheduler` runs the threads one at a time, and `collectives` computes the
results of barriers and warp operations. Nothing depends on Numba's compiler, so that tests compare
compiled kernels with it.
"""

from __future__ import annotations

from nbrt.backends.cpu.interpret.launch import interpret

__all__ = ["interpret"]
