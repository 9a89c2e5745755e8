"""The instrumentation pass of checked mode, on typed Numba IR.

It inserts a probe before every access. The access then uses the array and the index that the probe
returns: zeros in place of the array, if the index is outside of it. So the code that lowers the
access, of Numba or of a builtin of the dialect, needs no change.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from numba.core import ir, types
from numba.core.compiler_machinery import FunctionPass, register_pass

from nbrt.backends.cpu.simt.builtins import REPLACEMENTS, marker_kind
from nbrt.backends.cpu.simt.builtins.barriers import GridGroupType
from nbrt.backends.cpu.simt.builtins.hints import CACHED_LOADS, CACHED_STORES
from nbrt.backends.cpu.simt.checked import probes
from nbrt.backends.cpu.simt.checked.flow import reconvergence_points, sums_in_indices
from nbrt.backends.cpu.simt.checked.layout import Access
from nbrt.backends.cpu.simt.checked.source_locations import Site, SiteKind, spell, table
from nbrt.backends.cpu.simt.frontend.pipeline import METADATA, dialect_uses
from nbrt.backends.cpu.simt.thread_context import ARGUMENT
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["InstrumentPass", "compiled_sites", "view_size"]

_BOUNDS_ONLY = -1
_MAX_ITEM_SIZE = 2**31
_UNGUARDED = (
    types.BaseTuple,
    types.Record,
    types.NumberClass,
    types.EnumClass,
    types.LiteralList,
    types.LiteralStrKeyDict,
    types.List,
    types.ListType,
    types.DictType,
    types.UnicodeType,
    types.CharSeq,
    types.UnicodeCharSeq,
)
"""Types whose index Numba checks, or with which no kernel compiles."""
_FENCES = ("threadfence", "threadfence_block", "threadfence_system")


@register_pass(mutates_CFG=False, analysis_only=False)
class InstrumentPass(FunctionPass):
    """Insert checks into one function."""

    _name = "nbrt_simt_instrument"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Rewrite the function's IR in place."""
        _Instrumenter(state).run()
        return True


def compiled_sites(result: Any) -> list[Site]:
    """Return the sites of a compiled function and of its callees."""
    return [site for use in dialect_uses(result) for site in use.sites]


def view_size(result: Any) -> int:
    """Return the smallest size in bytes of an element of a view that a compiled function makes."""
    views = [site for site in compiled_sites(result) if site.kind is SiteKind.VIEW]
    return min((site.detail[0] for site in views), default=_MAX_ITEM_SIZE)


