"""`plain_messages`: errors of Numba and numba-cuda without terminal colours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["plain_messages"]


def _unchanged(message: str, _color: str | None = None, _style: str = "") -> str:
    return message


@contextmanager
def plain_messages(*modules: ModuleType) -> Iterator[None]:
    """Let compilers write their errors without terminal colours within a block.

    Type inference raises and catches a hundred errors a kernel. If colorama is installed, Numba
    sets up the terminal for each of them, which takes a tenth of the compile time. The messages of
    `CompileError` have no colours. The caller holds the lock of the compilers.

    Parameters
    ----------
    *modules : module
        ``numba.core.errors``, and ``numba.cuda.core.errors``, whose classes derive from the former.
    """
    # One object a module, which all modules of the compiler share.
    schemes = [module.termcolor() for module in modules]
    before = [vars(scheme).get("_markup") for scheme in schemes]
    for scheme in schemes:
        scheme._markup = _unchanged
    try:
        yield
    finally:
        for scheme, markup in zip(schemes, before, strict=True):
            if markup is None:
                del scheme._markup
            else:
                scheme._markup = markup
