"""The target of Numba that kernels compile for: the CPU, with the functions that kernels can call.

Numba's own CPU target registers its library of functions before it compiles anything: lists, sets,
linear algebra with SciPy, generators. This target registers what the CUDA target has as well, and
the rest when a kernel does not compile without it. Its contexts are separate from those of Numba's
CPU target, so that the types and operators that the dialect adds are not seen by other code.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import weakref
from contextvars import ContextVar
from functools import cached_property
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

from numba.core import cpu, errors, types, typing
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.decorators import jit
from numba.core.descriptors import TargetDescriptor
from numba.core.imputils import Registry
from numba.core.imputils import builtin_registry as implementations
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_override,
    target_registry,
)
from numba.core.typing.templates import builtin_registry as typings

from nbrt.backends.cpu.simt.code_options import fast_math_of_caller
from nbrt.backends.cpu.simt.exception_references import ReferringAPI
from nbrt.backends.cpu.simt.extensions import Extensions, is_for_other_target, type_of_constant
from nbrt.backends.cpu.simt.math_functions import INTRINSICS
from nbrt.backends.cpu.simt.processor import processor
from nbrt.config import settings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "KernelLibrary",
    "LinkedDispatcher",
    "LinkedLibrary",
    "SimtDispatcher",
    "argument_types_of_caller",
    "extensions",
    "of_program",
    "register_whole_library",
    "simt_target",
]

_NAME = "nbrt-simt"

extensions = Extensions(_NAME)
"""The program's registrations for CUDA."""


class _SimtTypingContext(typing.Context):
    """The types of names and functions in kernels."""

    _seen = 0

    def init(self) -> None:
        """Start without known types."""
        self._names: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._signatures: dict[Any, Any] = {}

    def refresh(self) -> None:
        """Load new registrations with Numba and for CUDA, if there are any."""
        if self._seen != self._count():
            extensions.update()
            with target_override(_NAME):
                super().refresh()
            self._seen = self._count()
            self._names.clear()
            self._signatures.clear()

    def _count(self) -> int:
        return _count(typings, *self._registries) + extensions.count()

    def load_additional_registries(self) -> None:
        """Register Numba's functions, and the program's for CUDA."""
        super().load_additional_registries()
        self.install_registry(extensions.typings)

    def insert_function(self, ft: Any) -> None:
        """Add a template, unless it is an overload that the CUDA target does not see."""
        if not is_for_other_target(type(ft)):
            super().insert_function(ft)

    def insert_attributes(self, at: Any) -> None:
        """Add a template of attributes, unless the CUDA target does not see it."""
        if not is_for_other_target(type(at)):
            super().insert_attributes(at)

    def _insert_global(self, gv: Any, gty: Any) -> None:
        if isinstance(gty, types.Function) and any(map(is_for_other_target, gty.templates)):
            known = tuple(each for each in gty.templates if not is_for_other_target(each))
            if not known:
                return
            gty = types.Function(known)
        super()._insert_global(gv, gty)

    def resolve_value_type(self, val: Any) -> Any:
        """Return the type of a value in code, and for a jitted function of its copy."""
        if type(val) not in (BuiltinFunctionType, type):
            try:
                return super().resolve_value_type(_for_kernels(val))
            except ValueError:
                typ = type_of_constant(val)
                if typ is None:
                    raise
                return typ
        known = self._names.get(val)
        if known is None:
            known = self._names[val] = super().resolve_value_type(val)
        return known

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call; those of operators on numbers are looked up once.

        Numba tries up to ten templates for each operator of each function.
        """
        if kws or not _is_on_numbers(func, args):
            return super().resolve_function_type(func, args, kws)
        key = func, tuple(args)
        known = self._signatures.get(key)
        if known is None:
            known = super().resolve_function_type(func, args, kws)
            # Numba turns the arguments of `min(1, 2)` into one tuple. The code of such a call is
            # looked up for each function, by a key that all targets of Numba share and that typing
            # the call sets: each function types it again, as the CPU target may have in between.
            if known is not None and tuple(known.args) == key[1]:
                self._signatures[key] = known
        return known

    def resolve_value_type_prefer_literal(self, value: Any) -> Any:
        """Return the same, as a literal type if there is one."""
        if type(value) not in types.Literal.ctor_map:
            return self.resolve_value_type(value)
        return super().resolve_value_type_prefer_literal(value)


class _Registered:
    """Registrations of a target context; its copies for compiler options share them."""

    def __init__(self) -> None:
        self.generated = Registry(_NAME)
        """The code that Numba makes for overloads and intrinsics."""

        self.seen = 0
        """Registrations at the last refresh."""

        self.whole_library = False
        """Whether all functions of Numba's CPU target are registered."""

        self.codegen: Any = None
        """What makes machine code; None before the first kernel."""

        self.operators: dict[Any, Any] = {}
        """The code of operators on numbers."""


