"""Memory: pools, statistics, limits, and what is seen of them: history, pictures, leaks, races.

Names are loaded when they are first asked for (PEP 562), as in `nbrt` itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrt.observe.callbacks import Observation, Observer, observe
    from nbrt.observe.history.annotations import annotate
    from nbrt.observe.history.recorder import memory_history, record_memory_history
    from nbrt.observe.history.snapshot import dump_snapshot, load_snapshot, snapshot
    from nbrt.observe.history.summary import MemorySummary, memory_summary
    from nbrt.observe.leaks.finder import HeldMemory, LeakReport, find_leaks, live_arrays, no_leaks
    from nbrt.observe.leaks.tracebacks import (
        held_by_tracebacks,
        hint_after_errors,
        release_tracebacks,
    )
    from nbrt.observe.pictures.page import save_html, to_html
    from nbrt.observe.pictures.segment_map import Fragmentation, fragmentation, plot_segments
    from nbrt.observe.pictures.timeline import Timeline, plot_timeline, timeline
    from nbrt.observe.races.checker import RaceChecker, check_races
    from nbrt.observe.races.reports import MemoryRaceReport
    from nbrt.runtime.memory.adapters.rmm import RmmAllocator
    from nbrt.runtime.memory.adapters.torch import TorchAllocator
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.memory.allocators import Allocator
    from nbrt.runtime.memory.functions import (
        allocations,
        empty_cache,
        empty_host_cache,
        host_memory_stats,
        max_memory_allocated,
        max_memory_reserved,
        mem_get_info,
        memory_allocated,
        memory_reserved,
        memory_stats,
        memory_stats_as_nested_dict,
        reset_accumulated_memory_stats,
        reset_peak_memory_stats,
    )
    from nbrt.runtime.memory.limits import (
        get_memory_limit,
        get_per_process_memory_fraction,
        set_memory_limit,
        set_per_process_memory_fraction,
    )
    from nbrt.runtime.memory.oom import attach_out_of_memory_observer
    from nbrt.runtime.memory.pool import MemoryPool, current_pool, default_pool, host_pool, use_pool
    from nbrt.runtime.memory.recording import record_stream

__all__ = [
    "Allocation",
    "Allocator",
    "Fragmentation",
    "HeldMemory",
    "LeakReport",
    "MemoryPool",
    "MemoryRaceReport",
    "MemorySummary",
    "Observation",
    "Observer",
    "RaceChecker",
    "RmmAllocator",
    "Timeline",
    "TorchAllocator",
    "allocations",
    "annotate",
    "attach_out_of_memory_observer",
    "check_races",
    "current_pool",
    "default_pool",
    "dump_snapshot",
    "empty_cache",
    "empty_host_cache",
    "find_leaks",
    "fragmentation",
    "get_memory_limit",
    "get_per_process_memory_fraction",
    "held_by_tracebacks",
    "hint_after_errors",
    "host_memory_stats",
    "host_pool",
    "live_arrays",
    "load_snapshot",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_history",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "no_leaks",
    "observe",
    "plot_segments",
    "plot_timeline",
    "record_memory_history",
    "record_stream",
    "release_tracebacks",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "save_html",
    "set_memory_limit",
    "set_per_process_memory_fraction",
    "snapshot",
    "timeline",
    "to_html",
    "use_pool",
]

_HOMES = {
    "nbrt.observe.history.annotations": "annotate",
    "nbrt.observe.callbacks": "Observation Observer observe",
    "nbrt.observe.history.recorder": "memory_history record_memory_history",
    "nbrt.observe.leaks.finder": "HeldMemory LeakReport find_leaks live_arrays no_leaks",
    "nbrt.observe.pictures.page": "save_html to_html",
    "nbrt.observe.races.reports": "MemoryRaceReport",
    "nbrt.observe.races.checker": "RaceChecker check_races",
    "nbrt.observe.pictures.segment_map": "Fragmentation fragmentation plot_segments",
    "nbrt.observe.history.snapshot": "dump_snapshot load_snapshot snapshot",
    "nbrt.observe.history.summary": "MemorySummary memory_summary",
    "nbrt.observe.pictures.timeline": "Timeline plot_timeline timeline",
    "nbrt.observe.leaks.tracebacks": "held_by_tracebacks hint_after_errors release_tracebacks",
    "nbrt.runtime.memory.allocation": "Allocation",
    "nbrt.runtime.memory.adapters.rmm": "RmmAllocator",
    "nbrt.runtime.memory.adapters.torch": "TorchAllocator",
    "nbrt.runtime.memory.allocators": "Allocator",
    "nbrt.runtime.memory.functions": (
        "allocations empty_cache empty_host_cache host_memory_stats max_memory_allocated "
        "max_memory_reserved mem_get_info memory_allocated memory_reserved memory_stats "
        "memory_stats_as_nested_dict reset_accumulated_memory_stats reset_peak_memory_stats"
    ),
    "nbrt.runtime.memory.limits": (
        "get_memory_limit get_per_process_memory_fraction set_memory_limit "
        "set_per_process_memory_fraction"
    ),
    "nbrt.runtime.memory.pool": "MemoryPool current_pool default_pool host_pool use_pool",
    "nbrt.runtime.memory.oom": "attach_out_of_memory_observer",
    "nbrt.runtime.memory.recording": "record_stream",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'nbrt.memory' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
