"""Exceptions that end the thread of a kernel and are not reported.

On CUDA, a kernel without ``debug=True`` reports no exception: the thread that raises returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core.callconv import RETCODE_OK, CPUCallConv

if TYPE_CHECKING:
    from llvmlite import ir

__all__ = ["SilentCallConv"]


class SilentCallConv(CPUCallConv):
    """Numba's calling convention, but a kernel returns where it would raise.

    Parameters
    ----------
    context : numba target context
        The context that lowers the kernel.

    Attributes
    ----------
    symbol : str
        The kernel's symbol. Other functions that the context lowers return the status of an
        exception, and the kernel returns when a function that it calls does.
    raises : bool
        Whether the kernel raises itself.
    """

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.symbol = ""
        self.raises = False

    def return_user_exc(self, builder: ir.IRBuilder, *args: Any, **keywords: Any) -> None:
        """Raise an exception of known arguments."""
        if not self._return(builder):
            super().return_user_exc(builder, *args, **keywords)

    def return_dynamic_user_exc(self, builder: ir.IRBuilder, *args: Any, **keywords: Any) -> None:
        """Raise an exception with arguments of the thread."""
        if not self._return(builder):
            super().return_dynamic_user_exc(builder, *args, **keywords)

    def _return(self, builder: ir.IRBuilder) -> bool:
        """Return from the kernel in place of the exception; return whether this is the kernel.

        Kernels have no `try`: nothing in it catches the exception.
        """
        if builder.function.name != self.symbol:
            return False
        self.raises = True
        self._return_errcode_raw(builder, RETCODE_OK)
        return True

    def _return_errcode_raw(self, builder: ir.IRBuilder, code: Any) -> None:
        if builder.function.name == self.symbol:
            code = RETCODE_OK  # also of an exception of a callee: a kernel returns nothing else
        super()._return_errcode_raw(builder, code)
