"""Kernels in streams and graphs of the simulated driver: order, faults, nodes, conditions."""

from __future__ import annotations

import ctypes
import queue
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, host_function, pointer, status

if TYPE_CHECKING:
    from collections.abc import Iterator

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);

// *target = value
.visible .entry store(.param .u64 target, .param .u32 value) {
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [target];
    ld.param.u32 %r1, [value];
    st.global.u32 [%rd1], %r1;
    ret;
}

// *target = 2 * *source + 1
.visible .entry step(.param .u64 target, .param .u64 source) {
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [target];
    ld.param.u64 %rd2, [source];
    ld.global.u32 %r1, [%rd2];
    mad.lo.u32 %r2, %r1, 2, 1;
    st.global.u32 [%rd1], %r2;
    ret;
}

// *counter += 1; condition = *counter < limit
.visible .entry count(.param .u64 counter, .param .u32 limit, .param .u64 handle) {
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [counter];
    ld.param.u32 %r1, [limit];
    ld.param.u64 %rd2, [handle];
    ld.global.u32 %r2, [%rd1];
    add.u32 %r3, %r2, 1;
    st.global.u32 [%rd1], %r3;
    setp.lt.u32 %p1, %r3, %r1;
    selp.u32 %r4, 1, 0, %p1;
    {
    .param .b64 param0;
    .param .b32 param1;
    st.param.b64 [param0], %rd2;
    st.param.b32 [param1], %r4;
    call.uni cudaGraphSetConditional, (param0, param1);
    }
    ret;
}
"""


class Module:
    """The kernels of `PTX`, with their launches."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def function(self, name: str) -> Any:
        return call(driver.cuModuleGetFunction(self._module, name.encode()))

    def launch(self, stream: Any, name: str, *arguments: Any) -> None:
        values = [convert(argument) for argument in arguments]
        kinds = [type(value) for value in values]
        numbers = tuple(value.value for value in values)
        grid = (1, 1, 1, 1, 1, 1, 0)
        parameters = (numbers, tuple(kinds))
        call(driver.cuLaunchKernel(self.function(name), *grid, stream, parameters, 0))


def convert(argument: Any) -> Any:
    """Return addresses as 64-bit numbers, and others as 32-bit numbers."""
    if isinstance(argument, int):
        return ctypes.c_uint32(argument)
    return ctypes.c_uint64(int(argument))


@pytest.fixture
def module(context: Any) -> Iterator[Module]:
    loaded = call(driver.cuModuleLoadData(PTX))
    yield Module(loaded)
    driver.cuCtxSynchronize()
    driver.cuModuleUnload(loaded)


@pytest.fixture
def cells(context: Any) -> Iterator[list[Any]]:
    """Addresses of four numbers in device memory, which are 0."""
    start = call(driver.cuMemAlloc(16))
    call(driver.cuMemsetD32(start, 0, 4))
    call(driver.cuCtxSynchronize())
    yield [driver.CUdeviceptr(int(start) + 4 * number) for number in range(4)]
    driver.cuMemFree(start)


def read(address: Any) -> int:
    target = bytearray(4)
    call(driver.cuMemcpyDtoH(target, address, 4))
    return int.from_bytes(target, "little")


def kernel_params(function: Any, *arguments: Any) -> Any:
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    values = [convert(argument) for argument in arguments]
    params.func = function
    params.gridDimX = params.gridDimY = params.gridDimZ = 1
    params.blockDimX = params.blockDimY = params.blockDimZ = 1
    params.kernelParams = (
        tuple(value.value for value in values),
        tuple(type(value) for value in values),
    )
    return params


def add_kernel(graph: Any, params: Any, *dependencies: Any) -> Any:
    before = list(dependencies)
    return call(driver.cuGraphAddKernelNode(graph, before, len(before), params))


def test_missing_wait_is_exposed(
    module: Module, cells: list[Any], new_stream: Any, new_event: Any, set_schedule: Any
) -> None:
    set_schedule("late", 60)
    first, second, event = new_stream(), new_stream(), new_event()
    results = []
    for has_wait in (False, True):
        module.launch(first, "store", cells[0], 0)
        call(driver.cuStreamSynchronize(first))
        module.launch(first, "store", cells[0], 20)
        if has_wait:
            call(driver.cuEventRecord(event, first))
            call(driver.cuStreamWaitEvent(second, event, 0))
        module.launch(second, "step", cells[1], cells[0])
        call(driver.cuStreamSynchronize(second))
        results.append(read(cells[1]))
    assert results == [1, 41]


