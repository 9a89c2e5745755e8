"""`Inspection`: what becomes of a kernel on a CPU device and on a GPU, which need not be there."""

from __future__ import annotations

import html
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nbrt.backends.argument_specs import example_of
from nbrt.backends.registry import get_interface_for_device
from nbrt.errors import NbrtError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.backends.inspection import (
        DeviceCode,
        HostCode,
        Loop,
        Lowering,
        Occupancy,
        Resources,
    )
    from nbrt.typing import Dim3

__all__ = ["Inspection"]

_LOWERINGS = {
    "threads": "one loop over threads",
    "lanes": "split at its barriers into loops over vector lanes",
    "coroutines": "one coroutine per thread",
}


class Inspection:
    """The stages of compilation of a kernel for given argument types, computed on demand.

    Made by ``kernel.inspect(...)`` and ``kernel[grid, block].inspect(...)``. Nothing runs, and no
    GPU is needed. Shown in a notebook, it is a table with the code below it.

    Attributes
    ----------
    gpu : str or None
        The GPU that was named; None: ``ptx`` and what follows from it are for compute capability
        8.0, and are not shown unless asked for.
    signature : str
        The kernel's name, its parameters and their types.
    lowering : Lowering
        How the CPU compiler cut the kernel, as `kind` (``"threads"``, ``"lanes"`` or
        ``"coroutines"``) and `reasons`, which name the constructs that forced it.
    loops : tuple of Loop
        The innermost loops of the CPU code: how many vector lanes each has, and what it calls.
    llvm, asm : str
        Optimised LLVM IR and assembly for this CPU.
    ptx : str
        PTX for the GPU; needs NVIDIA's compiler libraries (the wheels nvidia-nvvm and
        nvidia-cuda-nvrtc).
    resources : Resources
        Registers, shared memory, spills, stack and constant memory on the GPU; needs ptxas (the
        wheel nvidia-cuda-nvcc).
    occupancy : Occupancy
        Blocks and warps that fit on one multiprocessor of the GPU, and what limits them.
    """

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        grid: Dim3,
        block: Dim3,
        shared: int,
        gpu: str | None,
    ) -> None:
        self.gpu = gpu
        self._function = function
        self._args = tuple(map(example_of, args))
        self._launch = (grid, block, shared)
        if gpu is not None:
            self._gpu_code  # noqa: B018  # an unknown name is wrong here, not when it is used

    def on(self, gpu: str) -> Inspection:
        """Return the same for another GPU.

        Parameters
        ----------
        gpu : str
            A name such as ``"H100"`` or ``"RTX 4090"``, or a compute capability such as
            ``"sm_90"``.
        """
        return Inspection(self._function, self._args, *self._launch, gpu)

    @cached_property
    def _cpu_code(self) -> HostCode:
        interface = get_interface_for_device("cpu")
        code: HostCode = interface.inspect(self._function, self._args, *self._launch, None)
        return code

    @cached_property
    def _gpu_code(self) -> DeviceCode:
        interface = get_interface_for_device("cuda")
        code: DeviceCode = interface.inspect(self._function, self._args, *self._launch, self.gpu)
        return code

    @property
    def signature(self) -> str:  # noqa: D102  # these are described in the class
        return self._cpu_code.signature

    @property
    def lowering(self) -> Lowering:  # noqa: D102
        return self._cpu_code.lowering

    @property
    def loops(self) -> tuple[Loop, ...]:  # noqa: D102
        return tuple(self._cpu_code.loops)

    @property
    def llvm(self) -> str:  # noqa: D102
        return self._cpu_code.llvm

    @property
    def asm(self) -> str:  # noqa: D102
        return self._cpu_code.asm

    @property
    def ptx(self) -> str:  # noqa: D102
        return self._gpu_code.ptx

    @property
    def resources(self) -> Resources:  # noqa: D102
        return self._gpu_code.resources

    @property
    def occupancy(self) -> Occupancy:  # noqa: D102
        return self._gpu_code.occupancy

    def __repr__(self) -> str:
        return "\n".join(f"{name:10} {text}" for name, text in self._rows())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
            for name, text in self._rows()
        )
        names = ("llvm", "asm") if self.gpu is None else ("llvm", "asm", "ptx")
        texts = "".join(
            f"<details><summary>{name}</summary><pre>{html.escape(_shown(self, name))}</pre>"
            f"</details>"
            for name in names
        )
        return f"<table>{rows}</table>{texts}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Return a summary; properties that are not available show the reason."""
        yield "kernel", _shown(self, "signature")
        yield "on cpu", _shown(self, "lowering", _lowering_text)
        yield "loops", _shown(self, "loops", _loops_text)
        if self.gpu is not None:
            yield f"on {self.gpu}", _shown(self, "resources", _resources_text)
            yield "occupancy", _shown(self, "occupancy", _occupancy_text)


def _shown(inspection: Inspection, name: str, text: Callable[[Any], str] = str) -> str:
    try:
        return text(getattr(inspection, name))
    except NbrtError as error:
        return f"not available: {error}"


def _lowering_text(lowering: Lowering) -> str:
    meaning = _LOWERINGS.get(lowering.kind, lowering.kind)
    return "; ".join((f"{lowering.kind}: {meaning}", *lowering.reasons))


def _loops_text(loops: tuple[Loop, ...]) -> str:
    return "; ".join(map(_loop_text, loops)) or "none"


def _loop_text(loop: Loop) -> str:
    width = f"{loop.lanes} x {loop.element}" if loop.lanes > 1 else "scalar"
    calls = f", calls {', '.join(loop.calls)}" if loop.calls else ""
    return f"{loop.block} (depth {loop.depth}): {width}{calls}"


def _resources_text(used: Resources) -> str:
    spills = used.spill_stores + used.spill_loads
    return (
        f"{used.registers} registers, {used.static_shared} B static shared memory, "
        f"{used.stack} B stack, {spills} B spilled, {used.constant} B constant memory"
    )


def _occupancy_text(found: Occupancy) -> str:
    return (
        f"{found.fraction:.0%}: {found.blocks} blocks, {found.warps} of {found.max_warps} warps "
        f"per multiprocessor, limited by {' and '.join(found.limited_by)}"
    )
