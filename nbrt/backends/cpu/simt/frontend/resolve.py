"""The dialect pass, which replaces the names of ``numba.cuda`` in Numba IR.

The pass works on IR made from bytecode, so it needs no source text and recognises every spelling of
a name. The function then reads its index in the launch from the hidden argument, calls CPU versions
of the builtins, and passes the hidden argument on to device functions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from numba.core import errors, ir, types
from numba.core.ir_utils import build_definitions

from nbrt.backends.captures import is_device_function
from nbrt.backends.cpu.simt.builtins import REPLACEMENTS, marker_kind, vector_type
from nbrt.backends.cpu.simt.builtins.device_arrays import array_of, captured_array
from nbrt.backends.cpu.simt.builtins.dimensions import Dim3
from nbrt.backends.cpu.simt.frontend.host_objects import refuse_host_object
from nbrt.backends.cpu.simt.thread_context import ARGUMENT
from nbrt.backends.device_arrays import is_device_array
from nbrt.backends.dialect import (
    AXES,
    dialect_member,
    dialect_name,
    is_dialect_module,
    next_step,
)
from nbrt.errors import CompileError, UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.frontend.bounds_checks import Bound
    from nbrt.backends.cpu.simt.frontend.silent_exceptions import SilentCallConv

__all__ = ["RETURNS_VALUE", "DialectUse", "refuse_own_arrays", "resolve_dialect"]

RETURNS_VALUE = "a kernel must not return a value"
_DIMENSIONS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_CONSTANTS = ("laneid", "warpsize")
_GRIDS = ("grid", "gridsize")
_CALLED_ONLY = ("lanemask_lt", "shared.array")  # take more than what the program gives them


@dataclass
class DialectUse:
    """The use of the dialect by one function, for later stages."""

    local_arrays: bool = False
    """The function itself calls ``cuda.local.array``."""

    markers: set[str] = field(default_factory=set)
    """Kinds of markers that it calls itself: ``barrier``, ``grid``, ``shared``, ``warp``."""

    places: list[str] = field(default_factory=list)
    """Name, file and line of each call of a marker in the function itself."""

    loops: bool = False
    """The function itself has a loop, not counting removed guards and grid-stride loops."""

    may_spin: bool = False
    """The function itself has a loop that may wait for what another thread writes."""

    callees: list[Any] = field(default_factory=list)
    """Dispatchers of the device functions that it names."""

    sites: list[Any] = field(default_factory=list)
    """Source locations for reports of checked mode."""

    attributes: set[str] = field(default_factory=set)
    """Attributes of the hidden argument that it reads."""

    bounds: list[Bound] = field(default_factory=list)
    """Bounds that replace its guards (kernels only)."""

    strides: list[int] = field(default_factory=list)
    """Axes of its grid-stride loops that the launch iterates instead, outermost first."""

    silent: SilentCallConv | None = None
    """Given if its exceptions end the thread and are not reported (kernels only)."""


def resolve_dialect(
    func_ir: Any, device_dispatcher: Callable[[object, bool], Any], *, is_kernel: bool
) -> DialectUse:
    """Rewrite one function's IR in place.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function; its first argument is the hidden one, if there is one.
    device_dispatcher : callable
        Returns the dispatcher of a device function, which may take the hidden argument if True.
    is_kernel : bool
        Whether the function is a kernel, which must not return a value.

    Returns
    -------
    DialectUse
        The use of the dialect by the function.

    Raises
    ------
    UnsupportedConstructError
        If it uses a name of the dialect that has no CPU version.
    CompileError
        If a kernel returns a value.
    """
    resolver = _Resolver(func_ir, device_dispatcher)
    if is_kernel:
        resolver.check_returns()
    resolver.run()
    func_ir._definitions = build_definitions(func_ir.blocks)
    return resolver.use


class _Resolver:
    def __init__(self, func_ir: Any, device_dispatcher: Callable[[object, bool], Any]) -> None:
        self._ir = func_ir
        self._device_dispatcher = device_dispatcher
        self._assignments = self._collect_assignments()
        self._passed_on = self._collect_passed_on()
        self._fresh = 0
        self._shared_arrays = 0
        self.use = DialectUse()

    # -- values of variables -------------------------------------------------------------------

    def _collect_assignments(self) -> dict[str, list[Any]]:
        assignments: dict[str, list[Any]] = defaultdict(list)
        for block in self._ir.blocks.values():
            for statement in block.find_insts(ir.Assign):
                assignments[statement.target.name].append(statement.value)
        return assignments

    def _collect_passed_on(self) -> set[str]:
        """Return the variables used as values: not only as a callee or as the owner of a name."""
        used: set[str] = set()
        copies: list[tuple[str, str]] = []
        for block in self._ir.blocks.values():
            for statement in block.body:
                value = statement.value if isinstance(statement, ir.Assign) else statement
                if isinstance(value, ir.Var):
                    copies.append((value.name, statement.target.name))
                elif isinstance(value, ir.Expr) and value.op == "call":
                    known, _ = self._constant(value.func)
                    skipped = value.func.name if known else None
                    used.update(v.name for v in value.list_vars() if v.name != skipped)
                elif _uses_values(value):
                    used.update(variable.name for variable in value.list_vars())
        size = -1
        while size != len(used):
            size = len(used)
            used.update(source for source, target in copies if target in used)
        return used

    def _constant(self, variable: Any) -> tuple[bool, Any]:
        """Return ``(True, object)`` if a variable can hold one known Python object only."""
        values = self._assignments.get(variable.name, ())
        if len(values) != 1:
            return False, None
        return self._constant_value(values[0])

    def _constant_value(self, value: Any) -> tuple[bool, Any]:
        if isinstance(value, (ir.Global, ir.FreeVar, ir.Const)):
            return True, value.value
        if isinstance(value, ir.Var):
            return self._constant(value)
        if isinstance(value, ir.Expr) and value.op == "getattr":
            known, owner = self._constant(value.value)
            if known and is_dialect_module(owner):
                return dialect_member(owner, value.attr)
            # Only modules and the dialect's own namespaces: their attributes are names, not state.
            if known and (isinstance(owner, ModuleType) or dialect_name(owner) is not None):
                constant = getattr(owner, value.attr, _MISSING)
                return constant is not _MISSING, constant
        return False, None

    def _name_of(self, variable: Any) -> str:
        """Return the name in the program of the one value that a variable holds."""
        value = self._assignments[variable.name][0]
        return str(getattr(value, "attr", "") if isinstance(value, ir.Expr) else value.name)

    def _special(self, value: Any) -> Any:
        """Return the object of the dialect that a value names, or None for all others."""
        known, constant = self._constant_value(value)
        if not known:
            return None
        if (
            is_device_function(constant)
            or is_dialect_module(constant)
            or dialect_name(constant) is not None
        ):
            return constant
        return None

    # -- rewriting ---------------------------------------------------------------------------

    def run(self) -> None:
        self._restore_argument()
        for block in self._ir.blocks.values():
            body: list[Any] = []
            for statement in block.body:
                self._rewrite(statement, body)
            block.body = body

    def _restore_argument(self) -> None:
        """Restore the hidden argument if inlining a closure dropped it as unused."""
        if ARGUMENT not in self._ir.arg_names or ARGUMENT in self._assignments:
            return
        entry = self._ir.blocks[min(self._ir.blocks)]
        variable = entry.scope.get_or_define(ARGUMENT, entry.loc)
        value = ir.Arg(ARGUMENT, self._ir.arg_names.index(ARGUMENT), entry.loc)
        entry.body.insert(0, ir.Assign(value, variable, entry.loc))

    def _rewrite(self, statement: Any, body: list[Any]) -> None:
        if isinstance(statement, ir.Assign):
            value = statement.value
            if self._rewrite_index(statement) or self._rewrite_call(statement, body):
                body.append(statement)
                return
            special = self._special(value)
            if special is not None:
                self._rewrite_reference(statement, special, body)
                return
            self._rewrite_value(statement, body)
        if not isinstance(statement, ir.Del):
            self._reject_stray_names(statement)
        body.append(statement)

    def _rewrite_value(self, statement: Any, body: list[Any]) -> None:
        """Replace names that Numba does not know: types, modules and device arrays."""
        value = statement.value
        known, constant = self._constant_value(value)
        if not known or isinstance(value, ir.Var | ir.Const):
            return
        if isinstance(value, ir.Expr) and is_dialect_module(self._constant(value.value)[1]):
            # A type such as cuda.float32, or a module.
            statement.value = ir.Global(value.attr, constant, statement.loc)
            return
        name = str(value.attr if isinstance(value, ir.Expr) else value.name)
        refuse_host_object(constant, name, statement.loc)
        statement.value = self._array_of(constant, name, statement.loc, body) or value

    def _array_of(self, constant: Any, name: str, loc: Any, body: list[Any]) -> Any:
        """Return the expression of a device array, or of a tuple of some; None for other values."""
        if type(constant) is tuple and any(map(is_device_array, constant)):
            values = [
                self._array_of(item, name, loc, body) or ir.Global(name, item, loc)
                for item in constant
            ]
            items = [self._assign(value, name, loc, body) for value in values]
            return ir.Expr.build_tuple(items, loc)
        array = captured_array(constant, name)
        if array is None:
            return None
        function = self._bind(array_of, loc, body)
        return ir.Expr.call(function, [self._bind(array, loc, body)], (), loc)

    def _rewrite_index(self, statement: Any) -> bool:
        """Replace ``cuda.threadIdx.x`` and the like by an attribute of the hidden argument."""
        attribute = self._index_attribute(statement.value)
        if attribute is None:
            return False
        loc = statement.loc
        statement.value = ir.Expr.getattr(self._context(attribute, loc), attribute, loc)
        return True

    def _index_attribute(self, value: Any) -> str | None:
        if isinstance(value, ir.Expr) and value.op == "getattr" and value.attr in AXES:
            known, owner = self._constant(value.value)
            name = dialect_name(owner) if known else None
            return f"{name}.{value.attr}" if name in _DIMENSIONS else None
        known, constant = self._constant_value(value)
        name = dialect_name(constant) if known else None
        return name if name in _CONSTANTS else None

    def _rewrite_call(self, statement: Any, body: list[Any]) -> bool:
        """Rewrite a call of the dialect or of a device function; return whether it was one."""
        value = statement.value
        if not (isinstance(value, ir.Expr) and value.op == "call"):
            return False
        known, callee = self._constant(value.func)
        if not known:
            return False
        if is_device_function(callee):
            self._call_device_function(value, callee, body)
            return True
        name = dialect_name(callee)
        if name is None:
            return False
        refuse_host_object(callee, self._name_of(value.func), value.loc)
        if name in _GRIDS:
            statement.value = self._grid(value, name)
            return True
        if name in REPLACEMENTS:
            self._call_builtin(value, name, body)
        else:
            self._unsupported(name, value.loc)
        self._reject_stray_names(value)
        return True

    def _call_builtin(self, call: Any, name: str, body: list[Any]) -> None:
        self._note_builtin(name, call.loc)
        call.func = self._bind(REPLACEMENTS[name], call.loc, body)
        if name == "shared.array":
            # One array for each call site, also for two on one line.
            self._shared_arrays += 1
            site = self._bind(self._shared_arrays, call.loc, body)
            call.kws = [*call.kws, ("site", site)]
        elif name == "lanemask_lt":
            lane = ir.Expr.getattr(self._context(f"cuda.{name}", call.loc), "laneid", call.loc)
            call.args = [self._assign(lane, "laneid", call.loc, body)]

    def _note_builtin(self, name: str, loc: Any) -> None:
        self.use.local_arrays |= name == "local.array"
        kind = marker_kind(name)
        if kind is not None:
            self.use.markers.add(kind)
            self.use.places.append(f"cuda.{name} at {_where(loc)}")

    def _call_device_function(self, call: Any, callee: Any, body: list[Any]) -> None:
        refuse_host_object(callee, callee.__name__, call.loc)
        dispatcher = self._device_dispatcher(callee, ARGUMENT in self._ir.arg_names)
        self.use.callees.append(dispatcher)
        call.func = self._bind(dispatcher, call.loc, body)
        if dispatcher.takes_context:
            call.args = [self._context("", call.loc), *call.args]
        self._reject_stray_names(call)

    def _grid(self, call: Any, name: str) -> Any:
        arguments = [*call.args, *(value for _, value in call.kws)]
        known, count = self._constant(arguments[0]) if len(arguments) == 1 else (False, None)
        if not known or isinstance(count, bool) or count not in (1, 2, 3):
            raise CompileError(
                f"{_where(call.loc)}: cuda.{name} takes one constant, 1, 2 or 3 (the number of "
                "dimensions)"
            ) from errors.RequireLiteralValue(f"cuda.{name}: ndim must be a constant")
        attribute = f"{name}.{count}"
        return ir.Expr.getattr(self._context(f"cuda.{name}", call.loc), attribute, call.loc)

    def _rewrite_reference(self, statement: Any, special: Any, body: list[Any]) -> None:
        """Rewrite a name that is not called here; all calls through it are rewritten already."""
        if statement.target.name not in self._passed_on:
            return  # nothing is left that refers to it, and Numba could not type it
        name = dialect_name(special) or ""
        if name in _DIMENSIONS:
            statement.value = self._dimension(name, statement.loc, body)
            body.append(statement)
            return
        vector = vector_type(name)
        if vector is not None:
            # The type of an array's elements: as a constructor it would have been called.
            statement.value = ir.Global(name, vector, statement.loc)
            body.append(statement)
            return
        if _is_value(name):
            self._note_builtin(name, statement.loc)
            statement.value = ir.Global(name, REPLACEMENTS[name], statement.loc)
            body.append(statement)
            return
        if not is_device_function(special):
            self._unsupported(name, statement.loc)
        # For instance an argument of another function, which has no hidden argument to pass.
        dispatcher = self._device_dispatcher(special, False)
        self.use.callees.append(dispatcher)
        statement.value = ir.Global(special.__name__, dispatcher, statement.loc)
        body.append(statement)

    # -- small parts -------------------------------------------------------------------------

    def _dimension(self, name: str, loc: Any, body: list[Any]) -> Any:
        """Return ``cuda.threadIdx`` or the like as a value, for instance to print it."""
        context = self._context(f"cuda.{name}", loc)
        parts = [
            self._assign(ir.Expr.getattr(context, f"{name}.{axis}", loc), axis, loc, body)
            for axis in AXES
        ]
        return ir.Expr.call(self._bind(Dim3, loc, body), parts, (), loc)

    def _context(self, what: str, loc: Any) -> Any:
        if ARGUMENT not in self._ir.arg_names:
            raise UnsupportedConstructError(
                f"{_where(loc)}: {what} is used in a device function that is passed as a value; "
                "call the function directly, or pass it the index as an argument"
            )
        return self._ir.blocks[min(self._ir.blocks)].scope.get_exact(ARGUMENT)

    def _bind(self, value: Any, loc: Any, body: list[Any]) -> Any:
        """Assign a Python object to a fresh variable before the current statement."""
        name = getattr(value, "__name__", "value")
        return self._assign(ir.Global(name, value, loc), name, loc, body)

    def _assign(self, value: Any, name: str, loc: Any, body: list[Any]) -> Any:
        scope = self._ir.blocks[min(self._ir.blocks)].scope
        self._fresh += 1
        variable = scope.redefine(f"$simt_{name}_{self._fresh}", loc=loc)
        body.append(ir.Assign(value, variable, loc))
        return variable

    def _reject_stray_names(self, node: Any) -> None:
        """Raise if a name of the dialect is used as a value."""
        for variable in node.list_vars():
            known, constant = self._constant(variable)
            if known and (is_dialect_module(constant) or dialect_name(constant) is not None):
                owner_of = isinstance(node, ir.Assign) and isinstance(node.value, ir.Expr)
                if owner_of and node.value.op == "getattr" and is_dialect_module(constant):
                    raise CompileError(
                        f"{_where(node.loc)}: numba.cuda has no attribute {node.value.attr!r}"
                    )
                name = dialect_name(constant) or ""
                if name in (*_CONSTANTS, *_DIMENSIONS) or vector_type(name) is not None:
                    continue
                if not _is_value(name):
                    self._unsupported(name, node.loc)

    def _unsupported(self, name: str, loc: Any) -> NoReturn:
        shown = f"cuda.{name}" if name else "the module numba.cuda used as a value"
        what = "is used as a value here, which" if name in REPLACEMENTS else "is used here, which"
        raise UnsupportedConstructError(
            f"{_where(loc)}: {shown} {what} the CPU compiler does not support yet; "
            f"{next_step(name)}"
        )

    def check_returns(self) -> None:
        for block in self._ir.blocks.values():
            statement = block.terminator
            if isinstance(statement, ir.Return) and not self._returns_none(statement.value):
                raise CompileError(
                    f"{_where(statement.loc)}: {RETURNS_VALUE}; write the result "
                    "into an array argument"
                )

    def _returns_none(self, variable: Any) -> bool:
        values = self._assignments.get(variable.name, ())
        if not values:
            return False
        return all(self._may_be_none(value) for value in values)

    def _may_be_none(self, value: Any) -> bool:
        if isinstance(value, ir.Const):
            return value.value is None
        if isinstance(value, ir.Var):
            return self._returns_none(value)
        if isinstance(value, ir.Expr) and value.op == "cast":
            return self._returns_none(value.value)
        # A call, for one: its type decides, and is checked once it is known.
        return isinstance(value, ir.Expr) and value.op == "call"


def refuse_own_arrays(state: Any, use: DialectUse) -> None:
    """Raise if a function returns an array and declares one, whose memory ends with the call.

    Parameters
    ----------
    state : numba.core.compiler.StateDict
        The compiler's state after type inference.
    use : DialectUse
        The use of the dialect by the function.

    Raises
    ------
    UnsupportedConstructError
        Only of functions that may return arrays other than their arguments.
    """
    if not (use.local_arrays and isinstance(state.return_type, types.Array)):
        return
    raise UnsupportedConstructError(
        f"{_where(state.func_ir.loc)}: {state.func_id.func_qualname}, the implementation of an "
        "overload, declares a cuda.local.array and returns an array; let the kernel declare it, "
        "and pass it in"
    )


def _is_value(name: str) -> bool:
    """Return whether a name of the dialect can be passed around before it is called."""
    return name not in _CALLED_ONLY and name in REPLACEMENTS


def _uses_values(value: Any) -> bool:
    if isinstance(value, ir.Expr):
        return bool(value.op != "getattr")
    return isinstance(value, ir.Stmt) and not isinstance(value, ir.Del)


def _where(loc: Any) -> str:
    return f"{loc.filename}:{loc.line}"


class _Missing:
    """Type of the mark for an attribute that does not exist."""


_MISSING = _Missing()
