"""`NodeWriter`: the lines of code of nodes, of the order between streams, and of control flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.errors import GraphError
from nbrt.graphs.child import begin_state
from nbrt.graphs.code_scope import drawn_view
from nbrt.graphs.node_text import branch_name, captures_of, dims_text, plan_of
from nbrt.graphs.operations import kernel_of, rule_of
from nbrt.runtime.guard import StreamGuard
from nbrt.runtime.kernel import Kernel
from nbrt.runtime.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.graphs import ArrayView, GraphNode
    from nbrt.graphs.code_scope import CodeScope

__all__ = ["NodeWriter"]

_INDENT = "    "


class NodeWriter:
    """Writes the lines of lists of nodes.

    Parameters
    ----------
    scope : CodeScope
        The names of the code.
    """

    def __init__(self, scope: CodeScope) -> None:
        self._scope = scope
        self._kernels: dict[int, Any] = {}
        # The tensors of collectives, by the local part that the graph sees.
        self._tensors: dict[ArrayView, str] = {}
        self._prims: dict[str, list[tuple[Prim, str]]] = {}
        self._writers: dict[str, Callable[[GraphNode], list[str]]] = {
            "launch": self._launch,
            "copy": self._copy,
            "fill": self._fill,
            "draw": self._draw,
            "call": self._call,
            "collective": self._collective,
        }

    def lines(self, nodes: Sequence[GraphNode], prefix: str, origin: int) -> list[str]:
        """Return the code of a list of nodes, with the order between streams.

        Parameters
        ----------
        nodes : sequence of GraphNode
            The nodes of the graph or of a branch.
        prefix : str
            The path of the branch.
        origin : int
            The id of the stream that the work before and behind is on.
        """
        waited = {before for node in nodes for before in node.dependencies}
        crossed = {
            before
            for node in nodes
            for before in node.dependencies
            if nodes[before].stream != node.stream
        }
        ends = [n.index for n in nodes if n.index not in waited and n.stream != origin]
        crossed.update(ends)
        # What depends on no node follows the work before the graph, not that of nodes in front.
        forked = [n.stream for n in nodes if not n.dependencies and n.stream != origin]
        lines = [
            f"{self._scope.stream(each)}.wait_stream({self._scope.stream(origin)})"
            for each in dict.fromkeys(forked)
        ]
        for node in nodes:
            stream = self._scope.stream(node.stream)
            lines += [
                f"{stream}.wait_event({_event(prefix, before)})"
                for before in node.dependencies
                if nodes[before].stream != node.stream
            ]
            lines += self._node(node, prefix)
            if node.index in crossed:
                lines.append(f"{_event(prefix, node.index)} = {stream}.record_event()")
        return lines + [
            f"{self._scope.stream(origin)}.wait_event({_event(prefix, end)})" for end in ends
        ]

    def _node(self, node: GraphNode, prefix: str) -> list[str]:
        """Return the lines of one node, behind those of the memory that it is the first to use."""
        if node.branches:
            written = self._control_flow(node, prefix)
        else:
            writer = self._writers.get(node.kind)
            written = [] if writer is None else writer(node)
        setup = self._scope.setup
        if not prefix:
            self._scope.setup = []
            written = [*setup, *written]
        if not node.is_enabled:
            kept = len(setup) if not prefix else 0
            return written[:kept] + [f"# disabled: {line}" for line in written[kept:]]
        return written

    # -- operations --------------------------------------------------------------------------------

    def _args(self, node: GraphNode) -> tuple[Any, ...]:
        return node.source.args if node.source is not None else node.work[0].args

    def _launch(self, node: GraphNode) -> list[str]:
        scope, plan = self._scope, plan_of(node)
        key = id(captures_of(plan) or plan.function)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = _captured_kernel(plan)
        name = scope.bind(kernel, getattr(plan.function, "__name__", "kernel"))
        shared = f", {plan.shared}" if plan.shared else ""
        args = ", ".join(scope.value(each, node.stream) for each in self._args(node))
        where = f"{dims_text(plan.grid)}, {dims_text(plan.block)}, {scope.stream(node.stream)}"
        return [f"{name}[{where}{shared}]({args})"]

    def _copy(self, node: GraphNode) -> list[str]:
        scope = self._scope
        into, source = (scope.value(each, node.stream) for each in self._args(node))
        return [f"nbrt.copy({into}, {source}, stream={scope.stream(node.stream)})"]

    def _fill(self, node: GraphNode) -> list[str]:
        scope = self._scope
        array, value = (scope.value(each, node.stream) for each in self._args(node))
        fill = scope.function("fill")
        return [f"{fill}({array}, {value}, stream={scope.stream(node.stream)})"]

    def _draw(self, node: GraphNode) -> list[str]:
        scope = self._scope
        view, request = self._args(node)
        rule = rule_of(view, request)
        natural = drawn_view(node)
        array = scope.array(natural, node.stream)
        state = scope.state(request.device_state.buffer)
        parameters = scope.value(request.parameters, node.stream)
        lines, extra = [], ""
        if rule != rule_of(natural):
            name = scope.bind(rule, f"rule_{node.index}")
            lines, extra = [f"# {name}: {rule}"], f", rule={name}"
        call = f"{array}, {request.distribution!r}, {parameters}, {state}, {request.offset}"
        draw = scope.function("draw")
        return [*lines, f"{draw}({call}, stream={scope.stream(node.stream)}{extra})"]

    def _call(self, node: GraphNode) -> list[str]:
        scope = self._scope
        if node.source is None:
            return self._states(node)
        function, *args = node.source.args
        name = scope.bind(function, _function_name(function))
        texts = [scope.value(each, node.stream, "argument") for each in args]
        return [f"{scope.stream(node.stream)}.call({', '.join([name, *texts])})"]

    def _states(self, node: GraphNode) -> list[str]:
        """Write how a graph inside of this one takes the states of its generators."""
        lines = []
        for function, (inner, outer, words) in node.work:
            state = self._scope.state(outer.buffer)
            if function is begin_state:
                name = self._scope.define_state(inner.buffer)
                lines.append(f"{name} = {state}.ahead({words})")
            else:
                lines.append(f"{state}.follow({self._scope.state(inner.buffer)}, {words})")
        return lines

    # -- collectives -------------------------------------------------------------------------------

    def _collective(self, node: GraphNode) -> list[str]:
        """Write a collective as a function of arrays only, into which its metadata is folded."""
        scope = self._scope
        op, local = self._args(node)
        lines, prim = self._prim(op, node)
        given = self._tensors.get(local) if node.label == "redistribute" else None
        given = given or scope.array(local, node.stream)
        tensor, stream = scope.unique("tensor"), scope.stream(node.stream)
        lines.append(f"with nbrt.stream({stream}): {tensor} = {prim}({given})")
        result = None if node.source is None or not node.source.result else node.source.result[0]
        if result == local:
            # The tensor shares the memory, so that it sees what later nodes write.
            self._tensors[local] = tensor
        elif result is not None:
            scope.namespace["prim_to_local"] = prim_to_local
            into = scope.array(result, node.stream)
            lines.append(f"nbrt.copy({into}, prim_to_local({tensor}), stream={stream})")
        return lines

    def _prim(self, op: Any, node: GraphNode) -> tuple[list[str], str]:
        """Return the name of a collective with its metadata, and a comment at its first use."""
        known = self._prims.setdefault(node.label, [])
        prim = Prim(op, node.stream)
        for other, name in known:
            if (other.op, other.stream) == (prim.op, prim.stream):
                return [], name
        name = self._scope.bind(prim, f"prim_{node.label}")
        known.append((prim, name))
        return [f"# {name}: {op}"], name

    # -- control flow ------------------------------------------------------------------------------

    def _control_flow(self, node: GraphNode, prefix: str) -> list[str]:
        scope = self._scope
        path = f"{prefix}{node.index}"
        lines: list[str] = []
        names: list[str] = []
        for number, branch in enumerate(node.branches):
            inner = f"{path}.{branch_name(node, number)}."
            name = scope.unique(
                f"graph_{_underscored(path)}"
                if node.kind == "graph"
                else f"{node.kind}_{_underscored(inner)}"
            )
            names.append(name)
            body = self.lines(branch.nodes, inner, node.stream)
            for buffer, words in branch.advances:
                body.append(f"{scope.state(buffer)}.advance({words})")
            lines.append(f"def {name}():")
            lines += [f"{_INDENT}{line}" for line in body or ["pass"]]
        if node.kind == "graph":
            return [*lines, f"{names[0]}()"]
        assert node.flag is not None
        flag = scope.array(node.flag, node.stream)
        if node.kind == "if":
            call = f"nbrt.graphs.cond({', '.join([flag, *names])})"
        elif node.kind == "while":
            call = f"nbrt.graphs.while_({flag}, {names[0]}, limit={node.limit})"
        else:
            listed = ", ".join(names)
            call = f"nbrt.graphs.switch({flag}, [{listed}])"
        return [*lines, f"with nbrt.stream({scope.stream(node.stream)}): {call}"]


class Prim:
    """A collective with its mesh and placements bound in; its only argument is an array.

    Parameters
    ----------
    op : ReplayableOp
        The operation, as of `nbrt.distributed.replayable_ops`.
    stream : int
        The id of the stream with the work before and behind it.
    """

    def __init__(self, op: Any, stream: int) -> None:
        self.op = op
        self.stream = stream

    def __call__(self, local: Any) -> Any:
        """Return the local part and the spec; `local` may be such a pair."""
        with StreamGuard(Stream.from_id(self.stream)):
            return self.op.replay(prim_to_local(local))

    def __repr__(self) -> str:
        return f"<prim_{self.op.label} {self.op}>"


def prim_to_local(tensor: Any) -> Any:
    """Return the local part of what a collective returned."""
    return tensor[0] if isinstance(tensor, tuple) else tensor


def _event(prefix: str, index: int) -> str:
    return f"event_{_underscored(f'{prefix}{index}')}"


def _underscored(path: str) -> str:
    return path.strip(".").replace(".", "_")


def _function_name(function: Any) -> str:
    name = getattr(function, "__name__", "function")
    return name if name.isidentifier() else "function"


def _captured_kernel(plan: Any) -> Kernel:
    """Return a kernel that gives the bits of a plan, also if captured values have changed since."""
    captures = captures_of(plan)
    changes = [] if captures is None else captures.changes()
    if not changes:
        return kernel_of(plan.function)
    if hasattr(plan.function, "py_func"):
        raise GraphError(
            f"expected kernels whose captured values are those of the capture, got "
            f"{plan.function.py_func.__qualname__} of cuda.jit with other values of "
            f"{', '.join(changes)}; capture the graph again"
        )
    return Kernel(captures.frozen)
