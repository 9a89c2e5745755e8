"""The LLVM code of the functions of one thread, before it is optimised."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
from numba.core.codegen import CodeLibrary

from nbrt.backends.cpu.simt.target import LinkedLibrary

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.frontend.resolve import DialectUse

__all__ = ["ThreadLibrary", "callees_raise", "linked_libraries"]

_RAISING = re.compile(r"\bret i32 (?:-1|[1-9]\d*)\b")


class ThreadLibrary(LinkedLibrary):
    """LLVM code of Numba before optimisation, which follows when it is linked into a block.

    The code that it calls is linked once, with the outermost function.
    """

    _shared_module: Any
    _final_module: Any

    use: DialectUse
    """The use of the dialect by the function itself."""

    def __init__(self, codegen: Any, name: str) -> None:
        CodeLibrary.__init__(self, codegen, name)  # Numba's parses an empty module first
        self._linking_libraries: list[Any] = []
        self._final_module = None
        self._shared_module = None

    def add_llvm_module(self, ll_module: Any) -> None:
        """Add a module, which this library owns."""
        if self._final_module is None:
            ll_module.name = self.name
            self._final_module = ll_module
        else:
            self._final_module.link_in(ll_module)

    def finalize(self) -> None:
        """Add nothing more; the libraries that this one calls stay apart."""
        self._raise_if_finalized()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return the module with all that it calls, for linking into several others."""
        if self._shared_module is None:
            whole = self._final_module.clone()
            for library in linked_libraries(self, through=ThreadLibrary):
                is_thread = isinstance(library, ThreadLibrary)
                module = library._final_module if is_thread else library._get_module_for_linking()
                whole.link_in(module, preserve=True)
            for function in whole.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = "linkonce_odr"
            self._shared_module = whole
        return self._shared_module


def linked_libraries(library: Any, *, through: type[Any] = CodeLibrary) -> list[Any]:
    """Return the libraries that a library and its own call, each once.

    `through` is the class of those whose own libraries are listed as well.
    """
    found: dict[Any, None] = {}
    pending = list(reversed(library._linking_libraries))
    while pending:
        current = pending.pop()
        if current not in found:
            found[current] = None
            if isinstance(current, through):
                pending += reversed(current._linking_libraries)
    return list(found)


def callees_raise(library: Any) -> bool:
    """Return whether code that a library calls contains an exception of Python's."""
    libraries = linked_libraries(library, through=LinkedLibrary)
    return any(_RAISING.search(str(each._final_module)) for each in libraries)
