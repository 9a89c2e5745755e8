"""Benchmarks: nbrt beside its peers. ``make bench``, or ``python -m benchmarks --help``."""