class KernelLibrary(JITCodeLibrary):
    """LLVM code of kernels, which is optimised as a whole.

    Numba first runs passes on each function. Those of the whole module begin with the same ones,
    and the first take a tenth of the time of a small kernel.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


class LinkedLibrary(KernelLibrary):
    """LLVM code for linking into kernels.

    Numba makes machine code of each function for Python, too. Kernels need none, and it takes half
    of the time of a small function.
    """

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _NoAddress:
    """Key of a function without machine code, for the functions that call it."""


class _NamedCodegen(JITCPUCodegen):
    """Generates code for the CPU of ``NBRT_CPU``, in another engine than Numba's."""

    def _get_host_cpu_name(self) -> str:
        return processor().name

    def _get_host_cpu_features(self) -> str:
        return processor().features


class _SimtContext(cpu.CPUContext):
    """The code of functions that kernels call."""

    convention: Any = None
    """The calling convention for one kernel; None for Numba's."""

    @property
    def call_conv(self) -> Any:
        """The calling convention."""
        return self.convention or super().call_conv

    def init(self) -> None:
        """Share the word size of Numba's CPU target."""
        self.is32bit = cpu_target.target_context.is32bit
        self.registered = _Registered()
        self.data_model_manager = extensions.models
        self.install_registry(self.registered.generated)  # Numba uses the first registry

    @property
    def _internal_codegen(self) -> Any:
        """Numba's code generator, with its engine, or one for the CPU of ``NBRT_CPU``.

        The first kernel makes it, not the first import, so that the setting holds.
        """
        if self.registered.codegen is None:
            if settings().cpu is None:
                found: Any = copy.copy(cpu_target.target_context.codegen())
            else:
                found = _NamedCodegen(_NAME)
            found._library_class = LinkedLibrary
            self.registered.codegen = found
        return self.registered.codegen

    def mangler(self, name: str, types: Any, *, abi_tags: Any = (), uid: Any = None) -> str:
        """Return a symbol that no other process gives to its code.

        Code from the disk cache keeps its symbols, and LLVM resolves those that are not inlined by
        name: Numba's own names count the functions of a process.
        """
        return str(super().mangler(name, types, abi_tags=(*abi_tags, _process_tag), uid=uid))

    def get_python_api(self, builder: Any) -> ReferringAPI:
        """Return the functions of Python for the code of a builder."""
        return ReferringAPI(self, builder)

    def refresh(self) -> None:
        """Load new registrations with Numba and for CUDA, if there are any."""
        if self.registered.seen == self._count():
            self.typing_context.refresh()
            return
        extensions.update()
        with target_override(_NAME):
            super().refresh()
        self.install_registry(self.registered.generated)
        self.registered.seen = self._count()
        self.registered.operators.clear()

    def _count(self) -> int:
        return _count(implementations, *self._registries) + extensions.count()

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """Return the code of a function; that of operators on numbers is looked up once."""
        if not _is_on_numbers(fn, sig.args):
            return super().get_function(fn, sig, _firstcall)
        key = fn, sig.args
        known = self.registered.operators.get(key)
        if known is None:
            known = super().get_function(fn, sig, _firstcall)
            self.registered.operators[key] = known
        bound = object.__new__(type(known))
        vars(bound).update(vars(known), _context=self, _sig=sig.as_function())
        return bound

    def load_additional_registries(self) -> None:
        """Register the functions that kernels usually call, and the program's for CUDA."""
        self.install_registry(extensions.lowerings)
        if self.registered.whole_library:
            super().load_additional_registries()
            return
        from numba.core import entrypoints, optional  # noqa: F401
        from numba.cpython import (
            builtins,  # noqa: F401
            charseq,  # noqa: F401
            cmathimpl,
            enumimpl,  # noqa: F401
            iterators,  # noqa: F401
            mathimpl,
            numbers,  # noqa: F401
            printimpl,
            rangeobj,  # noqa: F401
            slicing,  # noqa: F401
            tupleobj,  # noqa: F401
            unicode,  # noqa: F401
        )
        from numba.misc import literal  # noqa: F401
        from numba.np import arrayobj, npdatetime, npyimpl  # noqa: F401
        from numba.np.unsafe import ndarray  # noqa: F401

        with contextlib.suppress(ImportError):  # part of `boxing` before Numba 0.66
            from numba.np.types import datetime_registry  # noqa: F401

        for module in (cmathimpl, mathimpl, npyimpl, printimpl):
            self.install_registry(module.registry)
        entrypoints.init_all()

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        """Return the function for Python, or a key if the code is for linking only."""
        if isinstance(library, LinkedLibrary):
            return _NoAddress()
        return super().get_executable(library, fndesc, env)

    def post_lowering(self, mod: Any, library: Any) -> None:
        """Link the functions that count references into code that uses them."""
        for name in INTRINSICS:
            if name in mod.globals:  # LLVM then knows that it sets no errno, and uses instructions
                mod.globals[name].attributes.add("readnone")
        if self.enable_nrt or self.is32bit:
            rtsys.initialize(self)
            super().post_lowering(mod, library)
        elif self.fastmath:
            cpu.fastmathpass.rewrite_module(mod, self.fastmath)


