"""Pickling of kernels by value, for a process that imports none of the program's modules.

A kernel refers to functions, device functions, constants, enums and modules. All of them are
pickled with their contents, except those of the standard library, NumPy and Numba. Of a module of
the program, the names that the code may read are pickled. The compile key of the copy is that of
the original, which the worker process checks.
"""

from __future__ import annotations

import enum
import io
import linecache
import os
import sys
import threading
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numba import cloudpickle
from numba.core.registry import CPUDispatcher
from numba.core.serialize import NumbaPickler

from nbrt.backends.captures import is_device_function
from nbrt.backends.declared_signatures import declared_signatures
from nbrt.backends.dispatchers import new_dispatcher
from nbrt.backends.stable_modules import is_stable_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.captures import Captures

__all__ = ["dumps", "loaded", "pickled", "unpickled"]

_lock = threading.Lock()  # the registry of cloudpickle is global


def dumps(captures: Captures, *rest: Any) -> bytes:
    """Pickle the function of a kernel with its captured values, and further objects.

    Parameters
    ----------
    captures : Captures
        The kernel.
    *rest
        Objects that are pickled with it, such as the types of its arguments.
    """
    modules = sorted({function.__module__ or "" for function in captures.functions})
    with io.BytesIO() as buffer, _lock:
        contents = captures.frozen, _sources(captures), modules, rest
        _Pickler(buffer, captures.names).dump(contents)
        return buffer.getvalue()


@contextmanager
def loaded(payload: bytes) -> Iterator[tuple[Any, ...]]:
    """Return the function and the objects of `dumps`, which may be compiled in the block.

    Messages of the compiler show the lines of files that this process does not have. Compilers
    import the module of a function: empty modules take the place of those of the program.

    Parameters
    ----------
    payload : bytes
        The result of `dumps`.

    Yields
    ------
    tuple
        The function, and the further objects.
    """
    function, sources, modules, rest = cloudpickle.loads(payload)
    for file, lines in sources.items():
        linecache.cache[file] = (len("".join(lines)), None, lines, file)
    absent = [name for name in modules if name not in sys.modules]
    sys.modules.update({name: types.ModuleType(name) for name in absent})
    try:
        yield function, *rest
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def pickled(value: object) -> bytes:
    """Pickle an object for a process that can import the modules of the program.

    What such a process finds by name goes by name, everything else by value.
    """
    with io.BytesIO() as buffer:
        _NamePickler(buffer, protocol=5).dump(value)
        return buffer.getvalue()


def unpickled(payload: bytes) -> Any:
    """Return the object of `pickled`."""
    return cloudpickle.loads(payload)


def _sources(captures: Captures) -> dict[str, list[str]]:
    """Return the lines of files that are not on disk, such as notebook cells, for errors."""
    files = {function.__code__.co_filename for function in captures.functions}
    return {
        file: lines
        for file in files
        if not os.path.exists(file) and (lines := linecache.getlines(file))
    }


class _Pickler(NumbaPickler):  # type: ignore[misc]  # numba has no types
    def __init__(self, buffer: io.BytesIO, names: frozenset[str]) -> None:
        super().__init__(buffer, protocol=5)
        self._names = names

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object; NotImplemented: the usual one."""
        if isinstance(obj, types.ModuleType):
            if is_stable_module(obj.__name__):
                return super().reducer_override(obj)
            scope = vars(obj)
            read = {name: scope[name] for name in sorted(self._names & scope.keys())}
            return types.ModuleType, (obj.__name__,), read
        if is_device_function(obj):
            parts = (_dispatcher_class(obj), obj.py_func, obj.targetoptions)
            return new_dispatcher, (*parts, declared_signatures(obj))
        if isinstance(obj, (types.FunctionType, enum.EnumMeta)) or (
            isinstance(obj, type) and issubclass(obj, (tuple, BaseException))
        ):
            return self._by_value(obj)
        return super().reducer_override(obj)

    def _by_value(self, obj: Any) -> Any:
        name = getattr(obj, "__module__", None)
        module = sys.modules.get(name) if isinstance(name, str) else None
        if (
            module is None
            or is_stable_module(name)
            or module.__name__.partition(".")[0] == "nbrt"
            or module.__name__ in cloudpickle.list_registry_pickle_by_value()
        ):
            return super().reducer_override(obj)
        # The reduction is computed here; what it contains is pickled after the end of this block.
        cloudpickle.register_pickle_by_value(module)
        try:
            return super().reducer_override(obj)
        finally:
            cloudpickle.unregister_pickle_by_value(module)


class _NamePickler(NumbaPickler):  # type: ignore[misc]  # numba has no types
    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object; NotImplemented: the usual one."""
        # numba-cuda pickles a dispatcher without its explicit signatures.
        is_for_cuda = is_device_function(obj) and not isinstance(obj, CPUDispatcher)
        if is_for_cuda and (declared := declared_signatures(obj)):
            return new_dispatcher, (type(obj), obj.py_func, obj.targetoptions, declared)
        return super().reducer_override(obj)


def _dispatcher_class(dispatcher: Any) -> Any:
    """Return the class of a jitted function; None for objects of the program, such as kernels."""
    kind = type(dispatcher)
    return kind if is_stable_module(kind.__module__) else None
