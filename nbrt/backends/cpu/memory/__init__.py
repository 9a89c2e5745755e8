"""Memory of CPU devices: pools of the operating system's mappings, and blocks cut from them."""

from nbrt.backends.cpu.memory.caching import (
    CachingPool,
    HostBlock,
    HostPool,
    block_from_external,
    owner_of,
)
from nbrt.backends.cpu.memory.expandable import ExpandablePool
from nbrt.backends.cpu.memory.pinned import PinnedPool
from nbrt.backends.cpu.memory.plain import PlainPool

__all__ = [
    "CachingPool",
    "ExpandablePool",
    "HostBlock",
    "HostPool",
    "PinnedPool",
    "PlainPool",
    "block_from_external",
    "owner_of",
]
