"""Translate one function to LLVM text: registers, operands, addresses, guards and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.ptx.errors import PtxError
from simulated_cuda.ptx.instructions.registry import translate
from simulated_cuda.ptx.literals import float_constant, integer_constant
from simulated_cuda.ptx.loops import waiting_loops
from simulated_cuda.ptx.nan import observed_names
from simulated_cuda.ptx.special_registers import read_special
from simulated_cuda.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Label,
    Name,
    Negation,
    Register,
    Variable,
)
from simulated_cuda.ptx.types import BITS, is_signed, llvm_type

if TYPE_CHECKING:
    from simulated_cuda.ptx.module import ModuleBuilder
    from simulated_cuda.ptx.syntax import Function, Operand, Scope

__all__ = ["FunctionBuilder"]

_LOCAL_PATTERN = 0xA5
"""Local memory starts with this byte: a read of uninitialised memory gives the same value in every
run, and rarely the value that was meant."""


class FunctionBuilder:
    """The LLVM text of a function, and what the driver must know about it.

    Registers are stack slots that LLVM promotes to values. Within a straight run of instructions
    `_values` keeps what a register holds, so that most loads are never written.

    Parameters
    ----------
    module : ModuleBuilder
        Holds the other functions, variables and helpers.
    function : Function
        A function with a body.
    """

    def __init__(self, module: ModuleBuilder, function: Function) -> None:
        self.module = module
        self.function = function
        self.calls: set[str] = set()
        self.has_indirect_call = False
        self.waits = False
        self.approximates = False
        self.local_bytes = 0
        self._slot_bytes = 0
        self.shared_names: set[str] = set()
        self.instruction: Instruction | None = None
        self.observed = observed_names(function)
        self._lines: list[str] = []
        self._entry: list[str] = []
        self._count = 0
        self._slots: dict[int, str] = {}
        self._values: dict[tuple[int, str], str] = {}
        self._written: set[int] = set()
        self._constants: dict[str, str] = {}
        self._range_registers = 1_000_000
        self._is_open = True
        self._addresses: dict[int, str] = {}
        self._loops = waiting_loops(function)
        self.spins = bool(self._loops)

    # ---- text -----------------------------------------------------------------------------------

    def fresh(self, prefix: str = "v") -> str:
        """Return an unused name of a value or a label, without its mark."""
        self._count += 1
        return f"{prefix}{self._count}"

    def value(self, text: str) -> str:
        """Write an instruction that has a result, and return the result."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        return name

    def emit(self, text: str) -> None:
        """Write an instruction without a result."""
        self._lines.append(f"  {text}")

    def entry(self, text: str) -> str:
        """Write an instruction at the start of the function, and return its result."""
        name = "%" + self.fresh("e")
        self._entry.append(f"  {name} = {text}")
        return name

    def entry_once(self, key: str, text: str) -> str:
        """Return the result of an instruction that the start of the function has only once."""
        if key not in self._constants:
            self._constants[key] = self.entry(text)
        return self._constants[key]

    def place(self, label: str) -> None:
        """Begin a basic block that only the code above jumps to."""
        if self._is_open:
            self._lines.append(f"  br label %{label}")
        self._lines.append(f"{label}:")
        self._is_open = True

    def end_block(self, text: str) -> None:
        """Write a terminator."""
        self._lines.append(f"  {text}")
        self._is_open = False

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """End the block with a conditional branch."""
        self.end_block(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def call(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic or an exported function of the driver or of libm."""
        types = ", ".join(kind for kind, _ in arguments)
        self.module.declare(name, f"declare {result} @{name}({types})")
        values = ", ".join(f"{kind} {value}" for kind, value in arguments)
        text = f"call {result} @{name}({values})"
        if result == "void":
            self.emit(text)
            return ""
        return self.value(text)

    def help(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call a helper of helpers.py; its text is added to the module."""
        self.module.add_helper(name)
        values = ", ".join(f"{kind} {value}" for kind, value in arguments)
        return self.value(f"call {result} @{name}({values})")

    def intrinsic(self, name: str, kind: str, *operands: str) -> str:
        """Call ``llvm.<name>`` of operands that all have one LLVM type."""
        suffix = {"float": "f32", "double": "f64"}.get(kind, kind)
        return self.call(f"llvm.{name}.{suffix}", kind, *((kind, value) for value in operands))

    def error(self, message: str) -> PtxError:
        """Return an error at the current instruction."""
        instruction = self.instruction
        if instruction is None:
            return PtxError(message, self.function.line)
        return PtxError(f"{instruction.name}: {message}", instruction.line)

    # ---- names ----------------------------------------------------------------------------------

    def find(self, name: str) -> object | None:
        """Return the register, label or variable that a name means here, or None."""
        assert self.instruction is not None
        scope: Scope | None = self.instruction.scope
        while scope is not None:
            symbol = scope.symbols.get(name) or self._of_range(scope, name)
            if symbol is not None:
                return symbol
            scope = scope.parent
        return self.module.program.variables.get(name)

    def _of_range(self, scope: Scope, name: str) -> Register | None:
        for prefix, (count, kind) in scope.ranges.items():
            digits = name[len(prefix) :]
            if name.startswith(prefix) and digits.isdecimal() and int(digits) < count:
                self._range_registers += 1
                register = Register(name, kind, BITS[kind], self._range_registers)
                scope.symbols[name] = register
                return register
        return None

    def register(self, name: str) -> Register:
        """Return a register, or raise."""
        found = self.find(name)
        if not isinstance(found, Register):
            raise self.error(f"{name} is not a register")
        return found

    def _slot(self, register: Register) -> str:
        slot = self._slots.get(register.index)
        if slot is None:
            slot = f"%r{register.index}"
            self._slots[register.index] = slot
            kind = llvm_type(register.type)
            self._entry.append(f"  {slot} = alloca {kind}")
            self._entry.append(f"  store {kind} zeroinitializer, ptr {slot}")
        return slot

    # ---- reading --------------------------------------------------------------------------------

    def read(self, operand: Operand, type_name: str) -> str:
        """Return an operand as a value of a PTX type, truncated or extended to its width."""
        kind = llvm_type(type_name)
        if isinstance(operand, Immediate):
            if kind in ("float", "double"):
                return float_constant(operand, kind)
            return integer_constant(operand, BITS[type_name])
        if isinstance(operand, Negation):
            value = self.read(operand.name, "pred")
            return self.value(f"xor i1 {value}, true")
        if not isinstance(operand, Name):
            raise self.error("unexpected operand")
        found = self.find(operand.text)
        if isinstance(found, Register):
            if operand.offset:
                raise self.error("an offset of a register is allowed in addresses only")
            return self._read_register(found, kind, signed=is_signed(type_name))
        return self._read_name(operand, found, type_name, kind)

    def _read_name(self, operand: Name, found: object, type_name: str, kind: str) -> str:
        if isinstance(found, Variable):
            value = self.address_of(found, operand.offset)
        elif operand.text in self.module.program.functions:
            self.module.take_address(operand.text)
            symbol = self.module.function_symbol(operand.text)
            value = self.value(f"ptrtoint ptr {symbol} to i64")
        else:
            special = read_special(self, operand.text)
            if special is None:
                raise self.error(f"unknown name {operand.text}")
            value, width = special
            return self.resize(value, width, BITS[type_name], signed=False)
        if kind in ("float", "double"):
            raise self.error("an address is not a floating-point number")
        return self.resize(value, 64, BITS[type_name], signed=False)

    def _read_register(self, register: Register, kind: str, *, signed: bool) -> str:
        values = self._values
        key = register.index, kind
        value = values.get(key)
        if value is not None:
            return value
        stored = llvm_type(register.type)
        value = values.get((register.index, stored))
        if value is None:
            value = self.value(f"load {stored}, ptr {self._slot(register)}")
            values[register.index, stored] = value
        if stored == kind:
            return value
        width = BITS[register.type]
        if stored in ("float", "double"):
            value = self.value(f"bitcast {stored} {value} to i{width}")
            values[register.index, f"i{width}"] = value
        wanted = {"float": 32, "double": 64}.get(kind) or int(kind[1:])
        if wanted == 1 or width == 1:
            raise self.error(f"{register.name} has the wrong type for a predicate")
        if width != wanted:
            value = self.resize(value, width, wanted, signed=signed)
        if kind in ("float", "double"):
            value = self.value(f"bitcast i{wanted} {value} to {kind}")
        if width == wanted:
            values[key] = value
        return value

    def read_bits(self, operand: Operand, width: int) -> str:
        """Return an operand as an integer of so many bits, zero-extended or truncated."""
        return self.read(operand, f"b{width}" if width > 1 else "pred")

    def resize(self, value: str, width: int, wanted: int, *, signed: bool) -> str:
        """Truncate or extend an integer."""
        if width == wanted:
            return value
        if width > wanted:
            return self.value(f"trunc i{width} {value} to i{wanted}")
        return self.value(f"{'sext' if signed else 'zext'} i{width} {value} to i{wanted}")

    # ---- writing --------------------------------------------------------------------------------

    def write(self, operand: Operand, value: str, type_name: str) -> None:
        """Store a value of a PTX type in a register, extended to the width of the register."""
        if not isinstance(operand, Name):
            raise self.error("the destination is not a register")
        if operand.text == "_":
            return
        register = self.register(operand.text)
        kind, stored = llvm_type(type_name), llvm_type(register.type)
        if kind != stored:
            width = BITS[type_name]
            if kind in ("float", "double"):
                value = self.value(f"bitcast {kind} {value} to i{width}")
            if (width == 1) != (register.width == 1):
                raise self.error(f"{register.name} has the wrong type")
            value = self.resize(value, width, register.width, signed=is_signed(type_name))
            if stored in ("float", "double"):
                value = self.value(f"bitcast i{register.width} {value} to {stored}")
        self._lines.append(f"  store {stored} {value}, ptr {self._slot(register)}")
        values = self._values
        for other in ("i32", "i64", "float", "double", "i16"):
            values.pop((register.index, other), None)
        values[register.index, stored] = value
        self._written.add(register.index)

    # ---- addresses ------------------------------------------------------------------------------

    def thread_field(self, offset: int, kind: str) -> str:
        """Return a field of the SimThread."""
        pointer = self.entry_once(f"field{offset}", f"getelementptr i8, ptr %thread, i64 {offset}")
        return self.entry_once(f"value{offset}{kind}", f"load {kind}, ptr {pointer}")

    def shared_base(self) -> str:
        """Return the address of the shared memory of the block."""
        return self.thread_field(48, "ptr")

    def address_of(self, variable: Variable, offset: int) -> str:
        """Return the address of a variable in its own state space, as i64."""
        if variable.space == "shared":
            value = self._shared_offset(variable)
        else:
            pointer = self.pointer_to(variable)
            value = self.value(f"ptrtoint ptr {pointer} to i64")
        return self.value(f"add i64 {value}, {offset}") if offset else value

    def _shared_offset(self, variable: Variable) -> str:
        self.shared_names.add(variable.symbol)
        return self.module.shared_placeholder(variable)

    def pointer_to(self, variable: Variable) -> str:
        """Return the address of a variable as a native pointer."""
        if variable.space == "shared":
            offset = self._shared_offset(variable)
            return self.value(f"getelementptr i8, ptr {self.shared_base()}, i64 {offset}")
        if variable.symbol:
            return self.module.variable_symbol(variable)
        known = self._addresses.get(id(variable))
        if known is None:
            known = self._allocate(variable)
            self._addresses[id(variable)] = known
        return known

    def _allocate(self, variable: Variable) -> str:
        size = max(variable.size, 1)
        rounded = -(-size // 16) * 16
        self._slot_bytes += rounded
        alignment = max(variable.alignment, 8)
        pointer = self.entry(f"alloca [{size} x i8], align {alignment}")
        pattern = 0
        if variable.space == "local":
            self.local_bytes += rounded
            pattern = _LOCAL_PATTERN
        name = "llvm.memset.p0.i64"
        self.module.declare(name, f"declare void @{name}(ptr, i8, i64, i1)")
        self._entry.append(
            f"  call void @{name}(ptr {pointer}, i8 {pattern}, i64 {size}, i1 false)"
        )
        return pointer

    def pointer(self, operand: Operand, space: str | None, alignment: int = 1) -> str:
        """Return the native pointer of an address operand.

        Parameters
        ----------
        operand : Operand
            An address in brackets.
        space : str or None
            State space of the access; None for a generic address.
        alignment : int
            Bytes that the address must be a multiple of, as the ISA demands: an access to another
            address is reported.
        """
        if not isinstance(operand, Address):
            raise self.error("expected an address")
        if operand.base is not None:
            found = self.find(operand.base.text)
            if isinstance(found, Variable):
                pointer = self.pointer_to(found)
                if operand.offset:
                    pointer = self.value(f"getelementptr i8, ptr {pointer}, i64 {operand.offset}")
                return pointer
            address = self.read(operand.base, "b64")
            if operand.offset:
                address = self.value(f"add i64 {address}, {operand.offset}")
        else:
            address = str(operand.offset)
        if alignment > 1 and space not in ("param", "local"):
            self._check_alignment(address, alignment, space)
        if space == "shared":
            return self.value(f"getelementptr i8, ptr {self.shared_base()}, i64 {address}")
        return self.value(f"inttoptr i64 {address} to ptr")

    def _check_alignment(self, address: str, alignment: int, space: str | None) -> None:
        low = self.value(f"and i64 {address}, {alignment - 1}")
        condition = self.value(f"icmp eq i64 {low}, 0")
        fault, ok = self.fresh("misaligned"), self.fresh("aligned")
        self.end_block(f"br i1 {condition}, label %{ok}, label %{fault}, !prof !0")
        self.place(fault)
        if space == "shared":
            base = self.value(f"ptrtoint ptr {self.shared_base()} to i64")
            address = self.value(f"add i64 {address}, {base}")
        arguments = ("ptr", "%thread"), ("i64", address), ("i32", str(alignment))
        self.call("sim_misaligned", "void", *arguments)
        self.end_block("unreachable")
        self.place(ok)

    # ---- the function ---------------------------------------------------------------------------

    def build(self) -> str:
        """Return the definition of the function."""
        signature = self._bind_parameters()
        for item in self.function.body or ():
            if isinstance(item, Label):
                self.place(f"L{item.index}")
                self._values.clear()
            else:
                self._translate(item)
        if self._is_open:
            self.end_block("ret void")
        symbol = self.module.function_symbol(self.function.name)
        linkage = "" if self.function.is_kernel else "internal "
        head = f"define {linkage}void {symbol}({signature}) #0 {{"
        return "\n".join([head, "entry:", *self._entry, "  br label %start", "start:",
                          *self._lines, "}"])  # fmt: skip

    def _bind_parameters(self) -> str:
        function = self.function
        if function.is_kernel:
            for variable, offset in zip(
                function.parameters, self.module.parameter_offsets(function), strict=True
            ):
                self._addresses[id(variable)] = self.entry(
                    f"getelementptr i8, ptr %parameters, i64 {offset}"
                )
            return "ptr %parameters, ptr %thread"
        names = ["ptr %thread"]
        for index, variable in enumerate((*function.returns, *function.parameters)):
            self._addresses[id(variable)] = f"%p{index}"
            names.append(f"ptr %p{index}")
        return ", ".join(names)

    def _translate(self, instruction: Instruction) -> None:
        self.instruction = instruction
        if not self._is_open:
            self.place(self.fresh("dead"))
            self._values.clear()
        if instruction.guard is None:
            translate(self, instruction)
            return
        condition = self.read(instruction.guard, "pred")
        then, after = self.fresh("then"), self.fresh("after")
        if instruction.guard_value:
            self.branch(condition, then, after)
        else:
            self.branch(condition, after, then)
        before = dict(self._values)
        written, self._written = self._written, set()
        self.place(then)
        translate(self, instruction)
        self.place(after)
        kept = {key: value for key, value in before.items() if key[0] not in self._written}
        self._values = kept
        self._written |= written

    def carry_flag(self) -> str:
        """Return the pointer of the carry flag CC.CF, which starts as 0."""
        if "carry" not in self._constants:
            self._constants["carry"] = slot = self.entry("alloca i1")
            self._entry.append(f"  store i1 false, ptr {slot}")
        return self._constants["carry"]

    @property
    def stack_bytes(self) -> int:
        """Bytes of stack that the function needs at most: as if every value were spilled."""
        return self._slot_bytes + 8 * self._count + 256

    def is_waiting_branch(self) -> bool:
        """Return whether the current branch closes a loop that may wait for other threads."""
        return id(self.instruction) in self._loops
