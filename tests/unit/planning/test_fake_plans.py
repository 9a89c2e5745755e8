"""Plans of fake devices: launches, graphs, threads and the equality with a real run."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import nbrt
from nbrt import distributed
from nbrt.errors import NbrtCleanupWarning
from nbrt.runtime import commands


@nbrt.kernel
def add_one(x: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1


def _work(x: Any) -> nbrt.KernelCost:
    return nbrt.KernelCost(flops=x.size, bytes=2 * x.nbytes)


@nbrt.kernel(cost=_work)
def scale(x: Any, factor: float) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@nbrt.kernel(cost=lambda x: nbrt.KernelCost(flops=x.size, bytes=2 * x.nbytes))
def costly(x: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_launches_are_counted_without_a_hook(kind: str) -> None:
    with nbrt.fake(kind, devices=2) as plan:
        assert "launch" not in commands.hooked_kinds
        x, y = nbrt.empty(64, device=f"{kind}:0"), nbrt.empty(64, device=f"{kind}:1")
        for _ in range(5):
            add_one[1, 64](x)
        add_one[2, 32](x)
        with nbrt.device(f"{kind}:1"):
            add_one[1, 64](y)
        nbrt.empty(1 << 20, device=f"{kind}:0")
    counts = {str(each.device): each.launches for each in plan.kernels}
    assert counts == {f"{kind}:0": 6, f"{kind}:1": 1}
    assert plan.launches == {"add_one": 7}
    assert plan.commands["launch"] == 7
    assert plan.peaks[0].work == "add_one"


def test_costs_are_summed() -> None:
    with nbrt.fake("cuda") as plan:
        for size in (16, 32):
            costly.forall(size)(nbrt.empty(size))
    (found,) = plan.kernels
    assert (found.launches, found.flops, found.nbytes) == (2, 48.0, 384.0)


def test_a_failed_estimate_warns_and_counts() -> None:
    with nbrt.fake("cuda") as plan:
        x = nbrt.empty(16)
        with pytest.warns(NbrtCleanupWarning, match="cost of an accepted launch of scale failed"):
            scale.forall(16)(x, 2.0)  # the estimate takes one argument
    assert plan.launches == {"scale": 1}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_captured_launch_counts_at_each_replay(kind: str) -> None:
    with nbrt.fake(kind) as plan:
        x = nbrt.empty(16, device=kind)
        stream = nbrt.Stream(kind)
        with nbrt.graph(stream) as graph:
            add_one.forall(16)(x)
            costly.forall(16)(x)
        assert plan.launches == {}
        graph.replay()
        graph.replay()
        nbrt.synchronize(kind)
        assert plan.launches == {"add_one": 2, "costly": 2}
        assert {each.kernel: each.flops for each in plan.kernels}["costly"] == 32


def test_launches_of_threads_are_all_counted() -> None:
    with nbrt.fake("cuda") as plan:
        x = nbrt.empty(16)

        def launch() -> None:
            with nbrt.device("cuda"):
                for _ in range(3000):
                    add_one.forall(16)(x)

        threads = [threading.Thread(target=launch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert plan.launches == {"add_one": 12_000}


SIZES = st.one_of(st.integers(0, 5000), st.integers(0, 3_000_000), st.just(1 << 20))


def _program(steps: list[tuple[bool, int, int]]) -> dict[str, int]:
    nbrt.memory.empty_cache("cpu:0")
    nbrt.reset_peak_memory_stats("cpu:0")
    live: list[Any] = []
    for frees, nbytes, place in steps:
        if frees and live:
            live.pop(place % len(live))
        else:
            live.append(nbrt.empty(nbytes, "uint8", device="cpu:0"))
    return nbrt.memory_stats("cpu:0")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 40)), max_size=60))
def test_a_plan_equals_the_statistics_of_its_fake_device(
    steps: list[tuple[bool, int, int]],
) -> None:
    with nbrt.fake("cpu:0") as plan:
        stats = _program(steps)
    assert plan.peak == stats["allocated_bytes.all.peak"]
    assert plan.reserved == stats["reserved_bytes.all.peak"]
    assert sum(holder.nbytes for holder in plan.holders) == plan.peak


def test_nested_blocks_have_their_own_plans() -> None:
    with nbrt.fake("cuda", gpu="H100") as outer:
        x = nbrt.empty(1 << 20, "uint8")
        with nbrt.fake("cuda", gpu="L4") as inner:
            nbrt.empty(4 << 20, "uint8")
        nbrt.empty(1 << 10, "uint8")
        del x
    assert inner.peak == 4 << 20
    assert outer.peak == (1 << 20) + (1 << 10)


def test_page_locked_memory_counts_apart() -> None:
    with nbrt.fake("cuda") as plan:
        x = nbrt.empty(1 << 20, "uint8")
        nbrt.to_host(x)
        nbrt.empty_pinned(3 << 20, "uint8")
    assert plan.peak == 1 << 20
    assert plan.peaks[0].page_locked >= 3 << 20
    assert plan.bytes_moved == {"device_to_host": 1 << 20}


def test_reads_are_listed_by_line() -> None:
    with nbrt.fake("cuda", reads="zeros") as plan:
        x = nbrt.empty(4)
        for _ in range(3):
            float(x[0])
    ((line, count),) = plan.reads.items()
    assert "test_fake_plans.py" in line
    assert count == 3
    assert "reads of values that do not exist" in str(plan)


def test_pickles_after_the_block_have_the_snapshot() -> None:
    with nbrt.fake("cuda", devices=2) as plan:
        x = nbrt.empty(1 << 20, "uint8", device="cuda:1")
    copied = pickle.loads(pickle.dumps(plan))
    assert copied.data == plan.data
    trace = copied.snapshot()["device_traces"][1]
    assert [each["size"] for each in trace if each["action"] == "alloc"] == [1 << 20]
    assert copied.fits("L4")
    del x


@nbrt.kernel
def spilling(x: Any) -> None:
    values = cuda.local.array(64, "float64")
    for i in range(64):
        values[i] = x[i]
    for i in range(64):
        x[i] = values[int(x[i]) % 64]


def test_local_memory_is_named_where_kernels_are_compiled() -> None:
    with nbrt.fake("cuda", gpu="L4") as plan:
        spilling[1, 1](nbrt.empty(64, "float64"))
    assert any("local memory of kernels: not counted" in line for line in plan.assumptions)
    with nbrt.fake("cuda", gpu="L4", compile=True) as plan:
        spilling[1, 1](nbrt.empty(64, "float64"))
    (line,) = (line for line in plan.assumptions if line.startswith("local memory of kernels"))
    if "not counted" in line:
        pytest.skip("ptxas is missing")
    assert "512 bytes of spilling x 89,088 resident threads" in line
    assert line.startswith("local memory of kernels: 43.5 MiB, not in the peaks")


def test_what_is_not_modelled_has_lines() -> None:
    with nbrt.fake("cuda") as plan:
        pass
    text = str(plan)
    for name in ("context", "local memory", "module code", "workspaces of libraries"):
        assert f"\n  {name}" in text
    with nbrt.fake("cpu") as plan:
        pass
    assert "module code" not in str(plan)


def _redistribute() -> None:
    mesh = distributed.init_device_mesh("cuda", (2,))
    for _ in range(3):
        x = distributed.ones((1000, 64), device_mesh=mesh, placements=[distributed.Shard(0)])
        y = x.redistribute(placements=[distributed.Replicate()])
        y.redistribute(placements=[distributed.Shard(1)])


def test_collectives_count_the_bytes_of_each_rank() -> None:
    with nbrt.fake("cuda", devices=2) as plan:
        distributed.run(_redistribute, ranks=2, device_type="cuda")
    part = 500 * 64 * 4
    found = {(str(each.device), each.name): (each.calls, each.nbytes) for each in plan.collectives}
    # The step from replicated to split parts sends nothing.
    assert found == {
        ("cuda:0", "all_gather"): (3, 3 * part),
        ("cuda:1", "all_gather"): (3, 3 * part),
    }
    assert nbrt.MemoryPlan.from_json(plan.to_json()).data == plan.data
