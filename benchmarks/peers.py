"""Peers that may be missing: each is found, or there is a line that says why it is not."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import version_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["OpenCL", "find", "find_taichi", "opencl_devices"]

_PLATFORMS = ("Portable Computing Language", "Intel(R) OpenCL")
_SYSTEM_DRIVERS = Path("/etc/OpenCL/vendors")
_INTEL = Path(sys.prefix) / "lib" / "libintelocl.so"


def find(module: str, package: str | None = None) -> tuple[ModuleType | None, str]:
    """Return (the module, its name with version), or (None, why not)."""
    package = package or module
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = importlib.import_module(module)
    except ModuleNotFoundError:
        return None, "not installed"
    except Exception as error:  # noqa: BLE001  # a broken peer must not stop the others
        return None, f"does not import: {type(error).__name__}: {error}"
    return found, f"{package} {version_of(package) or ''}".strip()


def find_taichi() -> tuple[ModuleType | None, str]:
    """Return (Taichi or its maintained fork Quadrants, its name), or (None, why not)."""
    for name in ("Quadrants", "Taichi"):
        found, reason = find(name.lower())
        if found is not None:
            return found, name
    return None, reason


class OpenCL:
    """One CPU device: a queue, and how to build a kernel."""

    def __init__(self, module: Any, device: Any) -> None:
        self.module = module
        words = device.platform.version.split()
        if "PoCL" in words:
            self.name = f"PoCL {words[words.index('PoCL') + 1]}"
        else:
            self.name = f"Intel OpenCL {version_of('intel-opencl-rt') or ''}".strip()
        self._context = module.Context([device])
        self.queue = module.CommandQueue(self._context)

    def kernel(self, source: str, name: str) -> Any:
        """Build one kernel."""
        program = self.module.Program(self._context, source).build(options=["-cl-mad-enable"])
        return self.module.Kernel(program, name)

    def launcher(
        self, kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]
    ) -> Callable[[], None]:
        """Return what launches a grid of blocks and waits for it."""
        size = tuple(g * b for g, b in zip(grid, block, strict=True))
        kernel.set_args(*arguments)
        enqueue, queue = self.module.enqueue_nd_range_kernel, self.queue

        def call() -> None:
            enqueue(queue, kernel, size, block)
            queue.finish()

        # A kernel does not keep its buffers alive.
        call.arguments = arguments  # type: ignore[attr-defined]
        return call

    def over(self, array: Any) -> Any:
        """Return a buffer over a NumPy array's own memory."""
        flags = self.module.mem_flags
        return self.module.Buffer(
            self._context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=array
        )


def opencl_devices() -> tuple[list[OpenCL], str]:
    """Return the devices of every PoCL and of Intel's runtime, and why there is none if so."""
    _announce_intel()
    module, reason = find("pyopencl")
    if module is None:
        return [], f"pyopencl {reason}"
    try:
        platforms = [each for each in module.get_platforms() if each.name in _PLATFORMS]
        found = [OpenCL(module, device) for each in platforms for device in each.get_devices()]
    except Exception as error:  # noqa: BLE001  # a broken driver is one more kind of missing
        return [], f"pyopencl finds no platform: {error}"
    return (
        found,
        "not installed (PoCL: conda-forge has the current one, PyPI 3.0, Debian and Ubuntu theirs)",
    )


@functools.cache
def _announce_intel() -> None:
    """Show the OpenCL loader the runtime from Intel's wheel, which registers itself nowhere.

    A folder of drivers replaces the system's, so the system's are listed in it again.
    """
    if not _INTEL.exists() or "OCL_ICD_VENDORS" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="nbrt-opencl-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for driver in _SYSTEM_DRIVERS.glob("*.icd"):
        shutil.copy(driver, folder)
    (folder / "intel.icd").write_text(f"{_INTEL}\n", encoding="utf-8")
    os.environ["OCL_ICD_VENDORS"] = str(folder)
