"""The end of the interpreter with memory in every state: quiet, and with exit code 0."""

from __future__ import annotations

from textwrap import dedent

import pytest

from helpers.processes import output_of

SETUP = """
    import builtins, gc, threading
    import numpy as np
    import nbrt
    from nbrt import memory
    from nbrt.testing import Latch

    MIB = 1 << 20
    side = nbrt.Stream("cpu:0")
    pool = nbrt.MemoryPool("cpu:0", "expandable")
    kept = builtins.kept = []

    class Allocator:
        "An allocator of another library."
        def __init__(self):
            self.out = {}
        def allocate(self, nbytes, device, stream):
            buffer = np.empty(nbytes, np.uint8)
            self.out[buffer.ctypes.data] = buffer
            return buffer.ctypes.data
        def deallocate(self, address, nbytes, device, stream):
            del self.out[address]
"""

ENDS = {
    "arrays": """
        kept += [nbrt.zeros(10), nbrt.zeros(3 * MIB), nbrt.empty_pinned(10), nbrt.zeros(4)[1:]]
    """,
    "arrays in cycles": """
        cycle = [nbrt.zeros(10), nbrt.zeros(3 * MIB)]
        cycle.append(cycle)
        del cycle
    """,
    "pools": """
        with memory.use_pool(pool):
            kept += [nbrt.zeros(10), nbrt.zeros(3 * MIB), pool]
        kept += [nbrt.MemoryPool("cpu:0", kind) for kind in ("caching", "plain", "pinned")]
    """,
    "a pool that is gone, and one in a cycle": """
        with memory.use_pool(pool):
            kept += [nbrt.zeros(10), nbrt.zeros(3 * MIB)]
        pool.itself = pool
        del pool
        closed = nbrt.MemoryPool("cpu:0")
        with memory.use_pool(closed):
            kept += [nbrt.zeros(10)]
        closed.close()
    """,
    "inside a pool's block": """
        inside = memory.use_pool(pool)
        inside.__enter__()
        kept += [nbrt.zeros(10), inside]
    """,
    "memory of another library": """
        foreign = nbrt.MemoryPool("cpu:0", allocator=Allocator())
        with memory.use_pool(foreign):
            kept += [nbrt.zeros(10), nbrt.zeros(3 * MIB)]
            more = nbrt.zeros(10)
    """,
    "pending frees": """
        latch = Latch()
        latch.hold(side)
        for size in (10, 3 * MIB):
            x = nbrt.zeros(size)
            memory.record_stream(x, side)
            del x
        assert memory.memory_stats("cpu:0")["active.all.current"] == 2
        x = nbrt.zeros(size)
        memory.record_stream(x, side)
        threading.Timer(0.05, latch.release).start()
    """,
    "recorded foreign memory": """
        memory.record_stream(np.zeros(10), side)
        x = nbrt.zeros(10)
        memory.record_stream(x, side)
        kept.append(x)
    """,
    "a history": """
        memory.record_memory_history()
        kept += [nbrt.zeros(10), nbrt.zeros(3 * MIB)]
        x, y = nbrt.zeros(10), nbrt.zeros(3 * MIB)
    """,
    "observers": """
        kept.append(memory.attach_out_of_memory_observer(print))
        memory.set_memory_limit(64 * MIB, "cpu:0")
        kept += [nbrt.zeros(10)]
    """,
    "threads that allocate": """
        def churn():
            while True:
                nbrt.empty(100, device="cpu:0"), nbrt.empty(2 * MIB, "uint8", device="cpu:0")
        threading.Thread(target=churn, daemon=True).start()
    """,
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_quietly(end: str) -> None:
    code = dedent(SETUP) + dedent(ENDS[end]) + 'print("done")\n'
    assert output_of(code, "-W", "error") == "done\n"