_process_tag = ""


def _new_process_tag() -> None:
    global _process_tag
    _process_tag = os.urandom(8).hex()


_new_process_tag()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_new_process_tag)


def _is_on_numbers(function: Any, arguments: Any) -> bool:
    """Return whether a call is an operator, or a conversion to a type, of numbers."""
    if type(function) is types.Function:
        function = function.typing_key
    if type(function) not in (BuiltinFunctionType, types.NumberClass):
        return False
    return all(isinstance(each, types.Number | types.Boolean) for each in arguments)


def _count(*registries: Any) -> int:
    """Return the number of registrations of all kinds."""
    count = 0
    for registry in registries:
        for member in vars(registry).values():
            if type(member) is list:
                count += len(member)
    return count


class _SimtTarget(TargetDescriptor):
    """The contexts of kernels."""

    options = cpu.CPUTargetOptions

    @cached_property
    def typing_context(self) -> Any:
        """The types of names and functions in kernels."""
        return _SimtTypingContext()

    @cached_property
    def target_context(self) -> Any:
        """The code of functions that kernels call."""
        return _SimtContext(self.typing_context, _NAME)


simt_target = _SimtTarget(_NAME)


def register_whole_library() -> bool:
    """Register all functions of Numba's CPU target; return whether any were missing."""
    context = simt_target.target_context
    if context.registered.whole_library:
        return False
    context.registered.whole_library = True
    context.registered.seen = 0
    context.refresh()
    return True


class SimtDispatcher(CPUDispatcher):
    """Compiles a function for `simt_target`."""

    targetdescr = simt_target

    def compile(self, sig: Any) -> Any:
        """Compile for argument types, with the overloads of this target."""
        with target_override(_NAME):
            try:
                return super().compile(sig)
            except errors.NumbaError:
                if not simt_target.target_context.registered.whole_library:
                    self._compiler._failed_cache.clear()  # it may compile with all of Numba
                raise


argument_types_of_caller: ContextVar[tuple[Any, ...]] = ContextVar("argument types", default=())
"""The types of the arguments of the function that compiles, if it may call functions of kernels."""


class LinkedDispatcher(SimtDispatcher):
    """Compiles a function that kernels call, and Python never."""

    def __init__(
        self,
        py_func: Any,
        locals: Any = None,
        targetoptions: Any = None,
        **options: Any,
    ) -> None:
        wrapped = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        super().__init__(py_func, locals, {**(targetoptions or {}), **wrapped}, **options)

    def compile(self, sig: Any) -> Any:
        """Compile for argument types."""
        token = argument_types_of_caller.set(())
        try:
            return super().compile(sig)
        finally:
            argument_types_of_caller.reset(token)

    def add_overload(self, cres: Any) -> None:
        """Store a compiled version for other compiled code only."""
        self.overloads[tuple(cres.signature.args)] = cres


_copies: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], LinkedDispatcher]] = (
    weakref.WeakKeyDictionary()
)
"""Jitted functions of Numba's CPU target -> their copies for kernels, by the flags of callers."""


def _for_kernels(value: Any) -> Any:
    """Return the copy for kernels if the value is a function jitted for Numba's CPU target."""
    if type(value) is not CPUDispatcher:
        return value
    copies, flags = _copies.setdefault(value, {}), fast_math_of_caller()
    if flags not in copies:
        options = dict(value.targetoptions)
        copies[flags] = LinkedDispatcher(value.py_func, value.locals, options)
    return copies[flags]


class _Simt(CPU):
    """The target in the tables of Numba, by which it finds overloads and compiles them."""


of_program: list[Callable[[Any, dict[str, Any]], Any]] = []
"""Functions that return the dispatcher of an overload's implementation with options, or None."""


def _compile_implementation(**options: Any) -> Callable[[Any], Any]:
    """Return the decorator that Numba applies to the implementations of overloads."""

    def decorated(function: Any) -> Any:
        for compiler in of_program:
            dispatcher = compiler(function, options)
            if dispatcher is not None:
                return dispatcher
        return jit(_target=_NAME, **options)(function)

    return decorated


target_registry[_NAME] = _Simt
dispatcher_registry[_Simt] = LinkedDispatcher
jit_registry[_Simt] = _compile_implementation
