"""Place the shared variables of a module.

Variables that device functions use have one offset for all kernels and come first; each kernel
adds its own behind them. Dynamic shared memory begins after the static memory of the kernel, or,
if a device function uses it, after the largest of all kernels.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simulated_cuda.ptx.errors import PtxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.syntax import Variable

__all__ = ["SharedLayout"]

_ALIGNMENT = 16


class SharedLayout:
    """Offsets of the shared variables.

    Parameters
    ----------
    placeholders : dict
        By symbol: the text that stands for the offset, and the variable.
    builders : dict
        The translated functions.
    reached : callable
        Returns the functions that a function may call, itself included.
    """

    def __init__(
        self,
        placeholders: dict[str, tuple[str, Variable]],
        builders: dict[str, FunctionBuilder],
        reached: Callable[[str], set[str]],
    ) -> None:
        self._symbols = {text: symbol for symbol, (text, _) in placeholders.items()}
        self._variables = {symbol: variable for symbol, (_, variable) in placeholders.items()}
        self._builders = builders
        functions = [b for b in builders.values() if not b.function.is_kernel]
        kernels = [b for b in builders.values() if b.function.is_kernel]
        common = {name for builder in functions for name in builder.shared_names}
        self._common: dict[str, int] = {}
        common_end = self._append(self._common, common, 0)
        self._offsets: dict[str, dict[str, int]] = {}
        self._static: dict[str, int] = {}
        for builder in kernels:
            name = builder.function.name
            used = {s for f in reached(name) for s in builders[f].shared_names}
            offsets = dict(self._common)
            start = common_end if used & common else 0
            end = self._append(offsets, used - common, start)
            self._offsets[name] = offsets
            # Dynamic shared memory begins at an aligned address.
            is_dynamic = any(self._variables[symbol].is_unsized for symbol in used)
            self._static[name] = _round_up(end, _ALIGNMENT) if is_dynamic else end
        if any(self._variables[symbol].is_unsized for symbol in common):
            largest = _round_up(max(self._static.values(), default=0), _ALIGNMENT)
            self._static = dict.fromkeys(self._static, largest)
            self._common_dynamic = largest
        else:
            self._common_dynamic = 0

    def _append(self, offsets: dict[str, int], symbols: set[str], end: int) -> int:
        sized = [s for s in self._variables if s in symbols and not self._variables[s].is_unsized]
        for symbol in sized:
            variable = self._variables[symbol]
            offsets[symbol] = _round_up(end, variable.alignment)
            end = offsets[symbol] + variable.size
        return end

    def static_bytes(self, kernel: str) -> int:
        """Return the size of a kernel's static shared memory, up to where dynamic memory begins."""
        return self._static[kernel]

    def replace(self, function: str, text: str) -> str:
        """Replace the placeholders in the text of a function by the offsets."""
        is_kernel = function in self._static
        offsets = self._offsets[function] if is_kernel else self._common
        dynamic = self._static[function] if is_kernel else self._common_dynamic

        def offset(found: re.Match[str]) -> str:
            symbol = self._symbols[found[0]]
            if self._variables[symbol].is_unsized:
                return str(dynamic)
            if symbol not in offsets:
                raise PtxError(f"shared variable {symbol} has no place")
            return str(offsets[symbol])

        return re.sub(r"\$\d+\$", offset, text)


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
