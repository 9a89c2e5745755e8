"""Differential fuzzing of the SIMT compiler: random kernels, run three ways, equal bits.

`program` is a small language with a type on every node, `programs` draws from it, `reference` runs
it thread by thread without Numba, `compiled` prints it as a kernel and runs that through nbrt.
Programs are free of races by construction: a thread writes its own slots only, and reads what
another wrote with a barrier in between.

``pytest tests/fuzz`` runs 120 programs, the same ones each time; ``make fuzz`` runs 10,000 others.
"""
