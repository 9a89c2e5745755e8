"""Memory that graphs of the simulated driver allocate."""

from __future__ import annotations

from typing import Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status

RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
AUTO_FREE = int(driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)


def counted(name: str) -> int:
    attribute = getattr(driver.CUgraphMem_attribute, f"CU_GRAPH_MEM_ATTR_{name}")
    return int(call(driver.cuDeviceGetGraphMemAttribute(0, attribute)))


@pytest.fixture
def capture(new_stream: Any) -> Any:
    """Capture an allocation, a memset, and optionally the free; return graph and address."""
    stream = new_stream()

    def create(is_freed: bool) -> tuple[Any, Any, Any]:
        call(driver.cuStreamBeginCapture(stream, RELAXED))
        address = call(driver.cuMemAllocAsync(1000, stream))
        call(driver.cuMemsetD8Async(address, 7, 1000, stream))
        if is_freed:
            call(driver.cuMemFreeAsync(address, stream))
        return stream, call(driver.cuStreamEndCapture(stream)), address

    return create


def test_memory_lives_within_a_launch(capture: Any) -> None:
    stream, graph, address = capture(is_freed=True)
    executable = call(driver.cuGraphInstantiate(graph, 0))
    before = counted("USED_MEM_CURRENT")
    for _ in range(2):
        call(driver.cuGraphLaunch(executable, stream))
        call(driver.cuStreamSynchronize(stream))
        assert counted("USED_MEM_CURRENT") == before
    assert counted("RESERVED_MEM_CURRENT") > 0
    assert counted("USED_MEM_HIGH") >= before + 1024
    assert status(driver.cuMemFreeAsync(address, stream)) == "INVALID_VALUE"
    call(driver.cuDeviceGraphMemTrim(0))
    assert counted("RESERVED_MEM_CURRENT") == 0
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(graph))


def test_memory_outlives_a_launch(capture: Any, read: Any) -> None:
    stream, graph, address = capture(is_freed=False)
    executable = call(driver.cuGraphInstantiate(graph, 0))
    assert status(driver.cuMemFreeAsync(address, stream)) == "INVALID_VALUE"
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert (read(address, 1000) == 7).all()
    assert status(driver.cuGraphLaunch(executable, stream)) == "INVALID_VALUE"
    call(driver.cuMemFreeAsync(address, stream))
    assert status(driver.cuMemFreeAsync(address, stream)) == "INVALID_VALUE"
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(graph))
    call(driver.cuStreamSynchronize(stream))
    assert (read(address, 1000) == 7).all()
    call(driver.cuMemFree(address))
    assert status(driver.cuMemFree(address)) == "INVALID_VALUE"


def test_launch_frees_memory_of_the_launch_before(capture: Any, read: Any) -> None:
    stream, graph, address = capture(is_freed=False)
    executable = call(driver.cuGraphInstantiate(graph, AUTO_FREE))
    for _ in range(3):
        call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert (read(address, 1000) == 7).all()
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(graph))
    call(driver.cuMemFree(address))


def test_only_memory_of_graphs_is_freed_in_a_graph(new_stream: Any) -> None:
    stream = new_stream()
    address = call(driver.cuMemAllocAsync(1000, stream))
    call(driver.cuStreamBeginCapture(stream, RELAXED))
    assert status(driver.cuMemFreeAsync(address, stream)) == "INVALID_VALUE"
    driver.cuStreamEndCapture(stream)
    call(driver.cuMemFreeAsync(address, stream))