def test_fault_breaks_the_context_and_drops_later_work(
    initialised: Any, cells: list[Any], log: Any, schedule: str
) -> None:
    del cells, log
    context = call(driver.cuCtxCreate(None, 0, 0))
    module = Module(call(driver.cuModuleLoadData(PTX)))
    stream, other = call(driver.cuStreamCreate(1)), call(driver.cuStreamCreate(1))
    event = call(driver.cuEventCreate(0))
    latch = Latch().hold(stream)
    module.launch(stream, "store", driver.CUdeviceptr(64), 1)
    ran: list[str] = []
    dropped = host_function(lambda: ran.append("dropped"))
    call(driver.cuLaunchHostFunc(stream, pointer(dropped), 0))
    statuses: queue.SimpleQueue[int] = queue.SimpleQueue()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    callback = kind(lambda stream, status, data: statuses.put(status))
    address = ctypes.cast(callback, ctypes.c_void_p).value
    call(driver.cuStreamAddCallback(stream, driver.CUstreamCallback(address), 0, 0))
    call(driver.cuEventRecord(event, stream))
    call(driver.cuStreamWaitEvent(other, event, 0))
    latch.open()
    fault = "ILLEGAL_ADDRESS"
    assert status(driver.cuStreamSynchronize(other)) == fault
    assert status(driver.cuEventSynchronize(event)) == fault
    assert status(driver.cuStreamSynchronize(stream)) == fault
    assert status(driver.cuCtxSynchronize()) == fault
    assert status(driver.cuMemAlloc(16)) == fault
    assert ran == []
    # Calls in a broken context do not wait, so the callback may come after them.
    assert statuses.get(timeout=60) == int(driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    call(driver.cuCtxDestroy(context))
    assert status(driver.cuStreamSynchronize(stream)) == "CONTEXT_IS_DESTROYED"
    assert status(driver.cuEventQuery(event)) == "CONTEXT_IS_DESTROYED"
    assert initialised.take_report()


def test_kernel_of_another_context_is_refused(module: Module, cells: list[Any]) -> None:
    call(driver.cuCtxPushCurrent(call(driver.cuDevicePrimaryCtxRetain(1))))
    stream = call(driver.cuStreamCreate(1))
    with pytest.raises(AssertionError, match="INVALID_HANDLE"):
        module.launch(stream, "store", cells[0], 1)
    call(driver.cuStreamDestroy(stream))
    call(driver.cuCtxPopCurrent())
    call(driver.cuDevicePrimaryCtxRelease(1))


@pytest.fixture
def graph(context: Any) -> Iterator[Any]:
    graph = call(driver.cuGraphCreate(0))
    yield graph
    driver.cuGraphDestroy(graph)


def run(graph: Any, stream: Any) -> None:
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuStreamSynchronize(stream))


def test_kernels_are_captured(
    module: Module, cells: list[Any], new_stream: Any, schedule: str
) -> None:
    stream = new_stream()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    call(driver.cuStreamBeginCapture(stream, mode))
    module.launch(stream, "store", cells[0], 5)
    module.launch(stream, "step", cells[1], cells[0])
    call(driver.cuMemcpyDtoDAsync(cells[2], cells[1], 4, stream))
    call(driver.cuMemsetD32Async(cells[0], 9, 1, stream))
    graph = call(driver.cuStreamEndCapture(stream))
    assert read(cells[1]) == 0
    run(graph, stream)
    assert [read(cell) for cell in cells] == [9, 11, 11, 0]
    _, nodes, count = driver.cuGraphGetNodes(graph, 8)
    kinds = [int(call(driver.cuGraphNodeGetType(node))) for node in nodes[:count]]
    assert kinds == [0, 0, 1, 2]
    call(driver.cuGraphDestroy(graph))


def test_parameters_of_kernel_nodes(
    graph: Any, module: Module, cells: list[Any], new_stream: Any
) -> None:
    store = module.function("store")
    node = add_kernel(graph, kernel_params(store, cells[0], 5))
    add_kernel(graph, kernel_params(module.function("step"), cells[1], cells[0]), node)
    params = call(driver.cuGraphKernelNodeGetParams(node))
    assert (params.gridDimX, params.blockDimX) == (1, 1)
    assert int(params.func) == int(store)
    run(graph, new_stream())
    assert read(cells[1]) == 11
    executable = call(driver.cuGraphInstantiate(graph, 0))
    changed = kernel_params(store, cells[0], 7)
    call(driver.cuGraphExecKernelNodeSetParams(executable, node, changed))
    stream = new_stream()
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert read(cells[1]) == 15
    call(driver.cuGraphExecDestroy(executable))
    run(graph, new_stream())
    assert read(cells[1]) == 11
    call(driver.cuGraphKernelNodeSetParams(node, changed))
    run(graph, new_stream())
    assert read(cells[1]) == 15


