"""Graphs of the simulated driver: construction, queries, instantiation, launches."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, host_function, pointer, status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def graph(context: Any) -> Iterator[Any]:
    graph = call(driver.cuGraphCreate(0))
    yield graph
    driver.cuGraphDestroy(graph)


def host_params(function: Any) -> Any:
    params = driver.CUDA_HOST_NODE_PARAMS()
    params.fn = function
    params.userData = 0
    return params


def add_host(graph: Any, function: Any, dependencies: Any = ()) -> Any:
    before = list(dependencies)
    params = host_params(function)
    return call(driver.cuGraphAddHostNode(graph, before, len(before), params))


def add_empty(graph: Any, *dependencies: Any) -> Any:
    return call(driver.cuGraphAddEmptyNode(graph, list(dependencies), len(dependencies)))


def run(graph: Any, stream: Any) -> None:
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuStreamSynchronize(stream))


def memset_params(address: Any, value: int, size: int = 4) -> Any:
    params = driver.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value, params.elementSize = address, value, 1
    params.width, params.height, params.pitch = size, 1, size
    return params


@pytest.fixture
def memory(context: Any) -> Iterator[Any]:
    address = call(driver.cuMemAlloc(64))
    call(driver.cuMemsetD8(address, 0, 64))
    call(driver.cuCtxSynchronize())
    yield address
    driver.cuMemFree(address)


def read(address: Any, size: int = 4) -> bytes:
    target = bytearray(size)
    call(driver.cuMemcpyDtoH(target, address, size))
    return bytes(target)


def test_nodes_run_after_their_dependencies(
    graph: Any, new_stream: Any, log: Any, schedule: str
) -> None:
    root = add_host(graph, log.function("root"))
    sides = [add_host(graph, log.function("side"), [root]) for _ in range(12)]
    add_host(graph, log.function("end"), sides)
    run(graph, new_stream())
    assert log.names == ["root", *["side"] * 12, "end"]


@pytest.mark.parametrize("seed", range(3))
def test_order_of_independent_nodes_is_free(
    graph: Any, new_stream: Any, log: Any, initialised: Any, seed: int
) -> None:
    for number in range(30):
        add_host(graph, log.function(number))
    with initialised.schedule("late", seed=seed):
        run(graph, new_stream())
    assert sorted(log.names) == list(range(30))
    assert log.names != list(range(30))


def test_independent_nodes_run_concurrently(graph: Any, new_stream: Any) -> None:
    latches = [Latch(), Latch()]
    for latch in latches:
        add_host(graph, pointer(latch._function))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphLaunch(executable, new_stream()))
    for latch in latches:
        latch.wait_until_reached()
    for latch in latches:
        latch.open()
    call(driver.cuGraphExecDestroy(executable))


def test_launches_of_one_executable_do_not_overlap(
    graph: Any, new_stream: Any, log: Any, schedule: str
) -> None:
    latch = Latch()
    first = add_host(graph, log.function("first"))
    second = add_host(graph, pointer(latch._function), [first])
    add_host(graph, log.function("second"), [second])
    executable = call(driver.cuGraphInstantiate(graph, 0))
    streams = [new_stream(), new_stream()]
    for stream in streams:
        call(driver.cuGraphLaunch(executable, stream))
    latch.wait_until_reached()
    assert log.names == ["first"]
    latch.open()
    for stream in streams:
        call(driver.cuStreamSynchronize(stream))
    assert log.names == ["first", "second"] * 2
    call(driver.cuGraphExecDestroy(executable))


def test_work_behind_a_launch_waits_for_all_branches(
    graph: Any, new_stream: Any, log: Any, schedule: str
) -> None:
    for _ in range(5):
        add_host(graph, log.function("node"))
    stream = new_stream()
    executable = call(driver.cuGraphInstantiate(graph, 0))
    log.note(stream, "before")
    call(driver.cuGraphLaunch(executable, stream))
    log.note(stream, "after")
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(graph))
    call(driver.cuStreamSynchronize(stream))
    assert log.names == ["before", *["node"] * 5, "after"]


def test_launch_on_the_legacy_stream(graph: Any, new_stream: Any, log: Any) -> None:
    for _ in range(3):
        add_host(graph, log.function("node"))
    latch = Latch().hold(new_stream(0))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphLaunch(executable, driver.CUstream(0)))
    log.note(new_stream(0), "after")
    assert log.names == []
    latch.open()
    call(driver.cuCtxSynchronize())
    assert log.names == [*["node"] * 3, "after"]
    call(driver.cuGraphExecDestroy(executable))


def test_child_graphs_are_copied(graph: Any, new_stream: Any, log: Any, schedule: str) -> None:
    child = call(driver.cuGraphCreate(0))
    first = add_host(child, log.function("child 1"))
    add_host(child, log.function("child 2"), [first])
    begin = add_host(graph, log.function("begin"))
    node = call(driver.cuGraphAddChildGraphNode(graph, [begin], 1, child))
    add_host(graph, log.function("end"), [node])
    call(driver.cuGraphDestroy(child))
    run(graph, new_stream())
    assert log.names == ["begin", "child 1", "child 2", "end"]
    inner = call(driver.cuGraphChildGraphNodeGetGraph(node))
    assert driver.cuGraphGetNodes(inner)[-1] == 2
    assert status(driver.cuGraphDestroy(inner)) == "INVALID_VALUE"


def test_empty_child_graph_keeps_the_order(graph: Any, new_stream: Any, log: Any) -> None:
    child = call(driver.cuGraphCreate(0))
    begin = add_host(graph, log.function("begin"))
    node = call(driver.cuGraphAddChildGraphNode(graph, [begin], 1, child))
    add_host(graph, log.function("end"), [node])
    run(graph, new_stream())
    assert log.names == ["begin", "end"]
    call(driver.cuGraphDestroy(child))


def test_cycle_is_refused(graph: Any) -> None:
    first = add_empty(graph)
    second = add_empty(graph, first)
    call(driver.cuGraphAddDependencies(graph, [second], [first], None, 1))
    assert status(driver.cuGraphInstantiate(graph, 0)) == "INVALID_VALUE"
    params = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
    assert status(driver.cuGraphInstantiateWithParams(graph, params)) == "INVALID_VALUE"
    result = driver.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
    assert params.result_out == result
    assert int(params.hErrNode_out) in (int(first), int(second))


def test_dependencies_are_added_and_removed(graph: Any) -> None:
    first, second = add_empty(graph), add_empty(graph)
    call(driver.cuGraphAddDependencies(graph, [first], [second], None, 1))
    again = driver.cuGraphAddDependencies(graph, [first], [second], None, 1)
    assert status(again) == "INVALID_VALUE"
    _, nodes, _, count = driver.cuGraphNodeGetDependencies(second, 4)
    assert [int(node) for node in nodes[:count]] == [int(first)]
    _, nodes, _, count = driver.cuGraphNodeGetDependentNodes(first, 4)
    assert [int(node) for node in nodes[:count]] == [int(second)]
    call(driver.cuGraphRemoveDependencies(graph, [first], [second], None, 1))
    again = driver.cuGraphRemoveDependencies(graph, [first], [second], None, 1)
    assert status(again) == "INVALID_VALUE"
    assert driver.cuGraphGetEdges(graph)[-1] == 0


def test_queries(graph: Any) -> None:
    first = add_empty(graph)
    second = add_empty(graph, first)
    _, nodes, count = driver.cuGraphGetNodes(graph, 5)
    assert [int(node) for node in nodes[:count]] == [int(first), int(second)]
    _, roots, count = driver.cuGraphGetRootNodes(graph, 5)
    assert [int(node) for node in roots[:count]] == [int(first)]
    assert call(driver.cuGraphNodeGetType(first)) == (
        driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_EMPTY
    )
    assert int(call(driver.cuGraphNodeGetContainingGraph(first))) == int(graph)
    _, from_, to, _, count = driver.cuGraphGetEdges(graph, 5)
    pairs = [(int(a), int(b)) for a, b in zip(from_, to, strict=True)][:count]
    assert pairs == [(int(first), int(second))]


def test_invalid_nodes_are_refused(graph: Any) -> None:
    other = call(driver.cuGraphCreate(0))
    foreign = add_empty(other)
    assert status(driver.cuGraphAddEmptyNode(graph, [foreign], 1)) == "INVALID_VALUE"
    node = add_empty(graph)
    assert status(driver.cuGraphAddEmptyNode(graph, [node, node], 2)) == "INVALID_VALUE"
    call(driver.cuGraphDestroyNode(node))
    assert status(driver.cuGraphDestroyNode(node)) == "INVALID_VALUE"
    assert status(driver.cuGraphNodeGetType(node)) == "INVALID_VALUE"
    call(driver.cuGraphDestroy(other))
    assert status(driver.cuGraphAddEmptyNode(other, None, 0)) == "INVALID_VALUE"


def test_removed_node_does_not_run(graph: Any, new_stream: Any, log: Any) -> None:
    first = add_host(graph, log.function("first"))
    middle = add_host(graph, log.function("middle"), [first])
    add_host(graph, log.function("last"), [middle])
    call(driver.cuGraphDestroyNode(middle))
    run(graph, new_stream())
    assert sorted(log.names) == ["first", "last"]


def test_clone_is_independent(graph: Any, new_stream: Any, log: Any) -> None:
    node = add_host(graph, log.function("node"))
    clone = call(driver.cuGraphClone(graph))
    copied = call(driver.cuGraphNodeFindInClone(node, clone))
    assert int(copied) != int(node)
    call(driver.cuGraphHostNodeSetParams(copied, host_params(log.function("changed"))))
    run(graph, new_stream())
    run(clone, new_stream())
    assert log.names == ["node", "changed"]
    call(driver.cuGraphDestroy(clone))


def test_dot_file(graph: Any, tmp_path: Path) -> None:
    first = add_empty(graph)
    add_empty(graph, first)
    path = tmp_path / "graph.dot"
    call(driver.cuGraphDebugDotPrint(graph, str(path).encode(), 1))
    text = path.read_text()
    assert text.startswith("digraph dot {")
    assert text.count("->") == 1
    assert text.count("{") == text.count("}")


def test_copies_and_memsets_run(graph: Any, new_stream: Any, memory: Any, context: Any) -> None:
    params = memset_params(memory, 7)
    node = call(driver.cuGraphAddMemsetNode(graph, None, 0, params, context))
    copy = driver.CUDA_MEMCPY3D()
    device = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcMemoryType = copy.dstMemoryType = device
    copy.srcDevice, copy.dstDevice = memory, driver.CUdeviceptr(int(memory) + 32)
    copy.WidthInBytes, copy.Height, copy.Depth = 4, 1, 1
    added = call(driver.cuGraphAddMemcpyNode(graph, [node], 1, copy, context))
    run(graph, new_stream())
    assert read(copy.dstDevice) == b"\7" * 4
    assert call(driver.cuGraphMemsetNodeGetParams(node)).value == 7
    assert int(call(driver.cuGraphMemcpyNodeGetParams(added)).srcDevice) == int(memory)


def test_parameters_of_an_executable_change_for_later_launches(
    graph: Any, new_stream: Any, log: Any
) -> None:
    latch = Latch()
    first = add_host(graph, pointer(latch._function))
    node = add_host(graph, log.function("old"), [first])
    executable = call(driver.cuGraphInstantiate(graph, 0))
    stream = new_stream()
    call(driver.cuGraphLaunch(executable, stream))
    params = host_params(log.function("new"))
    call(driver.cuGraphExecHostNodeSetParams(executable, node, params))
    call(driver.cuGraphLaunch(executable, stream))
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert log.names == ["old", "new"]
    call(driver.cuGraphExecDestroy(executable))


def test_whole_update(graph: Any, new_stream: Any, log: Any) -> None:
    first = add_host(graph, log.function("old"))
    add_host(graph, log.function("end"), [first])
    executable = call(driver.cuGraphInstantiate(graph, 0))
    other = call(driver.cuGraphCreate(0))
    node = add_host(other, log.function("new"))
    # cuda-bindings does not return the reason with the error.
    update = driver.cuGraphExecUpdate(executable, other)
    assert status(update) == "GRAPH_EXEC_UPDATE_FAILURE"
    end = add_empty(other, node)
    update = driver.cuGraphExecUpdate(executable, other)
    assert status(update) == "GRAPH_EXEC_UPDATE_FAILURE"
    call(driver.cuGraphDestroyNode(end))
    add_host(other, log.function("end"), [node])
    call(driver.cuGraphExecUpdate(executable, other))
    stream = new_stream()
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert log.names == ["new", "end"]
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(other))


def test_nodes_are_disabled(graph: Any, new_stream: Any, memory: Any, context: Any) -> None:
    node = call(driver.cuGraphAddMemsetNode(graph, None, 0, memset_params(memory, 7), context))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    stream = new_stream()
    assert call(driver.cuGraphNodeGetEnabled(executable, node)) == 1
    call(driver.cuGraphNodeSetEnabled(executable, node, 0))
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert read(memory) == b"\0" * 4
    call(driver.cuGraphNodeSetEnabled(executable, node, 1))
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert read(memory) == b"\7" * 4
    call(driver.cuGraphExecDestroy(executable))


def test_event_nodes(graph: Any, new_stream: Any, new_event: Any, log: Any) -> None:
    awaited, recorded = new_event(), new_event()
    other, stream = new_stream(), new_stream()
    wait = call(driver.cuGraphAddEventWaitNode(graph, None, 0, awaited))
    node = add_host(graph, log.function("node"), [wait])
    record = call(driver.cuGraphAddEventRecordNode(graph, [node], 1, recorded))
    assert int(call(driver.cuGraphEventRecordNodeGetEvent(record))) == int(recorded)
    latch = Latch().hold(other)
    log.note(other, "awaited")
    call(driver.cuEventRecord(awaited, other))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphLaunch(executable, stream))
    assert status(driver.cuEventQuery(recorded)) == "NOT_READY"
    latch.open()
    call(driver.cuEventSynchronize(recorded))
    assert log.names == ["awaited", "node"]
    call(driver.cuGraphExecDestroy(executable))


def test_memory_operations_of_a_graph(graph: Any, new_stream: Any, memory: Any) -> None:
    operation = driver.CUstreamBatchMemOpParams()
    operation.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
    operation.writeValue.operation = operation.operation
    operation.writeValue.address = memory
    operation.writeValue.value = 5
    params = driver.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    params.count, params.paramArray = 1, [operation]
    call(driver.cuGraphAddBatchMemOpNode(graph, None, 0, params))
    run(graph, new_stream())
    assert read(memory) == (5).to_bytes(4, "little")


def test_user_objects_live_as_long_as_their_graphs(graph: Any, new_stream: Any) -> None:
    destroyed: list[int] = []
    destructor = host_function(lambda: destroyed.append(1))
    created = call(driver.cuUserObjectCreate(0, pointer(destructor), 1, 1))
    call(driver.cuGraphRetainUserObject(graph, created, 1, 1))  # moves the reference
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphDestroy(graph))
    assert destroyed == []
    stream = new_stream()
    latch = Latch().hold(stream)
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuGraphExecDestroy(executable))
    assert destroyed == []  # the launch still needs it
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    call(driver.cuCtxSynchronize())
    assert destroyed == [1]
    assert status(driver.cuUserObjectRelease(created, 1)) == "INVALID_VALUE"


def test_conditional_nodes_need_their_handle(graph: Any, context: Any) -> None:
    handle = call(driver.cuGraphConditionalHandleCreate(graph, context, 0, 0))
    assert status(driver.cuGraphInstantiate(graph, 0)) == "INVALID_VALUE"  # not used
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
    params.conditional.size = 1
    params.conditional.ctx = context
    call(driver.cuGraphAddNode(graph, None, None, 0, params))
    again = driver.cuGraphAddNode(graph, None, None, 0, params)
    assert status(again) == "INVALID_VALUE"
    (body,) = params.conditional.phGraph_out
    result = driver.cuGraphAddHostNode(body, None, 0, host_params(pointer(host_function(list))))
    assert status(result) == "NOT_SUPPORTED"


@pytest.mark.parametrize(("value", "expected"), [(0, 2), (1, 1)])
def test_if_node(
    graph: Any, new_stream: Any, context: Any, memory: Any, value: int, expected: int
) -> None:
    bodies = add_conditional(graph, context, "IF", 2, value)
    for number, body in enumerate(bodies):
        params = memset_params(memory, number + 1)
        call(driver.cuGraphAddMemsetNode(body, None, 0, params, context))
    run(graph, new_stream())
    assert read(memory) == bytes([expected]) * 4


@pytest.mark.parametrize(("value", "expected"), [(0, 1), (2, 3), (3, 0)])
def test_switch_node(
    graph: Any, new_stream: Any, context: Any, memory: Any, value: int, expected: int
) -> None:
    bodies = add_conditional(graph, context, "SWITCH", 3, value)
    for number, body in enumerate(bodies):
        params = memset_params(memory, number + 1)
        call(driver.cuGraphAddMemsetNode(body, None, 0, params, context))
    run(graph, new_stream())
    assert read(memory) == bytes([expected]) * 4


def test_default_of_a_condition_is_assigned_at_every_launch(
    graph: Any, new_stream: Any, context: Any, memory: Any, library: Any
) -> None:
    handles: list[int] = []
    (body,) = add_conditional(graph, context, "IF", 1, 0, handles)
    call(driver.cuGraphAddMemsetNode(body, None, 0, memset_params(memory, 1), context))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    # As a kernel of an earlier launch could have done.
    library.sim_set_conditional(None, ctypes.c_ulonglong(handles[0]), 1)
    stream = new_stream()
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    assert read(memory) == b"\0" * 4
    call(driver.cuGraphExecDestroy(executable))


def add_conditional(
    graph: Any, context: Any, kind: str, size: int, value: int, handles: list[int] | None = None
) -> list[Any]:
    """Add a conditional node whose condition is `value` at every launch; return its bodies."""
    handle = call(driver.cuGraphConditionalHandleCreate(graph, context, value, 1))
    if handles is not None:
        handles.append(int(handle))
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    name = f"CU_GRAPH_COND_TYPE_{kind}"
    params.conditional.type = getattr(driver.CUgraphConditionalNodeType, name)
    params.conditional.size = size
    params.conditional.ctx = context
    call(driver.cuGraphAddNode(graph, None, None, 0, params))
    return list(params.conditional.phGraph_out)
