"""Peers that may be missing: each is found, or there is a line that says why it is not."""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import TYPE_CHECKING, Any

from benchmarks.environment import version_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["OpenCL", "find", "opencl_devices"]

_POCL = "Portable Computing Language"


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


class OpenCL:
    """One PoCL device: a queue, and how to build a kernel."""

    def __init__(self, module: Any, device: Any) -> None:
        self.module = module
        self.name = f"PoCL {device.platform.version.split()[-1].split(',')[0]}"
        text = device.platform.version
        if "PoCL" in text or "pocl" in text:
            words = text.split()
            self.name = "PoCL " + words[[word.lower() for word in words].index("pocl") + 1]
        self._context = module.Context([device])
        self.queue = module.CommandQueue(self._context)

    def kernel(self, source: str, name: str) -> Any:
        """Build one kernel."""
        program = self.module.Program(self._context, source).build(options=["-cl-mad-enable"])
        return self.module.Kernel(program, name)

    def launcher(
        self, kernel: Any, n: int, block: int, arguments: tuple[Any, ...]
    ) -> Callable[[], None]:
        """Return what launches `n` work items, rounded up to blocks, and waits for them."""
        size = -(-n // block) * block
        kernel.set_args(*arguments)
        enqueue, queue = self.module.enqueue_nd_range_kernel, self.queue

        def call() -> None:
            enqueue(queue, kernel, (size,), (block,))
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
    """Return every PoCL installed, and why there is none if the list is empty."""
    module, reason = find("pyopencl")
    if module is None:
        return [], f"pyopencl {reason}"
    try:
        platforms = [each for each in module.get_platforms() if each.name == _POCL]
        found = [OpenCL(module, device) for each in platforms for device in each.get_devices()]
    except Exception as error:  # noqa: BLE001  # a broken driver is one more kind of missing
        return [], f"pyopencl finds no platform: {error}"
    return found, "no PoCL (pip install pocl-binary-distribution, or apt install pocl-opencl-icd)"
