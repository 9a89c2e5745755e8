"""Tests compile with LLVM's verifier switched on."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

USED_BEFORE_DEFINED = """
define i32 @f(i32 %x) {
entry:
  %a = add i32 %b, 1
  %b = add i32 %x, 1
  ret i32 %a
}
"""


def test_an_invalid_module_is_refused_by_every_test() -> None:
    with pytest.raises(RuntimeError, match="does not dominate all uses"):
        llvm.parse_assembly(USED_BEFORE_DEFINED)
