"""The callbacks by which the driver loads PTX (SimTranslator of driver/threads.h)."""

from __future__ import annotations

import ctypes
import itertools
import sys
import traceback
from ctypes import POINTER, Structure, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any

from simulated_cuda.ptx.errors import PtxError

if TYPE_CHECKING:
    from simulated_cuda.ptx.loading import LoadedModule

__all__ = ["KernelInfo", "register"]

_SUCCESS = 0
_INVALID_VALUE = 1
_INVALID_PTX = 218
_NOT_FOUND = 500
_UNKNOWN = 999
_MAX_PARAMETERS = 512


class _Parameter(Structure):
    _fields_ = (("offset", c_uint32), ("size", c_uint32))


class KernelInfo(Structure):
    """SimKernelInfo."""

    _fields_ = (
        ("entry", c_void_p),
        ("parameter_count", c_uint32),
        ("parameter_bytes", c_uint32),
        ("parameters", _Parameter * _MAX_PARAMETERS),
        ("static_shared", c_uint32),
        ("local_bytes", c_uint32),
        ("waits", c_uint32),
        ("spins", c_uint32),
        ("max_threads", c_uint32),
        ("required_threads", c_uint32 * 3),
        ("approximates", c_uint32),
        ("stack_bytes", c_uint32),
    )


_Load = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_int, POINTER(c_void_p), c_void_p, c_size_t)
_Kernel = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(KernelInfo))
_Global = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t))
_Kernels = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
_Unload = ctypes.CFUNCTYPE(c_int, c_void_p)


class _Translator(Structure):
    _fields_ = (
        ("load", _Load),
        ("kernel", _Kernel),
        ("global_", _Global),
        ("kernels", _Kernels),
        ("unload", _Unload),
    )


class Translator:
    """The modules that a library has loaded, and its callbacks.

    Parameters
    ----------
    library : ctypes.CDLL
        The library of the driver, which exports the functions of driver/threads.h.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._driver: dict[str, int] = {}
        self._modules: dict[int, LoadedModule] = {}
        self._numbers = itertools.count(1)
        self.callbacks = _Translator(
            _Load(self._load),
            _Kernel(self._kernel),
            _Global(self._global),
            _Kernels(self._kernels),
            _Unload(self._unload),
        )

    def _load(
        self, ptx: int, size: int, target: int, module: Any, error: int, error_size: int
    ) -> int:
        from simulated_cuda.ptx.loading import driver_functions, load

        try:
            text = ctypes.string_at(ptx, size) if size else ctypes.string_at(ptx)
            self._driver = self._driver or driver_functions(self._library)
            loaded = load(text, self._driver)
        except PtxError as failure:
            _write_text(error, error_size, str(failure))
            return _INVALID_PTX
        except Exception as failure:  # noqa: BLE001 - no exception may pass through C
            traceback.print_exc(file=sys.stderr)
            _write_text(error, error_size, f"{type(failure).__name__}: {failure}")
            return _UNKNOWN
        number = next(self._numbers)
        self._modules[number] = loaded
        module[0] = number
        return _SUCCESS

    def _kernel(self, module: int, name: bytes, info: Any) -> int:
        loaded = self._modules.get(module)
        if loaded is None:
            return _INVALID_VALUE
        facts = loaded.kernels.get(name.decode())
        if facts is None:
            return _NOT_FOUND
        _fill(info[0], facts, loaded.address(name.decode()))
        return _SUCCESS

    def _global(self, module: int, name: bytes, address: Any, size: Any) -> int:
        loaded = self._modules.get(module)
        if loaded is None:
            return _INVALID_VALUE
        bytes_ = loaded.variables.get(name.decode())
        if bytes_ is None:
            return _NOT_FOUND
        if address:
            address[0] = loaded.address(name.decode())
        if size:
            size[0] = bytes_
        return _SUCCESS

    def _kernels(self, module: int, names: int, size: int) -> int:
        loaded = self._modules.get(module)
        if loaded is None:
            return _INVALID_VALUE
        text = "\n".join(loaded.kernels)
        if len(text.encode()) >= size:
            return _INVALID_VALUE
        _write_text(names, size, text)
        return _SUCCESS

    def _unload(self, module: int) -> int:
        return _SUCCESS if self._modules.pop(module, None) is not None else _INVALID_VALUE


def _fill(info: KernelInfo, facts: dict[str, Any], entry: int) -> None:
    info.entry = entry
    info.parameter_count = len(facts["parameters"])
    for index, (offset, size) in enumerate(facts["parameters"]):
        info.parameters[index].offset = offset
        info.parameters[index].size = size
    info.required_threads[:] = facts["required_threads"]
    for name in (
        *("parameter_bytes", "static_shared", "local_bytes", "waits", "spins"),
        *("max_threads", "approximates", "stack_bytes"),
    ):
        setattr(info, name, int(facts[name]))


def _write_text(address: int, size: int, text: str) -> None:
    if address and size:
        data = text.encode()[: size - 1] + b"\0"
        ctypes.memmove(address, data, len(data))


_registered: list[Translator] = []


def register(library: ctypes.CDLL) -> Translator:
    """Set the callbacks of the library of the driver.

    Parameters
    ----------
    library : ctypes.CDLL
        The loaded library.

    Returns
    -------
    Translator
        It lives until the process ends.
    """
    translator = Translator(library)
    library.sim_set_translator.argtypes = [c_void_p]
    library.sim_set_translator.restype = None
    library.sim_set_translator(ctypes.byref(translator.callbacks))
    _registered.append(translator)
    return translator
