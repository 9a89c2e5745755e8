"""Memory: pools, statistics, limits, history, plots, leaks and races.

Every public name loads its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from nbrt.observe.callbacks import Observation as Observation
    from nbrt.observe.callbacks import Observer as Observer
    from nbrt.observe.callbacks import observe as observe
    from nbrt.observe.history.annotations import annotate as annotate
    from nbrt.observe.history.recorder import memory_history as memory_history
    from nbrt.observe.history.recorder import record_memory_history as record_memory_history
    from nbrt.observe.history.snapshot import dump_snapshot as dump_snapshot
    from nbrt.observe.history.snapshot import load_snapshot as load_snapshot
    from nbrt.observe.history.snapshot import snapshot as snapshot
    from nbrt.observe.history.summary import MemorySummary as MemorySummary
    from nbrt.observe.history.summary import memory_summary as memory_summary
    from nbrt.observe.leaks.finder import HeldMemory as HeldMemory
    from nbrt.observe.leaks.finder import LeakReport as LeakReport
    from nbrt.observe.leaks.finder import find_leaks as find_leaks
    from nbrt.observe.leaks.finder import live_arrays as live_arrays
    from nbrt.observe.leaks.finder import no_leaks as no_leaks
    from nbrt.observe.leaks.tracebacks import held_by_tracebacks as held_by_tracebacks
    from nbrt.observe.leaks.tracebacks import hint_after_errors as hint_after_errors
    from nbrt.observe.leaks.tracebacks import release_tracebacks as release_tracebacks
    from nbrt.observe.plots.html_report import save_html as save_html
    from nbrt.observe.plots.html_report import to_html as to_html
    from nbrt.observe.plots.segment_map import Fragmentation as Fragmentation
    from nbrt.observe.plots.segment_map import fragmentation as fragmentation
    from nbrt.observe.plots.segment_map import plot_segments as plot_segments
    from nbrt.observe.plots.timeline import Timeline as Timeline
    from nbrt.observe.plots.timeline import plot_timeline as plot_timeline
    from nbrt.observe.plots.timeline import timeline as timeline
    from nbrt.observe.races.checker import RaceChecker as RaceChecker
    from nbrt.observe.races.checker import check_races as check_races
    from nbrt.observe.races.graph_races import graph_races as graph_races
    from nbrt.observe.races.reports import MemoryRaceReport as MemoryRaceReport
    from nbrt.runtime.memory.adapters.rmm import RmmAllocator as RmmAllocator
    from nbrt.runtime.memory.adapters.torch import TorchAllocator as TorchAllocator
    from nbrt.runtime.memory.allocation import Allocation as Allocation
    from nbrt.runtime.memory.allocators import Allocator as Allocator
    from nbrt.runtime.memory.functions import allocations as allocations
    from nbrt.runtime.memory.functions import empty_cache as empty_cache
    from nbrt.runtime.memory.functions import empty_host_cache as empty_host_cache
    from nbrt.runtime.memory.functions import host_memory_stats as host_memory_stats
    from nbrt.runtime.memory.functions import max_memory_allocated as max_memory_allocated
    from nbrt.runtime.memory.functions import max_memory_reserved as max_memory_reserved
    from nbrt.runtime.memory.functions import mem_get_info as mem_get_info
    from nbrt.runtime.memory.functions import memory_allocated as memory_allocated
    from nbrt.runtime.memory.functions import memory_reserved as memory_reserved
    from nbrt.runtime.memory.functions import memory_stats as memory_stats
    from nbrt.runtime.memory.functions import (
        memory_stats_as_nested_dict as memory_stats_as_nested_dict,
    )
    from nbrt.runtime.memory.functions import (
        reset_accumulated_memory_stats as reset_accumulated_memory_stats,
    )
    from nbrt.runtime.memory.functions import reset_peak_memory_stats as reset_peak_memory_stats
    from nbrt.runtime.memory.limits import get_memory_limit as get_memory_limit
    from nbrt.runtime.memory.limits import (
        get_per_process_memory_fraction as get_per_process_memory_fraction,
    )
    from nbrt.runtime.memory.limits import set_memory_limit as set_memory_limit
    from nbrt.runtime.memory.limits import (
        set_per_process_memory_fraction as set_per_process_memory_fraction,
    )
    from nbrt.runtime.memory.oom import (
        attach_out_of_memory_observer as attach_out_of_memory_observer,
    )
    from nbrt.runtime.memory.pool import MemoryPool as MemoryPool
    from nbrt.runtime.memory.pool import current_pool as current_pool
    from nbrt.runtime.memory.pool import default_pool as default_pool
    from nbrt.runtime.memory.pool import host_pool as host_pool
    from nbrt.runtime.memory.pool import use_pool as use_pool
    from nbrt.runtime.memory.recording import record_stream as record_stream
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
