"""Translate a module: symbols, variables, shared memory, call graph, and facts on its kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulated_cuda.ptx.errors import PtxError
from simulated_cuda.ptx.function import FunctionBuilder
from simulated_cuda.ptx.helpers import declarations_of, helper_text
from simulated_cuda.ptx.shared_memory import SharedLayout
from simulated_cuda.ptx.variables import definition

if TYPE_CHECKING:
    from simulated_cuda.ptx.syntax import Function, Program, Variable

__all__ = ["KernelFacts", "ModuleBuilder", "ModuleFacts"]

_ATTRIBUTES = """
attributes #0 = { nounwind null_pointer_is_valid }
attributes #1 = { nounwind alwaysinline }
attributes #2 = { nounwind }
attributes #3 = { nounwind noinline strictfp }
attributes #4 = { nounwind strictfp }
!0 = !{!"branch_weights", i32 2000, i32 1}
"""


@dataclass(slots=True)
class KernelFacts:
    """The fields of SimKernelInfo, without the address of the code."""

    parameters: list[list[int]]
    parameter_bytes: int
    static_shared: int
    local_bytes: int
    stack_bytes: int
    waits: bool
    spins: bool
    approximates: bool
    max_threads: int
    required_threads: list[int]


@dataclass(slots=True)
class ModuleFacts:
    """The facts on a translated module that the driver needs."""

    kernels: dict[str, KernelFacts] = field(default_factory=dict)
    variables: dict[str, int] = field(default_factory=dict)
    """Sizes of the global and constant variables."""
    externals: list[str] = field(default_factory=list)
    """Functions of the driver and of libm that the code calls."""


class ModuleBuilder:
    """Collects the LLVM text of the functions, variables and helpers of a module.

    Parameters
    ----------
    program : Program
        The syntax tree.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.address_taken: set[str] = set()
        self._declarations: dict[str, str] = {}
        self._helpers: dict[str, str] = {}
        self._builders: dict[str, FunctionBuilder] = {}
        self._offsets: dict[str, list[int]] = {}
        self._static: list[Variable] = []
        self._placeholders: dict[str, tuple[str, Variable]] = {}

    # ---- for the functions ----------------------------------------------------------------------

    def declare(self, name: str, text: str) -> None:
        """Add the declaration of a function that is defined elsewhere."""
        self._declarations[name] = text

    def add_helper(self, name: str) -> None:
        """Add a helper and those that it calls."""
        if name in self._helpers:
            return
        text = self._helpers[name] = helper_text(name)
        self._declarations.update(declarations_of(text))
        for other in re.findall(r"call \w+ @(sim\.[\w.]+)\(", text):
            self.add_helper(other)

    def take_address(self, function: str) -> None:
        """Record that a function may be called through a pointer."""
        self.address_taken.add(function)

    def function_symbol(self, name: str) -> str:
        """Return the LLVM name of a function."""
        return f'@"ptx.{self.program.aliases.get(name, name)}"'

    def variable_symbol(self, variable: Variable) -> str:
        """Return the LLVM name of a global or constant variable."""
        return f'@"ptx.{variable.symbol}"'

    def shared_placeholder(self, variable: Variable) -> str:
        """Return the text that stands for the offset of a shared variable until it is known."""
        known = self._placeholders.get(variable.symbol)
        if known is None:
            known = f"${len(self._placeholders)}$", variable
            self._placeholders[variable.symbol] = known
        return known[0]

    def parameter_offsets(self, kernel: Function) -> list[int]:
        """Return the offsets of the parameters of a kernel in the parameter block."""
        known = self._offsets.get(kernel.name)
        if known is None:
            known, offset = [], 0
            for variable in kernel.parameters:
                offset = -(-offset // variable.alignment) * variable.alignment
                known.append(offset)
                offset += variable.size
            self._offsets[kernel.name] = known
        return known

    # ---- the module -----------------------------------------------------------------------------

    def build(self) -> tuple[str, ModuleFacts]:
        """Return the LLVM text and the facts on the module."""
        functions = [f for f in self.program.functions.values() if f.body is not None]
        for function in functions:
            self._name_variables(function)
        texts = {}
        for function in functions:
            builder = self._builders[function.name] = FunctionBuilder(self, function)
            texts[function.name] = builder.build()
        layout = SharedLayout(self._placeholders, self._builders, self._reached)
        for name, text in texts.items():
            if self._builders[name].shared_names:
                texts[name] = layout.replace(name, text)
        variables = [
            variable
            for variable in (*self.program.variables.values(), *self._static)
            if variable.space in ("global", "const")
        ]
        parts = [definition(variable, self) for variable in variables]
        parts += self._declarations.values()
        parts += self._helpers.values()
        parts += texts.values()
        parts.append(_ATTRIBUTES)
        facts = ModuleFacts(externals=sorted(self._externals()))
        facts.variables = {v.symbol: v.size for v in variables if not v.is_unsized}
        for function in functions:
            if function.is_kernel:
                facts.kernels[function.name] = self._facts(function, layout)
        return "\n".join(parts), facts

    def _name_variables(self, function: Function) -> None:
        """Name the variables of a body that live as long as the module."""
        for index, variable in enumerate(function.variables):
            if variable.space in ("shared", "global", "const"):
                variable.symbol = f"{function.name}.{index}.{variable.name}"
                self._static.append(variable)

    def _externals(self) -> set[str]:
        return {name for name in self._declarations if not name.startswith("llvm.")}

    def _reached(self, name: str) -> set[str]:
        """Return the functions that a function may call, itself included."""
        found = {name}
        pending = [name]
        while pending:
            builder = self._builders[pending.pop()]
            targets = set(builder.calls)
            if builder.has_indirect_call:
                targets |= {f for f in self.address_taken if f in self._builders}
            pending += targets - found
            found |= targets
        return found

    def _facts(self, kernel: Function, layout: SharedLayout) -> KernelFacts:
        if len(kernel.parameters) > 512:
            raise PtxError("more than 512 parameters", kernel.line)
        builders = [self._builders[name] for name in self._reached(kernel.name)]
        offsets = self.parameter_offsets(kernel)
        parameters = [
            [offset, variable.size]
            for offset, variable in zip(offsets, kernel.parameters, strict=True)
        ]
        required = (*kernel.limits.get("reqntid", (0, 0, 0)), 1, 1)[:3]
        limit = 1
        for extent in kernel.limits.get("maxntid", (0,)):
            limit *= extent
        return KernelFacts(
            parameters=parameters,
            parameter_bytes=sum(parameters[-1]) if parameters else 0,
            static_shared=layout.static_bytes(kernel.name),
            local_bytes=sum(builder.local_bytes for builder in builders),
            stack_bytes=sum(builder.stack_bytes for builder in builders),
            waits=any(builder.waits for builder in builders),
            spins=any(builder.spins for builder in builders),
            approximates=any(builder.approximates for builder in builders),
            max_threads=limit,
            required_threads=list(required),
        )
