"""`DeviceProperties`: the limits and sizes of a device, and the checks of launches against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbrt.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.typing import Dim3

__all__ = ["DeviceProperties"]


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The properties of a device. Sizes are in bytes; the values can be pickled.

    Attributes
    ----------
    details : Mapping[str, object]
        Properties of this kind only: caches and SIMD width on cpu, clock and bus on cuda.
    """

    name: str
    total_memory: int
    multi_processor_count: int
    max_threads_per_block: int = 1024
    max_block_dim: tuple[int, int, int] = (1024, 1024, 64)
    max_grid_dim: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    max_threads_per_multi_processor: int = 2048
    shared_memory_per_block: int = 48 * 1024
    warp_size: int = 32
    compute_capability: tuple[int, int] | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    def check_launch(self, device: str, grid: Dim3, block: Dim3, shared: int) -> None:
        """Raise LaunchError if a device with these properties cannot run a launch."""
        threads = block[0] * block[1] * block[2]
        if threads > self.max_threads_per_block:
            raise LaunchError(
                f"expected at most {self.max_threads_per_block} threads per block on {device}, got "
                f"{threads} from block {block}; use more blocks of fewer threads"
            )
        for name, sizes, limits in (
            ("block", block, self.max_block_dim),
            ("grid", grid, self.max_grid_dim),
        ):
            if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
                raise LaunchError(
                    f"expected a {name} within {limits} on {device}, got {sizes}; cover the rest "
                    f"of the range with a loop in the kernel"
                )
        if shared > self.shared_memory_per_block:
            raise LaunchError(
                f"expected at most {self.shared_memory_per_block} bytes of shared memory per block "
                f"on {device}, got {shared}; use smaller tiles"
            )

    def check_kernel(
        self, name: str, block: Dim3, shared: int, max_threads: int, static_shared: int
    ) -> None:
        """Raise LaunchError if a launch exceeds what the code of the kernel leaves of the limits.

        Parameters
        ----------
        name : str
            The kernel.
        block : tuple of int
            Threads of a block.
        shared : int
            Bytes of dynamic shared memory.
        max_threads : int
            Most threads of a block by the registers of the kernel.
        static_shared : int
            Bytes of shared memory that the kernel declares.
        """
        threads = block[0] * block[1] * block[2]
        if threads > max_threads:
            raise LaunchError(
                f"expected at most {max_threads} threads per block, the limit by the registers of "
                f"{name}, got {threads}; use smaller blocks, or cuda.jit(max_registers=...)"
            )
        if shared + static_shared > self.shared_memory_per_block:
            raise LaunchError(
                f"expected at most {self.shared_memory_per_block} bytes of shared memory per "
                f"block, got {shared} dynamic ones and {static_shared} that {name} declares; use "
                f"smaller tiles"
            )
