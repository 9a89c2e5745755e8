"""Lowering of Numba IR to LLVM IR for functions that count no references and have no debug info."""

from __future__ import annotations

from typing import Any

from numba.core import config, ir
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

__all__ = ["LowerFunction"]


class _FunctionLowering(Lower):
    """Numba's lowering, without its second type inference of operators."""

    _disable_sroa_like_opt = False

    def __init__(
        self, context: Any, library: Any, fndesc: Any, func_ir: Any, metadata: Any = None
    ) -> None:
        if context.convention is not None:
            context.convention.symbol = fndesc.llvm_func_name
        super().__init__(context, library, fndesc, func_ir, metadata)

    def lower_inst(self, inst: Any) -> None:
        """Lower a statement; assignments without the text of the statement for debuggers."""
        if type(inst) is not ir.Assign or config.DEBUG_JIT:
            super().lower_inst(inst)
            return
        name = inst.target.name
        value = self.lower_assign(self.typeof(name), inst)
        argument = inst.value.index + 1 if isinstance(inst.value, ir.Arg) else None
        self.storevar(value, name, argidx=argument)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """Lower an operator; Numba first tries its versions for three kinds of constants."""
        if not (expr.static_lhs is expr.static_rhs is ir.UNDEFINED):
            return super().lower_binop(resty, expr, op)
        context, builder = self.context, self.builder
        signature = self.fndesc.calltypes[expr]
        operands = [
            context.cast(builder, self.loadvar(operand.name), self.typeof(operand.name), typ)
            for operand, typ in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        operator = context.typing_context.resolve_value_type(op)
        chosen = context.typing_context.resolve_function_type(operator, signature.args, {})
        result = context.get_function(operator, chosen)(builder, operands)
        return context.cast(builder, result, signature.return_type, resty)


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerFunction(NativeLowering):
    """Generates LLVM IR."""

    _name = "nbrt_simt_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        """The class that lowers one function."""
        return _FunctionLowering