class _Instrumenter:
    def __init__(self, state: Any) -> None:
        self._state = state
        self._ir = state.func_ir
        self._types = state.typemap
        self._calls = state.calltypes
        self._is_kernel = state.pipeline.is_kernel
        self._names = {id(value): name for name, value in REPLACEMENTS.items()}
        self._body: list[Any] = []
        self._loc: Any = None
        self._barriers: dict[int, int] = {}
        self._fresh = 0
        self.sites: list[Site] = []

    def run(self) -> None:
        blocks = self._ir.blocks
        self._sums = sums_in_indices(self._ir, self._types, self._calls)
        self._enter_views()
        barrier_labels = self._enter_barriers()
        labels = set(barrier_labels.values())
        beginnings, exits = reconvergence_points(self._ir, labels, is_kernel=self._is_kernel)
        for label, block in sorted(blocks.items()):
            self._body, self._loc = [], block.loc
            self._reconverge(barrier_labels, beginnings.get(label, ()))
            for statement in block.body:
                self._loc = statement.loc
                if statement is block.terminator:
                    self._reconverge(barrier_labels, exits.get(label, ()))
                self._rewrite(statement)
            block.body = self._body

    def _reconverge(self, barrier_labels: dict[int, int], labels: Sequence[int]) -> None:
        """Insert probes at the points of reconvergence of barriers of some blocks."""
        for number, label in barrier_labels.items():
            if label in labels:
                self._probe("reconverged", number)

    def _enter_barriers(self) -> dict[int, int]:
        """Assign numbers to the barriers; return the block of each number."""
        barrier_labels: dict[int, int] = {}
        for label, block in self._ir.blocks.items():
            for statement in block.find_insts(ir.Assign):
                if self._is_barrier(statement.value):
                    number = self._site(SiteKind.BARRIER, statement)
                    self._barriers[id(statement)] = number
                    barrier_labels[number] = label
        return barrier_labels

    def _enter_views(self) -> None:
        """Register the calls of ``a.view(dtype)``; find the smallest element of their results."""
        for block in self._ir.blocks.values():
            for statement in block.find_insts(ir.Assign):
                value = statement.value
                if isinstance(value, ir.Expr) and value.op == "call":
                    function = self._types[value.func.name]
                    if getattr(function, "typing_key", None) == "array.view":
                        size = self._size_of(self._calls[value].return_type.dtype)
                        self._enter(SiteKind.VIEW, statement.loc, detail=(size,))
        self._state.metadata[METADATA].sites = self.sites
        self._view_size = view_size(self._state)

    # -- statements --------------------------------------------------------------------------

    def _rewrite(self, statement: Any) -> None:
        if isinstance(statement, (ir.SetItem, ir.StaticSetItem)):
            self._store(statement)
        elif isinstance(statement, ir.SetAttr):
            self._field(statement, statement.target, statement.attr, Access.WRITE)
            self._body.append(statement)
        elif isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr):
            self._assign(statement)
        else:
            self._body.append(statement)
            value = getattr(statement, "value", None)
            if self._is_kernel and isinstance(value, ir.Arg) and value.name == ARGUMENT:
                self._probe(probes.begin_thread, statement.target)

    def _assign(self, statement: Any) -> None:
        value = statement.value
        if value.op in ("getitem", "static_getitem"):
            self._load(statement)
        elif value.op == "getattr":
            self._field(statement, value.value, value.attr, Access.READ)
            self._body.append(statement)
        elif value.op == "call":
            self._call(statement)
        else:
            self._sum(statement)
            self._body.append(statement)

    def _load(self, statement: Any) -> None:
        value = statement.value
        owner = self._types[value.value.name]
        index = value.index if value.op == "getitem" else value.index_var
        if isinstance(owner, types.Record):
            self._field(statement, value.value, _static(value), Access.READ)
        elif self._is_guarded(owner, index, statement):
            result = self._types[statement.target.name]
            is_element = not isinstance(result, (types.Array, types.Record))
            access = int(Access.READ) if is_element else _BOUNDS_ONLY
            array, safe = self._guard(statement, value.value, index, SiteKind.READ, access)
            statement.value = self._element(array, safe)
        elif isinstance(owner, types.BaseTuple) and value.op == "getitem":
            number = self._site(SiteKind.READ, statement, value.value, index)
            self._probe(probes.check_tuple, value.value, index, number)
        self._body.append(statement)

    def _element(self, array: Any, index: Any) -> Any:
        """Return the expression ``array[index]``."""
        expression = ir.Expr.getitem(array, index, self._loc)
        operands = (self._types[array.name], self._types[index.name])
        resolve = self._state.typingctx.resolve_function_type
        self._calls[expression] = resolve(operator.getitem, operands, {})
        return expression

    def _store(self, statement: Any) -> None:
        target = self._types[statement.target.name]
        is_static = isinstance(statement, ir.StaticSetItem)
        index = statement.index_var if is_static else statement.index
        if isinstance(target, types.Record):
            self._field(statement, statement.target, _static(statement), Access.WRITE)
        if not self._is_guarded(target, index, statement):
            self._body.append(statement)
            return
        array = getattr(target, "array_type", target)
        is_element = array is not target or self._is_element(array, self._types[index.name])
        access = int(Access.WRITE) if is_element else _BOUNDS_ONLY
        owner, safe = self._guard(statement, statement.target, index, SiteKind.WRITE, access)
        if not is_element:
            self._fill(statement, owner, safe)
        stored = ir.SetItem(owner, safe, statement.value, statement.loc)
        value = self._types[statement.value.name]
        context = self._state.typingctx
        self._calls[stored] = context.resolve_setitem(array, self._types[safe.name], value)
        self._body.append(stored)

    def _fill(self, statement: Any, array: Any, index: Any) -> None:
        """Check an assignment to a slice: each element of it and of its source."""
        source = self._types[statement.value.name]
        if isinstance(source, types.Array):
            number = self._site(SiteKind.READ, statement, statement.value)
            self._touch(statement.value, number, Access.READ)
        view = array
        if self._types[index.name] is not types.ellipsis:
            expression = self._element(array, index)
            view = self._assigned(expression, self._calls[expression].return_type, "view")
        number = self._site(SiteKind.WRITE, statement, statement.target, index)
        self._touch(view, number, Access.WRITE)

    def _field(self, statement: Any, record: Any, name: str | int | None, access: Access) -> None:
        """Check a read or a write of a record's field, by name or number."""
        typ = self._types[record.name]
        if not isinstance(typ, types.Record):
            return
        if isinstance(name, int):
            name = list(typ.fields)[name]
        field = typ.fields.get(name)
        if field is None or isinstance(field.type, types.NestedArray):
            return
        size = self._size_of(field.type)
        kind = SiteKind.READ if access is Access.READ else SiteKind.WRITE
        shown = f"{spell(self._ir, record)}.{name}"
        number = self._enter(kind, statement.loc, variable=shown)
        self._probe(probes.check_record, record, field.offset, size, number, int(access))

    def _sum(self, statement: Any) -> None:
        """Check that an integer operation which leads to an index is exact."""
        operation = self._sums.get(id(statement.value))
        if operation is None:
            return
        value = statement.value
        number = self._site(SiteKind.ARITHMETIC, statement, statement.target)
        if operation == "narrow":
            operands = value.args[0], self._types[statement.target.name].bitwidth
        else:
            operands = value.lhs, value.rhs
        self._probe(probes.check_sum[operation], *operands, number)

    # -- calls -------------------------------------------------------------------------------

    def _builtin(self, value: Any) -> str | None:
        """Return the name of the builtin that an expression calls."""
        if not (isinstance(value, ir.Expr) and value.op == "call"):
            return None
        for definition in self._ir._definitions.get(value.func.name, []):
            if isinstance(definition, ir.Global):
                return self._names.get(id(definition.value))
        return None

    def _is_barrier(self, value: Any) -> bool:
        is_block_barrier = marker_kind(self._builtin(value) or "") == "barrier"
        return is_block_barrier or self._is_grid_barrier(value)

    def _is_grid_barrier(self, value: Any) -> bool:
        is_call = isinstance(value, ir.Expr) and value.op == "call"
        function = self._types[value.func.name] if is_call else None
        return isinstance(getattr(function, "this", None), GridGroupType)

    def _call(self, statement: Any) -> None:
        value = statement.value
        name = self._builtin(value)
        kind = marker_kind(name) if name is not None else None
        if self._is_barrier(value):
            self._barrier(statement)
        elif self._is_operator(value):
            self._operator(statement)
        elif name is None:
            self._sum(statement)
            self._escape(value)
            self._body.append(statement)
        elif name.startswith("atomic."):
            self._element_call(statement, SiteKind.ATOMIC, Access.ATOMIC)
        elif name in CACHED_LOADS:
            # Loops that wait for a flag, which others write atomically, use ldcv.
            access = Access.ATOMIC if name == "ldcv" else Access.READ
            self._element_call(statement, SiteKind.READ, access)
        elif name in CACHED_STORES:
            self._element_call(statement, SiteKind.WRITE, Access.WRITE)
        elif kind == "warp" and name != "activemask":
            self._warp(statement)
        else:
            self._body.append(statement)
            if name in _FENCES:
                self._probe("fence")
            elif name in ("local.array", "shared.array"):
                self._array(statement, name)

    def _is_operator(self, call: Any) -> bool:
        """Return whether ``operator.getitem`` or ``operator.setitem`` is called by name."""
        function = self._types[call.func.name]
        keys = (operator.getitem, operator.setitem)
        return isinstance(function, types.Function) and function.typing_key in keys

    def _operator(self, statement: Any) -> None:
        """Replace a call of ``operator.getitem`` or ``operator.setitem`` by the operation."""
        call, loc = statement.value, statement.loc
        signature = self._calls[call]
        if len(call.args) == 2:
            statement.value = ir.Expr.getitem(*call.args, loc)
            self._calls[statement.value] = signature
            self._load(statement)
            return
        stored = ir.SetItem(*call.args, loc)
        self._calls[stored] = signature
        self._store(stored)
        statement.value = ir.Const(None, loc)
        self._body.append(statement)

    def _barrier(self, statement: Any) -> None:
        scope = "grid" if self._is_grid_barrier(statement.value) else "barrier"
        self._probe(f"before_{scope}", self._barriers[id(statement)])
        self._body.append(statement)
        self._probe(f"after_{scope}")

    def _array(self, statement: Any, name: str) -> None:
        array = self._types[statement.target.name]
        call = self._calls[statement.value]
        shape = call.args[0]
        members = tuple(shape) if isinstance(shape, types.BaseTuple) else (shape,)
        extents = tuple(member.literal_value for member in members)
        item_size = self._size_of(array.dtype)
        size = item_size * math.prod(extents)
        kind = SiteKind.LOCAL if name == "local.array" else SiteKind.SHARED
        shown = self._name_of(statement) or f"cuda.{name}"
        detail = (str(array.dtype), extents, size)
        number = self._enter(kind, statement.loc, variable=shown, detail=detail)
        if kind is SiteKind.LOCAL:
            self._probe(probes.local_array, statement.target, number)
        else:
            by_byte = extents == (0,) or self._view_size < item_size
            self._probe(probes.shared_array, statement.target, number, by_byte)

    def _name_of(self, statement: Any) -> str:
        """Return the variable that the result of a call is assigned to, if any."""
        for block in self._ir.blocks.values():
            for other in block.find_insts(ir.Assign):
                if isinstance(other.value, ir.Var) and other.value.name == statement.target.name:
                    return str(other.target.unversioned_name)
        name = str(statement.target.unversioned_name)
        return "" if name.startswith("$") else name

    def _element_call(self, statement: Any, kind: SiteKind, access: Access) -> None:
        """Guard a function of the dialect that takes an array and an index."""
        value = statement.value
        array, index = value.args[:2] if len(value.args) > 1 else (None, None)
        operands = [self._types[item.name] for item in (array, index) if item is not None]
        if len(operands) < 2 or not self._is_plain(*operands):
            self._body.append(statement)
            return
        owner, safe = self._guard(statement, array, index, kind, int(access))
        call = ir.Expr.call(value.func, [owner, safe, *value.args[2:]], value.kws, statement.loc)
        operands = [self._types[argument.name] for argument in call.args]
        named = {key: self._types[argument.name] for key, argument in call.kws}
        function = self._types[value.func.name]
        self._calls[call] = function.get_call_type(self._state.typingctx, operands, named)
        statement.value = call
        self._body.append(statement)

    def _warp(self, statement: Any) -> None:
        arguments = statement.value.args
        mask = arguments[0] if arguments else 0xFFFFFFFF
        number = self._site(SiteKind.WARP, statement)
        self._probe("before_warp", number, mask)
        self._body.append(statement)
        self._probe("after_warp", number, mask)

    def _escape(self, call: Any) -> None:
        """Mark arrays as initialised that are passed to code without instrumentation."""
        function = self._types[call.func.name]
        if isinstance(function, types.Dispatcher):
            return
        passed = [variable for variable in call.args if self._is_array(variable)]
        if isinstance(function, types.BoundFunction):
            for definition in self._ir._definitions.get(call.func.name, []):
                if isinstance(definition, ir.Expr) and definition.op == "getattr":
                    passed += [definition.value] if self._is_array(definition.value) else []
        for variable in passed:
            self._touch(variable, 0, Access.FILL)

    # -- helpers -----------------------------------------------------------------------------

    def _size_of(self, typ: Any) -> int:
        context = self._state.targetctx
        return int(context.get_abi_sizeof(context.get_data_type(typ)))

    def _is_array(self, variable: Any) -> bool:
        return isinstance(self._types[variable.name], types.Array)

    def _is_guarded(self, owner: Any, index: Any, statement: Any) -> bool:
        """Return whether ``owner[index]`` gets a guard; raise if none exists for it."""
        if isinstance(owner, _UNGUARDED):
            return False
        typ = self._types[index.name] if index is not None else None
        if isinstance(owner, types.Array) and isinstance(typ, types.StringLiteral):
            return False  # a field of all records: a view
        if self._is_plain(owner, typ):
            return True
        loc = statement.loc
        raise UnsupportedConstructError(
            f"{loc.filename}:{loc.line}: the checked mode does not follow an index of type {typ} "
            f"into {owner}; index with integers and slices, in a loop if there are many"
        )

    def _is_plain(self, owner: Any, index: Any) -> bool:
        """Return whether there is a guard for an index: integers and, for arrays, slices."""
        if isinstance(owner, types.NumpyFlatType):
            return isinstance(index, types.Integer)
        members = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
        plain = (types.Integer, types.SliceType, types.NoneType, types.EllipsisType)
        return isinstance(owner, types.Buffer) and all(isinstance(m, plain) for m in members)

    def _is_element(self, array: Any, index: Any) -> bool:
        members = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
        return len(members) == array.ndim and all(isinstance(m, types.Integer) for m in members)

    def _guard(
        self, statement: Any, array: Any, index: Any, kind: SiteKind, access: int
    ) -> tuple[Any, Any]:
        """Insert a guard; return the array and the index to use."""
        number = self._site(kind, statement, array, index)
        is_flat = isinstance(self._types[array.name], types.NumpyFlatType)
        guard = probes.guard_flat if is_flat else probes.guard
        pair = self._probe(guard, array, index, number, access)
        owner, safe = (
            self._assigned(ir.Expr.static_getitem(pair, position, None, self._loc), typ, "guarded")
            for position, typ in enumerate(self._types[pair.name].types)
        )
        return owner, safe

    def _touch(self, array: Any, number: int, access: Access) -> None:
        self._probe(probes.touch, array, number, int(access))

    def _site(self, kind: SiteKind, statement: Any, array: Any = None, index: Any = None) -> int:
        variable = spell(self._ir, array) if array is not None else ""
        shown = spell(self._ir, index) if index is not None else ""
        return self._enter(kind, statement.loc, variable=variable, index=shown)

    def _enter(self, kind: SiteKind, loc: Any, **shown: Any) -> int:
        name = self._state.func_id.func_name
        site = Site(kind, name, loc.filename, loc.line, **shown)
        number = table.add(site)
        self.sites.append(site)
        return number

    def _assigned(self, value: Any, typ: Any, name: str) -> Any:
        scope = self._ir.blocks[min(self._ir.blocks)].scope
        self._fresh += 1
        variable = scope.redefine(f"$check_{name}_{self._fresh}", loc=self._loc)
        self._types[variable.name] = typ
        if isinstance(value, ir.Expr) and value.op == "static_getitem":
            self._calls[value] = None
        self._body.append(ir.Assign(value, variable, self._loc))
        self._ir._definitions[variable.name] = [value]
        return variable

    def _probe(self, function: Any, *arguments: Any) -> Any:
        """Insert a call of a probe, or of a runtime function; return the variable of its result."""
        if isinstance(function, str):
            function = probes.runtime_probes[function]
        operands = [
            self._assigned(ir.Const(int(argument), self._loc), types.int64, "number")
            if isinstance(argument, int)
            else argument
            for argument in arguments
        ]
        context = self._state.typingctx
        resolved = context.resolve_value_type(function)
        reference = ir.Global("probe", function, self._loc)
        callee = self._assigned(reference, resolved, "probe")
        call = ir.Expr.call(callee, operands, (), self._loc)
        kinds = tuple(self._types[operand.name] for operand in operands)
        self._calls[call] = resolved.get_call_type(context, kinds, {})
        return self._assigned(call, self._calls[call].return_type, "checked")


def _static(access: Any) -> str | int | None:
    """Return the index of an access if the source states it."""
    index = getattr(access, "index", None)
    return index if isinstance(index, str | int) else None
