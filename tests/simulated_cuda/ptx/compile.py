"""Compile LLVM text to an object file, and load object files."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from itertools import count

import llvmlite.binding as llvm

__all__ = ["LoadedObject", "compile_text", "host"]

_lock = threading.Lock()
_numbers = count()
_jit: llvm.LLJIT | None = None


@cache
def host() -> tuple[str, str]:
    """Return the name and the features of this processor."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _target_machine(level: int) -> llvm.TargetMachine:
    _initialise()
    name, features = host()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=name, features=features, opt=level, reloc="pic", codemodel="small"
    )


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def compile_text(text: str, level: int) -> bytes:
    """Return the object file of LLVM text.

    Parameters
    ----------
    text : str
        LLVM assembly.
    level : int
        0 for little effort, 1 or 2 for more.
    """
    machine = _target_machine(level)
    module = llvm.parse_assembly(text)
    with llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0)) as builder:
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(module, builder)
    return bytes(machine.emit_object(module))


class LoadedObject:
    """An object file in memory; its code lives as long as this object.

    Parameters
    ----------
    data : bytes
        The object file.
    imports : dict of str to int
        Addresses of the functions that it calls.
    exports : iterable of str
        Symbols whose addresses are wanted.
    """

    def __init__(self, data: bytes, imports: dict[str, int], exports: list[str]) -> None:
        global _jit
        with _lock:
            if _jit is None:
                _initialise()
                target = llvm.Target.from_default_triple()
                machine = target.create_target_machine(reloc="pic", codemodel="small")
                # JITLink places code and its constants in one block of memory, RuntimeDyld where
                # the kernel finds space, perhaps beyond the 32 bits of the small code model.
                _jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
            library = llvm.JITLibraryBuilder().add_object_img(data)
            for name, address in imports.items():
                library.import_symbol(name, address)
            for name in exports:
                library.export_symbol(name)
            self._tracker = library.link(_jit, f"ptx{next(_numbers)}")

    def address(self, symbol: str) -> int:
        """Return the address of an exported symbol."""
        return int(self._tracker[symbol])


@cache
def library_imports() -> dict[str, int]:
    """Return addresses of libc and libm functions with results that are specified exactly."""
    found = {}
    for library, names in (("libm.so.6", _LIBM), ("libc.so.6", _LIBC)):
        loaded = ctypes.CDLL(library)
        for name in names:
            function = getattr(loaded, name, None)
            if function is not None:
                found[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return found


_LIBM = tuple(
    name + suffix
    for name in ("fma", "sqrt", "rint", "nearbyint", "roundeven", "trunc", "floor", "ceil")
    for suffix in ("", "f")
)
_LIBC = ("memset", "memcpy", "memmove", "clock_gettime")
