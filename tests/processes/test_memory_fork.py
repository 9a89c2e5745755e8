"""Memory in children that are forked after their parent used it."""

from __future__ import annotations

import sys

import pytest

from helpers.processes import output_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")

FORKED = """
    import gc, os, signal, sys, threading, warnings
    import numpy as np
    import nbrt
    from nbrt import memory
    from nbrt.errors import ForkedProcessError
    from nbrt.testing import Latch

    warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: the point

    def in_child(function):
        "Fork, run `function` in the child, return what it gave back through the exit code."
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(300)  # a hang is a failure
            try:
                code = function()
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(99)
            sys.exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    MIB = 1 << 20
    pool = nbrt.MemoryPool("cpu:0", "expandable", name="inherited")
    side = nbrt.Stream("cpu:0")
    with memory.use_pool(pool):
        x, y = nbrt.full(1000, 1.0), nbrt.full(4 * MIB, 2, "uint8")
    z = [nbrt.full(10, 3.0), nbrt.full(3 * MIB, 4, "uint8"), nbrt.empty_pinned(7)]
    before = memory.memory_stats("cpu:0")
"""

USES = {
    "use_pool": "memory.use_pool(pool).__enter__()",
    "empty": "nbrt.empty(3)",
    "empty in a pool": "in_pool()",
    "empty_pinned": "nbrt.empty_pinned(3)",
    "record_stream": "memory.record_stream(x, side)",
    "record_stream of others": "memory.record_stream(np.zeros(3), side)",
    "MemoryPool": "nbrt.MemoryPool()",
    "memory_stats": "memory.memory_stats()",
    "allocations": "memory.allocations()",
    "empty_cache": "memory.empty_cache()",
    "set_memory_limit": "memory.set_memory_limit(None)",
    "current_pool": "memory.current_pool()",
    "stats": "pool.stats()",
    "pool empty_cache": "pool.empty_cache()",
    "pool allocations": "pool.allocations()",
    "pool segments": "pool.segments()",
    "pool memory_reserved": "pool.memory_reserved()",
}


@pytest.mark.parametrize("lock", ["free", "taken"])
def test_every_use_in_a_child_names_spawn(lock: str) -> None:
    """Also where the parent forks in the middle of an allocation of another thread."""
    code = (
        FORKED
        + f"""
    inside = memory.use_pool(pool)
    inside.__enter__()

    def in_pool():
        return nbrt.empty(3, device="cpu:0")

    def attempt(text):
        def child():
            try:
                eval(text)
            except ForkedProcessError as error:
                return 0 if "spawn" in str(error) else 1
            return 2
        return child

    taken, done = threading.Event(), threading.Event()

    def take():
        from nbrt.runtime.memory.registry import allocator_for

        with allocator_for("cpu:0").lock:
            taken.set()
            done.wait(300)

    if {lock!r} == "taken":
        threading.Thread(target=take).start()
        taken.wait()
    for name, text in {USES!r}.items():
        print(name, in_child(attempt(text)))
    done.set()
    """
    )
    assert output_of(code).splitlines() == [f"{name} 0" for name in USES]


def test_watchers_are_turned_on_and_off_in_a_child_whatever_the_parents_threads_do() -> None:
    code = (
        FORKED
        + """
    from nbrt.runtime.memory.registry import allocator_for

    taken, done = threading.Event(), threading.Event()

    def take():
        with allocator_for("cpu:0").lock:
            taken.set()
            done.wait(300)

    def off():
        memory.record_memory_history(None)
        return 5

    def on_and_off():
        with memory.observe(on_event_creation=print):
            pass
        return 6

    memory.record_memory_history()
    threading.Thread(target=take).start()
    taken.wait()
    codes = in_child(off), in_child(on_and_off)
    done.set()
    memory.record_memory_history(None)
    print(codes)
    """
    )
    assert output_of(code) == "(5, 6)\n"


def test_inherited_arrays_are_read_written_and_dropped() -> None:
    code = (
        FORKED
        + """
    def child():
        assert x.sum() == 1000 and y.min() == y.max() == 2
        x[:] = 5
        y[: 4096] = 5
        view = y[-10:]
        globals().update(x=None, y=None)
        gc.collect()
        assert view.tolist() == [2] * 10
        del view
        z.clear()
        globals().update(pool=None)
        gc.collect()
        return 7

    print(in_child(child))
    print(x.sum(), y.min(), y.max(), z[0].sum(), z[1].max())
    print(memory.memory_stats("cpu:0") == before)
    """
    )
    assert output_of(code) == "7\n1000.0 2 2 30.0 4\nTrue\n"


def test_a_child_of_a_parent_with_pending_frees() -> None:
    code = (
        FORKED
        + """
    w = nbrt.full(3 * MIB, 6, "uint8")
    memory.record_stream(w, side)
    memory.record_stream(x, side)
    with Latch() as latch:
        latch.hold(side)
        del w
        stats = memory.memory_stats("cpu:0")
        assert stats["active.all.current"] == stats["allocated.all.current"] + 1

        def child():
            globals().update(x=None, y=None)
            z.clear()
            return 3

        latch.wait_reached()
        print(in_child(child))
    side.synchronize()
    stats = memory.memory_stats("cpu:0")
    print(stats["active.all.current"] == stats["allocated.all.current"], x.sum())
    """
    )
    assert output_of(code) == "3\nTrue 1000.0\n"


def test_a_child_forked_while_arrays_die() -> None:
    """Whatever the other threads are at when the process forks, the child drops its arrays."""
    code = (
        FORKED
        + """
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            kept = [nbrt.empty(size, "uint8", device="cpu:0") for size in (10, 5000, 2 * MIB)]
            with memory.use_pool(pool):
                kept.append(nbrt.empty(3 * MIB, "uint8", device="cpu:0"))

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()

    def child():
        globals().update(x=None, y=None, pool=None)
        z.clear()
        gc.collect()
        return 3

    print([in_child(child) for _ in range(4)])
    stop.set()
    for thread in threads:
        thread.join()
    del churn, threads, thread
    gc.collect()
    after = memory.memory_stats("cpu:0")
    print({key for key in before if key.endswith("current") and "allocated" in key
           and after[key] != before[key]}, x.sum())
    """
    )
    assert output_of(code) == "[3, 3, 3, 3]\nset() 1000.0\n"
