"""Audit of random draws: record those of a program, compare two runs, and replay single draws.

    with nbrt.random.audit.record("monday.jsonl"):
        train()
    print(nbrt.random.audit.compare("monday.jsonl", "tuesday.jsonl"))

Random numbers that kernels compute inside themselves are not recorded.
"""

from __future__ import annotations

from nbrt.random.audit.comparison import Difference, compare
from nbrt.random.audit.recorder import record
from nbrt.random.audit.recording import DrawRecord, Recording, load
from nbrt.random.audit.replaying import digest, replay

__all__ = [
    "Difference",
    "DrawRecord",
    "Recording",
    "compare",
    "digest",
    "load",
    "record",
    "replay",
]
