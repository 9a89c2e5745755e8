"""Whether a plan fits a GPU: `Fit`, `FitTable`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from nbrt._internal.gpus import GPUS, gpu_named
from nbrt._internal.sizes import is_size, parse_size
from nbrt.backends.fake.memory_device import DriverNumbers
from nbrt.backends.interface import DeviceProperties
from nbrt.observe.plots.style import size_text
from nbrt.planning.tables import html_table, text_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt._internal.gpus import Gpu

__all__ = ["CONTEXT_BYTES", "Fit", "FitTable", "fit_all", "fit_of"]

CONTEXT_BYTES = DriverNumbers().context
"""Assumed bytes of the CUDA context of a process on a GPU. The driver's number differs between GPUs
and versions, and grows with the modules that are loaded."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a program fits a device.

    Attributes
    ----------
    name : str
        The GPU, or the size that was given.
    total : int
        Bytes of the device, of a GPU those that the driver is assumed to report.
    overhead : int
        Bytes of it that are assumed to be taken by the CUDA context.
    needed : int
        Bytes that the pools of the busiest device reserve.
    """

    name: str
    total: int
    overhead: int
    needed: int

    @property
    def spare(self) -> int:
        """Bytes to spare; negative: bytes short."""
        return self.total - self.overhead - self.needed

    @property
    def fits(self) -> bool:
        """Whether nothing is short."""
        return self.spare >= 0

    def __str__(self) -> str:
        verdict = "yes" if self.fits else "no"
        return f"{self.name}: {verdict}, {spare_text(self.spare)}"


class FitTable(Sequence[Fit]):
    """Whether a program fits each of several devices; prints as a table."""

    def __init__(self, fits: Iterable[Fit]) -> None:
        self._fits = tuple(fits)

    @overload
    def __getitem__(self, index: int, /) -> Fit: ...
    @overload
    def __getitem__(self, index: slice, /) -> FitTable: ...
    def __getitem__(self, index: int | slice, /) -> Fit | FitTable:
        if isinstance(index, slice):
            return FitTable(self._fits[index])
        return self._fits[index]

    def __len__(self) -> int:
        return len(self._fits)

    def __iter__(self) -> Iterator[Fit]:
        return iter(self._fits)

    def rows(self) -> list[list[str]]:
        """Return the cells, with a header."""
        rows = [["device", "usable", "fits", "spare"]]
        rows += [
            [fit.name, size_text(fit.total), "yes" if fit.fits else "no", spare_text(fit.spare)]
            for fit in self
        ]
        return rows

    def __str__(self) -> str:
        return text_table(self.rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def spare_text(spare: int) -> str:
    """Return spare bytes, or negative ones, as text."""
    return f"{size_text(abs(spare))} {'to spare' if spare >= 0 else 'short'}"


def fit_of(needed: int, device: str | int | DeviceProperties, kind: str) -> Fit:
    """Return whether reserved bytes fit a GPU by name, a size, or a device of these properties.

    The context is subtracted from the memory of GPUs and of devices of the kind ``"cuda"``; a size
    is compared as it is.

    Raises
    ------
    ArgumentError
        If the text is neither a known GPU nor a size.
    """
    if isinstance(device, DeviceProperties):
        is_gpu = device.compute_capability is not None or kind == "cuda"
        overhead = CONTEXT_BYTES if is_gpu else 0
        return Fit(device.name, device.total_memory, overhead, needed)
    if isinstance(device, str) and not is_size(device):
        gpu = gpu_named(device)
        return _fit_of_gpu(gpu, needed)
    nbytes = parse_size(device)
    return Fit(device if isinstance(device, str) else size_text(nbytes), nbytes, 0, needed)


def fit_all(needed: int) -> FitTable:
    """Return whether reserved bytes fit each known GPU, the largest memory first."""
    known = sorted(GPUS.values(), key=lambda gpu: (-gpu.usable_memory, gpu.name))
    return FitTable(_fit_of_gpu(gpu, needed) for gpu in known)


def _fit_of_gpu(gpu: Gpu, needed: int) -> Fit:
    return Fit(gpu.name, gpu.usable_memory, CONTEXT_BYTES, needed)
