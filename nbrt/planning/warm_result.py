"""`WarmResult`: which kernels a program launches, and how long their compilation took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

from nbrt.planning.tables import html_table, text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.typing import Dim3

__all__ = ["Source", "WarmResult", "WarmedKernel"]

Source = Literal["compiled", "cached", "unstored", "failed"]

_MAX_SIGNATURE = 60


@dataclass(frozen=True, slots=True)
class WarmedKernel:
    """A kernel for one list of argument types.

    Attributes
    ----------
    kernel : str
        Its name.
    signature : str
        Its name, its parameters and their types.
    block : tuple of int or None
        The threads of a block along x, y and z, on which code for CPU devices depends; None for
        GPUs.
    device : str
        The kind of device, or the GPUs that were named as targets.
    is_draw : bool
        A function of `nbrt.random` or of a generator launches it.
    source : {"compiled", "cached", "unstored", "failed"}
        ``"cached"``: the code was in the folder of compiled kernels. ``"unstored"``: it cannot be
        kept there, so that each process compiles it. ``"failed"``: the kernel does not compile.
    seconds : float
        The time of the compilation; of all targets together.
    error : Exception or None
        The error of a kernel that failed, with the line of the kernel.
    site : str
        The line of the program that launches it first.
    """

    kernel: str
    signature: str
    block: Dim3 | None
    device: str
    is_draw: bool
    source: Source
    seconds: float
    error: BaseException | None
    site: str


class WarmResult:
    """The kernels that a program launches, as a table in terminals and notebooks.

    Iterating gives its rows, in the order of the first launches.

    Attributes
    ----------
    kernels : tuple of WarmedKernel
        The rows.
    seconds : float
        The time from the first compilation to the last.
    workers : int
        The most processes that compiled; 0: this process.
    """

    def __init__(self, kernels: tuple[WarmedKernel, ...], seconds: float, workers: int) -> None:
        self.kernels = kernels
        self.seconds = seconds
        self.workers = workers

    def __len__(self) -> int:
        return len(self.kernels)

    def __iter__(self) -> Iterator[WarmedKernel]:
        return iter(self.kernels)

    @property
    def failed(self) -> tuple[WarmedKernel, ...]:
        """The kernels that do not compile."""
        return tuple(row for row in self.kernels if row.source == "failed")

    def __repr__(self) -> str:
        return f"<nbrt.WarmResult, {self._summary()}>"

    def __str__(self) -> str:
        parts = [text_table(self._rows(), left=3)] if self.kernels else []
        parts.append(self._summary())
        parts += [f"\n{_title(row)}\n{row.error}" for row in self.failed]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        table = html_table(self._rows()) if self.kernels else ""
        errors = "".join(
            f"<p>{escape(_title(row))}</p><pre>{escape(str(row.error))}</pre>"
            for row in self.failed
        )
        return f'<div class="nbrt-warm">{table}<p>{escape(self._summary())}</p>{errors}</div>'

    def _summary(self) -> str:
        count = len(self.kernels)
        numbers = Counter(row.source for row in self.kernels)
        order: tuple[Source, ...] = ("compiled", "cached", "unstored", "failed")
        parts = ", ".join(f"{numbers[source]} {source}" for source in order if numbers[source])
        spent = sum(row.seconds for row in self.kernels)
        several = f"{self.workers} process{'es' * (self.workers != 1)}"
        where = f"at most {several}" if self.workers else "this process"
        return (
            f"{count} kernel{'s' * (count != 1)}{': ' * bool(parts)}{parts}; {spent:.2f} s of "
            f"compilations in {self.seconds:.2f} s by {where}"
        )

    def _rows(self) -> list[list[str]]:
        rows = [["kernel", "signature", "device", "block", "source", "seconds"]]
        for row in self.kernels:
            block = "" if row.block is None else "x".join(map(str, row.block))
            name = f"{row.kernel} (draw)" if row.is_draw else row.kernel
            seconds = f"{row.seconds:.2f}" if row.seconds else ""
            rows.append([name, _shortened(row.signature), row.device, block, row.source, seconds])
        return rows


def _title(row: WarmedKernel) -> str:
    place = f", launched at {row.site}" if row.site else ""
    return f"{row.kernel} does not compile{place}:"


def _shortened(signature: str) -> str:
    """Return the types of a signature, without the name of the kernel."""
    types = signature.partition("(")[2].removesuffix(")")
    return types if len(types) <= _MAX_SIGNATURE else f"{types[: _MAX_SIGNATURE - 3]}..."
