"""Replace what CuPy's module of the CUDA runtime publishes by functions of the bridge."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NoReturn

from simulated_cuda.cupy_runtime.library import SOURCES, build_bridge
from simulated_cuda.cupy_runtime.properties import device_properties
from simulated_cuda.cupy_runtime.signatures import (
    SignatureError,
    capsule_types,
    implementations,
    python_signatures,
)
from simulated_cuda.cupy_runtime.trampolines import trampolines

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

__all__ = ["replace_runtime"]

_NOT_SUPPORTED = 801  # cudaErrorNotSupported


def replace_runtime(module: ModuleType) -> None:
    """Let the functions of ``cupy_backends.cuda.api.runtime`` call the driver API.

    It must run before another module of CuPy binds the C functions.

    Raises
    ------
    SignatureError
        If the module has a function that the bridge does not know, or one of another type.
    BuildError
        If the bridge cannot be built.
    """
    text = trampolines(capsule_types(module), python_signatures(module), implementations(SOURCES))
    library = ctypes.PyDLL(str(build_bridge(text)))
    install = library.bridge_install
    install.argtypes = [ctypes.py_object] * 4
    install.restype = ctypes.py_object
    install(module, module.__name__, module.__pyx_capi__, _helpers(module))


def _helpers(module: ModuleType) -> dict[str, Any]:
    """Return the Python objects that the C functions use."""

    def refuse(name: str) -> NoReturn:
        error = module.CUDARuntimeError(_NOT_SUPPORTED)
        error.add_note(f"the simulated CUDA driver has no arrays and textures: runtime.{name}")
        raise error

    def properties(*description: Any) -> dict[str, Any]:
        return device_properties(module.deviceGetAttribute, *description)

    return {
        "CUDARuntimeError": module.CUDARuntimeError,
        "PointerAttributes": module.PointerAttributes,
        "device_properties": properties,
        "pool_fields": _pool_fields(module),
        "refuse": refuse,
    }


def _pool_fields(module: ModuleType) -> Any:
    """Return a function that reads a ``MemPoolProps`` from its pickled form.

    Cython pickles the fields in the order of their names.
    """
    order = (0, 2, 3, 1)  # of allocType, handleType, locationType, devId

    def fields(properties: Any) -> tuple[int, ...]:
        if not isinstance(properties, module.MemPoolProps):
            raise TypeError(f"expected MemPoolProps, got {type(properties).__name__}")
        _, (_, _, state) = properties.__reduce__()
        return tuple(state[k] for k in order)

    if fields(module.MemPoolProps(1, 2, 3, 4)) != (1, 2, 3, 4):
        raise SignatureError("MemPoolProps: expected the fields of CuPy 14 in their order")
    return fields
