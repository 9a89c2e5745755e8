"""Write the page of names of numba.cuda, ``docs/numba_cuda_names.md``.

Usage: ``python tools/numba_cuda_names.py`` prints the page; with ``--write`` it goes into the file.
The names come from the installed numba-cuda, those of numba-cuda-mlir from a list in
``tests/data``. The states are in this file; a test calls each name.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dialect_table import kernel_names
from nbrt.compat.numba_cuda.successor import REFUSED, SUPPLIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "FEATURES",
    "MODULES",
    "host_names",
    "main",
    "names_of_module",
    "page",
    "successor_names",
    "type_names",
]

_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "numba_cuda_names.md"
_SUCCESSOR_NAMES = _ROOT / "tests" / "data" / "numba_cuda_mlir_names.txt"

_SAME = "as on CUDA"
_NVVM = "code for a GPU, by numba-cuda's compiler; needs NVVM"
_CODE_OF_GPU = "holds code for a GPU; `link=` refuses it with `NotSupportedError`"

FEATURES = {
    **dict.fromkeys(("Archive", "CUSource", "Cubin", "Fatbin", "LTOIR", "Object"), _CODE_OF_GPU),
    **dict.fromkeys(("LinkableCode", "PTXSource"), _CODE_OF_GPU),
    "BaseCUDAMemoryManager": _SAME,
    "CudaSupportError": _SAME,
    "GetIpcHandleMixin": _SAME,
    "HostOnlyCUDAMemoryManager": _SAME,
    "In": "a copy: writes of the kernel are not seen",
    "InOut": _SAME,
    "IpcHandle": "over shared memory of the machine",
    "KernelRuntimeError": _SAME,
    "MappedMemory": _SAME,
    "MemoryInfo": _SAME,
    "MemoryPointer": "a device address is a host address",
    "Out": _SAME,
    "PinnedMemory": _SAME,
    "Reduce": _SAME,
    "as_cuda_array": "no copy, also for arrays of nbrt and NumPy memory behind the interface",
    "close": _SAME,
    **dict.fromkeys(("compile", "compile_all", "compile_ptx"), _NVVM),
    **dict.fromkeys(
        ("compile_for_current_device", "compile_ptx_for_current_device"),
        f"{_NVVM}; for compute capability 9.0",
    ),
    "cuda_error": "None",
    "current_context": "memory information, `reset`, pending frees, push and pop",
    "declare_device": "accepted; a kernel that calls the function is refused when it compiles",
    "default_stream": "waits for all other streams; its work runs in the calling thread",
    "defer_cleanup": _SAME,
    "detect": "lists the CPU devices",
    "device_array": _SAME,
    "device_array_like": _SAME,
    "event": _SAME,
    "event_elapsed_time": _SAME,
    "external_stream": "takes the handle of a stream of the program",
    "from_cuda_array_interface": _SAME,
    "get_current_device": "properties of the CPU device; compute capability 9.0",
    "gpus": "`NBRT_CPU_DEVICES` devices",
    "guvectorize": _SAME,
    "is_available": "True",
    "is_bfloat16_supported": _SAME,
    "is_cuda_array": _SAME,
    "is_float16_supported": _SAME,
    "is_fp8_supported": _SAME,
    "is_supported_version": "True",
    "jit": "see [its options](guide/numba_cuda.md#options-of-cudajit)",
    "legacy_default_stream": "as `default_stream`",
    "list_devices": "as `gpus`",
    "managed_array": "the same memory on the host and on devices",
    "mapped": "no copy: host memory is device memory",
    "mapped_array": "the same memory on the host and on devices",
    "mapped_array_like": "the same memory on the host and on devices",
    "open_ipc_array": "over shared memory of the machine",
    "per_thread_default_stream": _SAME,
    "pinned": _SAME,
    "pinned_array": _SAME,
    "pinned_array_like": _SAME,
    **dict.fromkeys(("profile_start", "profile_stop", "profiling"), "no effect"),
    "reduce": _SAME,
    "require_context": _SAME,
    "runtime": "the version of the installed CUDA runtime",
    "select_device": _SAME,
    "set_memory_manager": _SAME,
    "stream": _SAME,
    "synchronize": _SAME,
    "to_device": "copies, as on CUDA",
    "vectorize": _SAME,
}
"""The host functions and classes of ``numba.cuda``, with their meaning on CPU devices."""

_INTERNAL = frozenset(
    {"HAS_NUMBA", "alias", "config_default_cc", "implementation", "numba_cuda_default_ptx_cc"}
    | {"prepare_shape_strides_dtype"}
)
"""Names that numba-cuda leaves in the module, and does not document."""

MODULES = {
    "args": "",
    "compiler": _NVVM,
    "cudadrv.devicearray": "over host memory",
    "cudadrv.devices": "",
    "cudadrv.driver": (
        "over functions of nbrt in the place of the CUDA driver's; loading of modules and linking "
        "are refused"
    ),
    "cudadrv.error": "",
    "cudadrv.linkable_code": _CODE_OF_GPU,
    "cudadrv.nvvm": "works where NVVM is installed",
    "cudadrv.runtime": "",
    "decorators": "",
    "deviceufunc": "",
    "dispatcher": "`cuda.jit` returns a subclass of `CUDADispatcher`",
    "errors": "",
    "extending": "registrations apply to the code of CPU devices too",
    "kernels.reduction": "",
    "kernels.transpose": "",
    "random": "the same bits as on CUDA",
    "vectorizers": "",
}
"""The modules below ``numba.cuda`` that programs import, with a remark."""


def host_names() -> list[str]:
    """Return the names of ``numba.cuda`` that are for the host, types of Numba left out."""
    cuda = import_module("numba.cuda")
    kernel = {name.partition(".")[0] for name in kernel_names()}
    vectors = {alias for stub in _vector_stubs() for alias in (stub.__name__, *stub.aliases)}
    left_out = kernel | vectors | set(type_names()) | _INTERNAL
    return sorted(
        name
        for name in dir(cuda)
        if not name.startswith("_")
        and name not in left_out
        and (name == "runtime" or not isinstance(getattr(cuda, name), ModuleType))
    )


def _vector_stubs() -> Iterable[Any]:
    stubs: list[Any] = import_module("numba.cuda.stubs")._vector_type_stubs
    return stubs


def type_names() -> list[str]:
    """Return the names of ``numba.cuda`` that are Numba's types."""
    cuda, types = import_module("numba.cuda"), import_module("numba.cuda.types")
    exported = set(types.__all__)
    return sorted(name for name in dir(cuda) if name in exported)


