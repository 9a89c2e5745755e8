"""Register translations of opcodes, and check the modifiers of instructions against them.

A translation lists every modifier that it honours. Any other modifier or opcode is an error: a
program is refused rather than translated wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from simulated_cuda.ptx.errors import PtxError
from simulated_cuda.ptx.types import BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from simulated_cuda.ptx.function import FunctionBuilder
    from simulated_cuda.ptx.syntax import Instruction

__all__ = ["FLOATS", "INTEGERS", "PACKED", "Form", "translate", "translates"]

_GROUPS = (
    "approximate",
    "atomics",
    "barriers",
    "bits",
    "calls",
    "carry",
    "compare",
    "control",
    "convert",
    "floats",
    "integers",
    "memory",
    "moves",
    "video",
    "warp",
)

INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")
FLOATS = ("f32", "f64")
PACKED = ("f16", "f16x2", "bf16", "bf16x2")


@dataclass(frozen=True, slots=True)
class Form:
    """An opcode with its modifiers."""

    opcode: str
    modifiers: tuple[str, ...]
    types: tuple[str, ...]
    flags: frozenset[str]

    @property
    def type(self) -> str:
        """The last type, which is the only one of most instructions."""
        return self.types[-1]

    def choose(self, names: Iterable[str], default: str = "") -> str:
        """Return the one of some modifiers that is there."""
        return next((name for name in names if name in self.flags), default)


_translations: dict[str, tuple[Callable[..., None], frozenset[str], int]] = {}
_forms: dict[tuple[str, tuple[str, ...]], tuple[Callable[..., None], Form]] = {}


def translates(
    *opcodes: str, modifiers: Iterable[str] = (), types: Iterable[str] = (), needs: int = 0
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a translation.

    Parameters
    ----------
    *opcodes : str
        The opcodes.
    modifiers, types : iterable of str
        The modifiers and types that the translation honours.
    needs : int
        Number of types that an instruction must have at least.
    """
    allowed = frozenset(modifiers) | frozenset(types)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for opcode in opcodes:
            _translations[opcode] = function, allowed, needs or int(bool(types))
        return function

    return register


def translate(builder: FunctionBuilder, instruction: Instruction) -> None:
    """Write the LLVM text of an instruction, without its guard."""
    key = instruction.opcode, instruction.modifiers
    found = _forms.get(key)
    if found is None:
        found = _forms[key] = _decode(instruction)
    function, form = found
    try:
        function(builder, instruction.operands, form)
    except (LookupError, ValueError) as error:
        raise PtxError(
            f"{instruction.name}: invalid operands ({error})", instruction.line
        ) from error


def _decode(instruction: Instruction) -> tuple[Callable[..., None], Form]:
    if not _translations:
        for group in _GROUPS:
            import_module(f"simulated_cuda.ptx.instructions.{group}")
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode not in _translations:
        raise PtxError(f"unsupported instruction {instruction.name}", instruction.line)
    function, allowed, needs = _translations[opcode]
    for modifier in modifiers:
        if modifier not in allowed:
            message = f"unsupported modifier .{modifier} of {instruction.name}"
            raise PtxError(message, instruction.line)
    types = tuple(name for name in modifiers if name in BITS)
    if len(types) < needs:
        raise PtxError(f"{instruction.name} has no type", instruction.line)
    return function, Form(opcode, modifiers, types, frozenset(modifiers))
