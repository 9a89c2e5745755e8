"""`GraphCalls`: the driver's functions for captures and graphs, on handles as ints.

cuda.core is not used: its `GraphBuilder` captures a stream that it creates, and its updates of
nodes take kernels and arguments in its own form, not the packed ones of numba-cuda.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.failures import translate_status
from nbrt.errors import CaptureError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cuda.driver import Driver
    from nbrt.backends.driver_capture import CaptureErrorMode
    from nbrt.backends.graphs import ControlKind

__all__ = ["GraphCalls"]

_MODES = {"global": "GLOBAL", "thread_local": "THREAD_LOCAL", "relaxed": "RELAXED"}
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_ADD, _SET = 0, 1  # CUstreamUpdateCaptureDependencies_flags
_INVALID_VALUE = 1
_UPDATE_FAILED = 910  # CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
_KERNEL_FIELDS = (
    "func",
    "kern",
    "ctx",
    "gridDimX",
    "gridDimY",
    "gridDimZ",
    "blockDimX",
    "blockDimY",
    "blockDimZ",
    "sharedMemBytes",
)
_FIRST_WITH_EDGES = 12030
_FIRST_WITH_CONDITIONS = 12040
_FIRST_WITH_SWITCH = 12080


class GraphCalls:
    """Calls for captures and graphs.

    Parameters
    ----------
    driver : Driver
        CUDA.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._bindings = driver.bindings
        version = min(driver.versions()[0], int(self._bindings.CUDA_VERSION))
        self._version = version
        if version < _FIRST_WITH_EDGES:
            raise NotSupportedError(
                f"expected a driver and cuda-bindings for CUDA 12.3 or newer, got CUDA "
                f"{version // 1000}.{version % 1000 // 10}; run the work without a graph, or "
                f"update them"
            )
        # In cuda-bindings 12, the forms with data of edges have a suffix.
        self._info = self._first("cuStreamGetCaptureInfo_v3", "cuStreamGetCaptureInfo")
        self._set = self._first(
            "cuStreamUpdateCaptureDependencies_v2", "cuStreamUpdateCaptureDependencies"
        )
        self._node_dependencies = self._first(
            "cuGraphNodeGetDependencies_v2", "cuGraphNodeGetDependencies"
        )
        self._add_dependencies = self._first("cuGraphAddDependencies_v2", "cuGraphAddDependencies")
        self._edges = self._first("cuGraphGetEdges_v2", "cuGraphGetEdges")
        self._add_node = self._first("cuGraphAddNode_v2", "cuGraphAddNode")
        types = self._bindings.CUgraphNodeType
        self.kernel = int(types.CU_GRAPH_NODE_TYPE_KERNEL)
        self.memcpy = int(types.CU_GRAPH_NODE_TYPE_MEMCPY)
        self.memset = int(types.CU_GRAPH_NODE_TYPE_MEMSET)
        self.host = int(types.CU_GRAPH_NODE_TYPE_HOST)
        self.empty = int(types.CU_GRAPH_NODE_TYPE_EMPTY)
        self.child = int(types.CU_GRAPH_NODE_TYPE_GRAPH)
        self.conditional = int(types.CU_GRAPH_NODE_TYPE_CONDITIONAL)
        self.allocation = int(types.CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        self.free = int(types.CU_GRAPH_NODE_TYPE_MEM_FREE)

    # -- captures --------------------------------------------------------------------------------

    def begin(self, stream: int, mode: CaptureErrorMode) -> None:
        """Begin the capture of a stream."""
        modes = self._bindings.CUstreamCaptureMode
        number = getattr(modes, f"CU_STREAM_CAPTURE_MODE_{_MODES[mode]}")
        self.driver.call("beginning a capture", "cuStreamBeginCapture", stream, number)

    def end(self, stream: int) -> int:
        """End a capture; return the graph.

        Raises
        ------
        CaptureError
            If the capture is invalid or not joined; it is over nevertheless.
        """
        status, graph = self._bindings.cuStreamEndCapture(stream)
        if int(status) != 0:
            raise CaptureError(
                f"expected a capture that can end, got {status.name}; a call that CUDA does not "
                f"capture was made in it, work of another stream does not join it, or this is not "
                f"the thread that began it"
            )
        return int(graph)

    def capture_of(self, stream: int) -> tuple[int, list[int]] | None:
        """Return the graph of a stream's capture and the stream's last nodes; None: no capture.

        Raises
        ------
        CaptureError
            If the capture is invalid.
        """
        status, state, _, graph, nodes, _, _ = self._info(stream)
        if int(status) != 0:
            raise translate_status(int(status), str(status), "asking for a capture")
        if int(state) > _ACTIVE:
            raise CaptureError(
                "expected only calls that CUDA captures, got one that made the capture invalid, "
                "such as a synchronisation, an allocation by the driver or a copy of a value to "
                "the host; do it before or after the capture"
            )
        return (int(graph), [int(node) for node in nodes or ()]) if int(state) == _ACTIVE else None

    def set_tails(self, stream: int, nodes: Sequence[int], *, add: bool = False) -> None:
        """Replace the nodes that the stream's next node depends on, or add to them."""
        status, *_ = self._set(stream, self._list(nodes), None, len(nodes), _ADD if add else _SET)
        self._check("setting the dependencies of a capture", status)

    # -- nodes -----------------------------------------------------------------------------------

    def type_of(self, node: int) -> int:
        """Return the type of a node, one of the attributes `kernel`, `memcpy`, ..."""
        return int(self.driver.call("reading a node", "cuGraphNodeGetType", node))

    def dependencies(self, node: int) -> list[int]:
        """Return the nodes that a node depends on."""
        status, *_, count = self._node_dependencies(node, 0)
        self._check("reading the dependencies of a node", status)
        status, nodes, *_ = self._node_dependencies(node, count)
        self._check("reading the dependencies of a node", status)
        return [int(other) for other in nodes or ()][:count]

    def nodes(self, graph: int) -> list[int]:
        """Return the nodes of a graph."""
        status, _, count = self._bindings.cuGraphGetNodes(graph, 0)
        self._check("reading a graph", status)
        status, nodes, _ = self._bindings.cuGraphGetNodes(graph, count)
        self._check("reading a graph", status)
        return [int(node) for node in nodes or ()][:count]

    def edges(self, graph: int) -> list[tuple[int, int, Any]]:
        """Return (from, to, data) of the edges of a graph."""
        status, *_, count = self._edges(graph, 0)
        self._check("reading the edges of a graph", status)
        status, sources, targets, data, _ = self._edges(graph, count)
        self._check("reading the edges of a graph", status)
        found = zip(sources or (), targets or (), data or (), strict=False)
        return [(int(source), int(target), edge) for source, target, edge in found][:count]

    def add_edges(self, graph: int, edges: Sequence[tuple[int, int, Any]]) -> None:
        """Add edges, each with its data or None."""
        if not edges:
            return
        sources = self._list([source for source, _, _ in edges])
        targets = self._list([target for _, target, _ in edges])
        data = [self._bindings.CUgraphEdgeData() if edge is None else edge for _, _, edge in edges]
        status, *_ = self._add_dependencies(graph, sources, targets, data, len(edges))
        self._check("adding edges to a graph", status)

    def add(self, graph: int, kind: int, params: Any, dependencies: Sequence[int] = ()) -> int:
        """Add a node of a type with parameters, as from `params`; return it."""
        before, count = self._list(dependencies), len(dependencies)
        doing = "adding a node to a graph"
        if kind == self.empty:
            return int(self.driver.call(doing, "cuGraphAddEmptyNode", graph, before, count))
        if kind == self.kernel:
            name = "cuGraphAddKernelNode"
        elif kind == self.host:
            name = "cuGraphAddHostNode"
        elif kind == self.child:
            name = "cuGraphAddChildGraphNode"
        else:
            name = "cuGraphAddMemcpyNode" if kind == self.memcpy else "cuGraphAddMemsetNode"
            context = self.context()
            return int(self.driver.call(doing, name, graph, before, count, params, context))
        return int(self.driver.call(doing, name, graph, before, count, params))

    def add_event(self, graph: int, event: int, dependencies: Sequence[int]) -> int:
        """Add a node that records an event; return it."""
        before, count = self._list(dependencies), len(dependencies)
        name = "cuGraphAddEventRecordNode"
        return int(self.driver.call("adding an event", name, graph, before, count, event))

    def params(self, node: int, kind: int) -> Any:
        """Return the parameters of a node of a type that can be copied.

        Raises
        ------
        CaptureError
            If a node of this type cannot be copied.
        """
        names = {
            self.kernel: "cuGraphKernelNodeGetParams",
            self.memcpy: "cuGraphMemcpyNodeGetParams",
            self.memset: "cuGraphMemsetNodeGetParams",
            self.host: "cuGraphHostNodeGetParams",
            self.child: "cuGraphChildGraphNodeGetGraph",
        }
        if kind == self.empty:
            return None
        if kind not in names:
            raise CaptureError(
                f"expected launches, copies and fills, got a node of the type {self.name_of(kind)} "
                f"of another library; do that work outside of the loop, the branch or the graph "
                f"that is replayed in a capture"
            )
        return self.driver.call("reading a node", names[kind], node)

    def set_params(self, node: int, kind: int, params: Any) -> None:
        """Set the parameters of a node of a graph; its executable graphs do not change."""
        names = {
            self.kernel: "cuGraphKernelNodeSetParams",
            self.memcpy: "cuGraphMemcpyNodeSetParams",
            self.memset: "cuGraphMemsetNodeSetParams",
            self.host: "cuGraphHostNodeSetParams",
        }
        self.driver.call("changing a node", names[kind], node, params)

    def copy_attributes(self, target: int, source: int) -> None:
        """Copy the attributes of a kernel node, such as that of a cooperative launch."""
        self.driver.call("copying a node", "cuGraphKernelNodeCopyAttributes", target, source)

    def name_of(self, kind: int) -> str:
        """Return the name of a type of nodes, such as ``"event record"``."""
        name: str = self._bindings.CUgraphNodeType(kind).name
        return name.removeprefix("CU_GRAPH_NODE_TYPE_").lower().replace("_", " ")

    def kernel_name(self, params: Any) -> str:
        """Return the name of the kernel of a node."""
        if int(params.func or 0):
            name = self.driver.call("reading a kernel", "cuFuncGetName", params.func)
        else:
            name = self.driver.call("reading a kernel", "cuKernelGetName", params.kern)
        return str(name.decode())

    def parameter_sizes(self, params: Any) -> list[int]:
        """Return the bytes of each parameter of the kernel of a node."""
        by_function = bool(int(params.func or 0))
        kernel = params.func if by_function else params.kern
        read = getattr(
            self._bindings, "cuFuncGetParamInfo" if by_function else "cuKernelGetParamInfo", None
        )
        if read is None:
            raise self._too_old("other memory or scalars in a replay", _FIRST_WITH_CONDITIONS)
        sizes: list[int] = []
        while True:
            status, _, nbytes = read(kernel, len(sizes))
            if int(status) == _INVALID_VALUE:
                return sizes
            self._check("reading the parameters of a kernel", status)
            sizes.append(int(nbytes))

    # -- control flow ----------------------------------------------------------------------------

    def check_control(self, kind: ControlKind, bodies: int = 1) -> None:
        """Raise NotSupportedError if the driver lacks a kind of control flow."""
        is_new = kind == "switch" or bodies > 1
        needed = _FIRST_WITH_SWITCH if is_new else _FIRST_WITH_CONDITIONS
        if self._version < needed:
            raise self._too_old(f"{kind!r} with {bodies} bodies in a graph", needed)

    def add_control(
        self, graph: int, kind: ControlKind, condition: int, bodies: int, dependencies: list[int]
    ) -> tuple[int, list[int]]:
        """Add a conditional node; return it, and its empty bodies."""
        bindings = self._bindings
        params = bindings.CUgraphNodeParams()
        params.type = bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = bindings.CUgraphConditionalHandle(condition)
        name = f"CU_GRAPH_COND_TYPE_{kind.upper()}"
        params.conditional.type = getattr(bindings.CUgraphConditionalNodeType, name)
        params.conditional.size = bodies
        params.conditional.ctx = self.context()
        before = self._list(dependencies)
        status, node = self._add_node(graph, before, None, len(dependencies), params)
        self._check("adding control flow to a graph", status)
        return int(node), [int(body) for body in params.conditional.phGraph_out]

    def new_condition(self, graph: int) -> int:
        """Return the handle of a new condition of a graph."""
        name = "cuGraphConditionalHandleCreate"
        doing = "adding control flow to a graph"
        return int(self.driver.call(doing, name, graph, self.context(), 0, 0))

    # -- executable graphs -----------------------------------------------------------------------

    def instantiate(self, graph: int) -> int:
        """Return an executable graph."""
        return int(self.driver.call("instantiating a graph", "cuGraphInstantiate", graph, 0))

    def launch(self, executable: int, stream: int) -> None:
        """Launch an executable graph."""
        self.driver.call("launching a graph", "cuGraphLaunch", executable, stream)

    def destroy_executable(self, executable: int) -> None:
        """Destroy an executable graph; running launches end first."""
        self.driver.call("destroying a graph", "cuGraphExecDestroy", executable)

    def create(self) -> int:
        """Return a new empty graph."""
        return int(self.driver.call("making a graph", "cuGraphCreate", 0))

    def destroy(self, graph: int) -> None:
        """Destroy a graph."""
        self.driver.call("destroying a graph", "cuGraphDestroy", graph)

    def destroy_node(self, node: int) -> None:
        """Destroy a node of a graph that is not being captured, with its edges."""
        self.driver.call("leaving out a node", "cuGraphDestroyNode", node)

    def set_executable_params(self, executable: int, node: int, kind: int, params: Any) -> None:
        """Set the parameters of a node for later launches."""
        doing = "changing a node of a graph"
        if kind == self.memcpy:
            name, context = "cuGraphExecMemcpyNodeSetParams", self.context()
        elif kind == self.memset:
            name, context = "cuGraphExecMemsetNodeSetParams", self.context()
        else:
            name = "Kernel" if kind == self.kernel else "Host"
            self.driver.call(doing, f"cuGraphExec{name}NodeSetParams", executable, node, params)
            return
        self.driver.call(doing, name, executable, node, params, context)

    def set_enabled(self, executable: int, node: int, is_enabled: bool) -> None:
        """Let later launches run a node, or leave it out."""
        name = "cuGraphNodeSetEnabled"
        self.driver.call("enabling a node", name, executable, node, int(is_enabled))

    def update(self, executable: int, graph: int) -> bool:
        """Update an executable graph from another graph; return whether that was possible."""
        status, _ = self._bindings.cuGraphExecUpdate(executable, graph)
        if int(status) not in (0, _UPDATE_FAILED):
            self._check("updating a graph", status)
        return int(status) == 0

    # -- other -----------------------------------------------------------------------------------

    def kernel_params(self, params: Any, table: int) -> Any:
        """Return parameters of a kernel node with another table of argument addresses."""
        changed = self._bindings.CUDA_KERNEL_NODE_PARAMS()
        for name in _KERNEL_FIELDS:
            setattr(changed, name, getattr(params, name))
        changed.kernelParams = table
        return changed

    def copy_params(self, params: Any, changes: dict[str, int]) -> Any:
        """Return parameters of a copy or fill with other values of some fields."""
        changed = type(params)()
        for name in dir(params):
            if not name.startswith("_") and name != "getPtr":
                setattr(changed, name, getattr(params, name))
        for name, value in changes.items():
            kind = type(getattr(params, name))
            setattr(changed, name, value if kind is int else kind(value))
        return changed

    def host_params(self, function: int) -> Any:
        """Return parameters of a node that calls a C function."""
        params = self._bindings.CUDA_HOST_NODE_PARAMS()
        params.fn = self._bindings.CUhostFn(function)
        params.userData = 0
        return params

    def context(self) -> Any:
        """Return the current context."""
        return self.driver.call("asking for the context", "cuCtxGetCurrent")

    def launch_host(self, stream: int, function: int) -> None:
        """Enqueue a C function that takes a pointer, which is NULL."""
        pointer = self._bindings.CUhostFn(function)
        self.driver.call("queueing a host call", "cuLaunchHostFunc", stream, pointer, 0)

    def load(self, text: bytes) -> int:
        """Load PTX into the current context; return the module."""
        return int(self.driver.call("loading a kernel", "cuModuleLoadData", text))

    def function(self, module: int, name: str) -> int:
        """Return a kernel of a module."""
        found = self.driver.call("loading a kernel", "cuModuleGetFunction", module, name.encode())
        return int(found)

    def _list(self, nodes: Sequence[int]) -> list[Any]:
        return [self._bindings.CUgraphNode(node) for node in nodes]

    def _first(self, *names: str) -> Any:
        return next(
            getattr(self._bindings, name) for name in names if hasattr(self._bindings, name)
        )

    def _check(self, doing: str, status: Any) -> None:
        if int(status) != 0:
            raise translate_status(int(status), str(status), doing)

    def _too_old(self, what: str, needed: int) -> NotSupportedError:
        return NotSupportedError(
            f"expected CUDA {needed // 1000}.{needed % 1000 // 10} or newer for {what}, got CUDA "
            f"{self._version // 1000}.{self._version % 1000 // 10}; update the driver and "
            f"cuda-bindings"
        )