def test_attributes_of_kernel_nodes_are_copied(
    graph: Any, module: Module, cells: list[Any]
) -> None:
    first, second = (
        add_kernel(graph, kernel_params(module.function("store"), cells[0], 5)) for _ in range(2)
    )
    priority = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
    value = driver.CUkernelNodeAttrValue()
    value.priority = -3
    call(driver.cuGraphKernelNodeSetAttribute(first, priority, value))
    call(driver.cuGraphKernelNodeCopyAttributes(second, first))
    assert call(driver.cuGraphKernelNodeGetAttribute(second, priority)).priority == -3


def add_while(graph: Any, context: Any, value: int, *dependencies: Any) -> tuple[Any, Any]:
    """Add a WHILE node, and return its handle and its body."""
    handle = call(driver.cuGraphConditionalHandleCreate(graph, context, value, 1))
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    params.conditional.size = 1
    params.conditional.ctx = context
    before = list(dependencies)
    call(driver.cuGraphAddNode(graph, before, None, len(before), params))
    return handle, params.conditional.phGraph_out[0]


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (1, 5)])
def test_while_node_runs_until_a_kernel_clears_its_condition(
    graph: Any,
    context: Any,
    module: Module,
    cells: list[Any],
    new_stream: Any,
    value: int,
    expected: int,
) -> None:
    handle, body = add_while(graph, context, value)
    count = module.function("count")
    node = add_kernel(body, kernel_params(count, cells[0], 5, handle))
    add_kernel(body, kernel_params(module.function("step"), cells[1], cells[0]), node)
    run(graph, new_stream())
    assert read(cells[0]) == expected
    assert read(cells[1]) == (2 * expected + 1 if expected else 0)


def test_body_can_be_captured(
    graph: Any, context: Any, module: Module, cells: list[Any], new_stream: Any
) -> None:
    handle, body = add_while(graph, context, 1)
    stream = new_stream()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    call(driver.cuStreamBeginCaptureToGraph(stream, body, None, None, 0, mode))
    module.launch(stream, "count", cells[0], 3, handle)
    call(driver.cuStreamEndCapture(stream))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    for launch in range(1, 3):
        call(driver.cuGraphLaunch(executable, stream))
        call(driver.cuStreamSynchronize(stream))
        assert read(cells[0]) == [3, 4][launch - 1]
    call(driver.cuGraphExecDestroy(executable))


def wait_value(stream: Any, address: Any, value: int) -> None:
    call(driver.cuStreamWaitValue32(stream, address, value, 1))  # equal


def test_stream_waits_for_a_value(
    module: Module, cells: list[Any], new_stream: Any, log: Any, schedule: str
) -> None:
    first, second, third = new_stream(), new_stream(), new_stream()
    wait_value(first, cells[0], 5)
    log.note(first, "first")
    assert status(driver.cuStreamQuery(first)) == "NOT_READY"
    wait_value(second, cells[1], 6)
    log.note(second, "second")
    call(driver.cuStreamWriteValue32(second, cells[0], 5, 0))
    module.launch(third, "store", cells[1], 6)  # a kernel writes what a stream waits for
    for stream in (third, second, first):
        call(driver.cuStreamSynchronize(stream))
    assert log.names == ["second", "first"]


def test_invalid_memory_operations_are_refused(cells: list[Any], new_stream: Any) -> None:
    stream = new_stream()
    misaligned = driver.CUdeviceptr(int(cells[0]) + 1)
    assert status(driver.cuStreamWriteValue32(stream, misaligned, 1, 0)) == "INVALID_VALUE"
    foreign = driver.CUdeviceptr(4096)
    assert status(driver.cuStreamWaitValue32(stream, foreign, 1, 0)) == "INVALID_VALUE"
    assert status(driver.cuStreamWriteValue32(stream, cells[0], 1, 8)) == "INVALID_VALUE"
    assert status(driver.cuStreamBatchMemOp(stream, 0, [], 0)) == "INVALID_VALUE"


def test_memory_of_a_graph(
    graph: Any, module: Module, cells: list[Any], new_stream: Any, schedule: str
) -> None:
    params = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    params.poolProps.location.id = 0
    params.bytesize = 64
    allocation = call(driver.cuGraphAddMemAllocNode(graph, None, 0, params))
    address = call(driver.cuGraphMemAllocNodeGetParams(allocation)).dptr
    store = add_kernel(graph, kernel_params(module.function("store"), address, 4), allocation)
    step = add_kernel(graph, kernel_params(module.function("step"), cells[0], address), store)
    freed = call(driver.cuGraphAddMemFreeNode(graph, [step], 1, address))
    assert int(call(driver.cuGraphMemFreeNodeGetParams(freed))) == int(address)
    assert status(driver.cuGraphClone(graph)) == "NOT_SUPPORTED"
    executable = call(driver.cuGraphInstantiate(graph, 0))
    stream = new_stream()
    for _ in range(2):
        call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert read(cells[0]) == 9
    call(driver.cuGraphExecDestroy(executable))
