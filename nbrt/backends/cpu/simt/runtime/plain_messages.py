"""`plain_messages`: Numba's errors without terminal colours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from numba.core import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["plain_messages"]


def _unchanged(message: str, _color: str | None = None, _style: str = "") -> str:
    return message


@contextmanager
def plain_messages() -> Iterator[None]:
    """Let Numba write its errors without terminal colours within a block.

    Type inference raises and catches a hundred errors a kernel. If colorama is installed, Numba
    sets up the terminal for each of them, which takes a tenth of the compile time. The messages of
    `CompileError` have no colours. The caller holds Numba's compiler lock.
    """
    scheme = errors.termcolor()  # one object, which all modules of Numba share
    before = vars(scheme).get("_markup")
    scheme._markup = _unchanged
    try:
        yield
    finally:
        if before is None:
            del scheme._markup
        else:
            scheme._markup = before
