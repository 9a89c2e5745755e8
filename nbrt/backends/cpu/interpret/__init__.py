"""Kernels in plain Python, for debuggers: ``NBRT_INTERPRET=1`` and `nbrt.interpret`.

The kernel's own bytecode runs, under globals in which the names of ``numba.cuda`` are replaced
(`functions`, `dialect`); `scheduler` gives the threads their turns and `collectives` answers what
they ask of each other. Nothing of Numba's compiler is used: it is an oracle for the compiler too.
"""

from __future__ import annotations

from nbrt.backends.cpu.interpret.launch import interpret

__all__ = ["interpret"]
