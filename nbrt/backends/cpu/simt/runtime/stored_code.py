"""Compile results as entries of the code store, and back.

An entry has the object code, the symbols of the process that it refers to, the names of its
functions, and the environments of Numba with their constants. Loading resolves symbols and links;
it pickles nothing, imports nothing and runs no code of the entry.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite.binding.object_file import ObjectFileRef
from numba import _dynfunc
from numba.core import types
from numba.core.compiler import CompileResult, compile_result
from numba.core.environment import Environment, lookup_environment

from nbrt.backends.code_store.entry import Entry, EntryError
from nbrt.backends.code_store.plain_values import decode, encode
from nbrt.backends.cpu.simt.exception_references import class_of, resolve, tokens_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Exceptions = Callable[[], list[type[BaseException]]]
    """Returns the exception classes that a kernel captures, in the same order in all processes."""

__all__ = ["StoredFunction", "entry_of", "result_of", "target_of"]

_OBJECT = "object"


class StoredFunction(NamedTuple):
    """The names of a function from an entry: what a loaded result has as descriptor.

    Attributes
    ----------
    qualname : str
        The name of the Python function.
    llvm_func_name, llvm_cpython_wrapper_name : str
        Symbols of the function in Numba's calling convention, and of its wrapper for Python.
    """

    qualname: str
    llvm_func_name: str
    llvm_cpython_wrapper_name: str


class _LoadedLibrary:
    """Object code in the JIT engine of a target; a library of Numba that has no LLVM module."""

    def __init__(self, codegen: Any, content: bytes) -> None:
        self.codegen = codegen
        engine = codegen._engine
        engine._ee.add_object_file(ObjectFileRef.from_data(content))
        engine.finalize_object()

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function of the library that was loaded last."""
        return int(self.codegen._engine.get_function_address(name))


def entry_of(
    result: Any, name: str, signature: str, versions: Mapping[str, str], exceptions: Exceptions
) -> Entry:
    """Return the entry of a compile result.

    Parameters
    ----------
    result : numba CompileResult
        The compiled entry function.
    name, signature : str
        The kernel, for tables.
    versions : Mapping[str, str]
        As of `Entry`.
    exceptions : callable
        Returns the exception classes that the kernel captures.

    Raises
    ------
    ValueError
        If an environment has a constant that is no plain value, or the code raises an exception
        that the kernel does not capture.
    """
    if not all(environment.can_cache() for environment in result.referenced_envs):
        raise EntryError("a function has an environment without a module")
    if result.library.has_dynamic_globals:  # arrays of 1 MB and those that are not contiguous
        raise EntryError("the code contains addresses of this process")
    described = result.fndesc
    _, kind, (code, _) = result.library.serialize_using_object_code()
    if kind != _OBJECT:
        raise EntryError(f"expected object code, got {kind}")
    own = result.environment
    environments = [own, *(env for env in result.referenced_envs if env is not own)]
    target, features = target_of(result.target_context)
    data = {
        "symbols": _symbols(result.library),
        "function": [
            described.qualname,
            described.llvm_func_name,
            described.llvm_cpython_wrapper_name,
        ],
        "module": described.modname,
        "exceptions": _exceptions_in(code, exceptions),
        "environments": [
            [env.env_name, env.globals["__name__"], encode(tuple(env.consts))]
            for env in environments
        ],
    }
    return Entry(
        "cpu",
        name,
        signature,
        target,
        features,
        versions=versions,
        data=data,
        sections={_OBJECT: bytes(code)},
    )


def target_of(target: Any) -> tuple[str, str]:
    """Return the processor that a target of Numba compiles for, and the features it may use."""
    triple, cpu, features = target.codegen().magic_tuple()
    return f"{triple.partition('-')[0]}-{cpu}", str(features)


def result_of(
    entry: Entry, arguments: tuple[Any, ...], target: Any, exceptions: Exceptions
) -> CompileResult | None:
    """Link the code of an entry; return its compile result, or None if it cannot be used.

    A symbol may be unknown, or the code of this process raise another exception of the same name.

    Parameters
    ----------
    entry : Entry
        An entry of `entry_of`.
    arguments : tuple of numba types
        The types of the arguments of the entry function.
    target : numba target context
        The target to load the code into.
    exceptions : callable
        Returns the exception classes that the kernel captures.

    Raises
    ------
    IndexError, KeyError, TypeError, ValueError
        If the entry is not one of `entry_of`.
    """
    data = entry.data
    function = StoredFunction(*data["function"])
    stored = [(env, module, decode(consts)) for env, module, consts in data["environments"]]
    symbols = data["symbols"]
    if not _are_known(symbols):
        target.refresh()  # registers all functions that Numba's code may call
        if not _are_known(symbols):
            return None
    if data["exceptions"]:
        captured = exceptions()
        if not all(resolve(token, captured[index]) for token, index in data["exceptions"]):
            return None
    environments = tuple(_environment(*each) for each in stored)
    library = _LoadedLibrary(target.codegen(), entry.sections[_OBJECT])
    for environment in environments:
        _set_environment(library, environment)
    address = library.get_pointer_to_function(function.llvm_cpython_wrapper_name)
    if not address:
        raise EntryError(f"the code has no function {function.llvm_cpython_wrapper_name}")
    entry_point = _dynfunc.make_function(
        sys.modules[data["module"]],
        function.qualname.rpartition(".")[2],
        f"compiled wrapper for {function.qualname!r}",
        address,
        environments[0],
        (library,),
    )
    return compile_result(
        target_context=target,
        typing_context=target.typing_context,
        library=library,
        environment=environments[0],
        entry_point=entry_point,
        fndesc=function,
        signature=types.none(*arguments),
        objectmode=False,
        lifted=(),
        reload_init=(),
        referenced_envs=environments,
    )


def _symbols(library: Any) -> list[str]:
    """Return the symbols of the process that compiled code refers to."""
    module = library._final_module
    values = (*module.functions, *module.global_variables)
    return [
        value.name
        for value in values
        if value.is_declaration and not value.name.startswith("llvm.")
    ]


def _exceptions_in(code: bytes, exceptions: Exceptions) -> list[tuple[str, int]]:
    """Return the references to exception classes in code, and their numbers in the kernel."""
    tokens = tokens_in(code)
    captured = exceptions() if tokens else []
    return [(token, captured.index(class_of(token))) for token in tokens]


def _are_known(symbols: list[str]) -> bool:
    # LLVM ends the process if it links a symbol that does not exist.
    return all(llvm.address_of_symbol(name) is not None for name in symbols)


def _environment(name: str, module: str, constants: tuple[object, ...]) -> Any:
    """Return the environment of a function: that of the process, or a new one."""
    environment = lookup_environment(name)
    if environment is None:
        # The module is not imported: compiled code reads constants only.
        names = vars(sys.modules[module]) if module in sys.modules else {"__name__": module}
        environment = Environment(names)
        environment.consts[:] = constants
        environment.env_name = name
        Environment._memo[name] = environment
    elif tuple(environment.consts) != constants:
        raise EntryError(f"the process has another environment {name}")
    return environment


def _set_environment(library: _LoadedLibrary, environment: Any) -> None:
    address = library.codegen._engine.get_global_value_address(environment.env_name)
    if not address:
        raise EntryError(f"the code has no variable {environment.env_name}")
    ctypes.c_void_p.from_address(address).value = id(environment)
