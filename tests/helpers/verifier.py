"""LLVM's verifier, run on every module that the compiler parses from text."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["verified_modules"]


@contextmanager
def verified_modules() -> Iterator[None]:
    """Verify modules as they are parsed: LLVM ends the process on some invalid ones.

    Raises
    ------
    RuntimeError
        From the compile, with LLVM's reason, if a module is invalid.
    """
    parse = llvm.parse_assembly

    def parse_and_verify(*arguments: Any, **options: Any) -> llvm.ModuleRef:
        module = parse(*arguments, **options)
        module.verify()
        return module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llvm, "parse_assembly", parse_and_verify)
        yield