def names_of_module(name: str) -> list[str]:
    """Return the public functions and classes that a module below ``numba.cuda`` defines."""
    full = f"numba.cuda.{name}"
    module = import_module(full)
    return sorted(
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == full
        and getattr(value, "__name__", key) == key
    )


def successor_names() -> list[str]:
    """Return the names of ``numba_cuda_mlir.cuda`` that numba-cuda's module lacks."""
    cuda = import_module("numba.cuda")
    lines = _SUCCESSOR_NAMES.read_text(encoding="utf-8").splitlines()
    names = {*lines[1:], *REFUSED}  # the package does not import all of its submodules
    return sorted(name for name in names if name not in vars(cuda) or name in SUPPLIED)


def page() -> str:
    """Return the page."""
    version = metadata.version("numba-cuda")
    lines = [
        "# Names of numba.cuda",
        "",
        "Each public name of `numba.cuda`, on CPU devices under "
        "[the drop-in](guide/numba_cuda.md). The list is written",
        f"from numba-cuda {version} by `tools/numba_cuda_names.py`; a test compares it with the "
        "installed package and calls each",
        "name.",
        "",
        "## Host functions and classes",
        "",
        "| Name | On a CPU device |",
        "|---|---|",
        *(f"| `{name}` | {FEATURES[name]} |" for name in host_names()),
        "",
        "## Kernel functions",
        "",
        f"[The dialect](dialect.md) lists {len(kernel_names())} names with their meaning on CPU "
        "devices, those of the modules",
        "`cg`, `fp16`, `bf16`, `fp8`, `libdevice` and `random` among them. All vector types and "
        "their constructors are there.",
        "",
        "## Types",
        "",
        *_wrapped(type_names()),
        "",
        "## Modules",
        "",
        "Modules below `numba.cuda` are numba-cuda's own. These functions and classes are defined "
        "there:",
        "",
        "| Module | Names | On a CPU device |",
        "|---|---|---|",
        *(_module_row(name, remark) for name, remark in MODULES.items()),
        "",
        "## Names of numba-cuda-mlir 0.6.0",
        "",
        "`numba_cuda_mlir.cuda` is the module `numba.cuda`. Names that numba-cuda does not have:",
        "",
        "| Name | On a CPU device |",
        "|---|---|",
        *(f"| `{name}` | {_successor_state(name)} |" for name in successor_names()),
    ]
    return "\n".join(lines) + "\n"


def _wrapped(names: Sequence[str], width: int = 120) -> list[str]:
    lines = [""]
    for name in names:
        word = f"`{name}`" if name == names[-1] else f"`{name}`, "
        if len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _module_row(name: str, remark: str) -> str:
    found = names_of_module(name)
    names = ", ".join(f"`{item}`" for item in found)
    return f"| `{name}` | {names} | {remark or _SAME} |"


def _successor_state(name: str) -> str:
    if name in SUPPLIED:
        module, attribute = SUPPLIED[name]
        return f"`{module}.{attribute}`" if attribute else f"the module `{module}`"
    return f"refused: {REFUSED[name]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description="Write the page of names of numba.cuda.")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    if parser.parse_args(arguments).write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
