"""The torch layout: the words that torch's CUDA kernels give each element on one GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from nbrt._internal.gpus import GPUS, capability_of, gpu_named
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError
from nbrt.random.layouts.element import refuse_arrays
from nbrt.random.state import whole_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TORCH_VERSIONS", "TorchLayout", "TorchRules", "gpu_size", "permutation_keys"]

_BLOCK = 256
_WORDS_PER_BLOCK = 4
_INT32_MAX = 2**31 - 1
_ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "uint64": 8, "int64": 8, "float64": 8,
}  # fmt: skip
_OTHERWISE = "any other is gpu=(multiprocessors, threads per multiprocessor)"
# The reservation of torch's kernel for an array of probabilities of any size.
_RESERVED_BY_BERNOULLI = 10
_OFFERED = (
    "uniform", "normal", "log_normal", "exponential", "cauchy", "geometric", "bernoulli",
    "integers", "random", "dropout", "shuffle_runs",
)  # fmt: skip


class TorchRules(NamedTuple):
    """Differences between releases of torch.

    Attributes
    ----------
    wide_integers : int
        Number of integers from which on ``random_(from, to)`` takes 64 bits for an element.
    """

    wide_integers: int = 2**28


TORCH_VERSIONS = {"2.13": TorchRules(), "2.14": TorchRules(), "2.15": TorchRules()}
"""The rules of each known release."""


@dataclass(frozen=True)
class TorchLayout:
    """The order of torch's CUDA kernels: elements share a grid of the GPU's size.

    Parameters
    ----------
    gpu : str or (int, int)
        A name such as ``"H100"``, see `nbrt._internal.gpus`, or (multiprocessors, threads of each).
    version : str
        A release of torch, see `TORCH_VERSIONS`.

    Examples
    --------
    >>> TorchLayout("T4").increment("uniform", "float32", 40960 * 4 + 1, (0.0, 1.0))
    8
    """

    gpu: str | tuple[int, int]
    version: str = "2.13"

    name: ClassVar[str] = "torch"
    follows_memory: ClassVar[bool] = True
    follows_torch: ClassVar[bool] = True
    index_to_counter: ClassVar[Callable[..., Any] | None] = None

    def __post_init__(self) -> None:
        gpu_size(self.gpu)
        if self.version not in TORCH_VERSIONS:
            raise ArgumentError(
                f"expected a torch version of {', '.join(TORCH_VERSIONS)}, got {self.version!r}"
            )

    def __str__(self) -> str:
        return f"torch-{self.version} on {self.gpu}"

    @property
    def grid(self) -> int:
        """Threads of the largest grid: whole blocks of 256 on every multiprocessor."""
        count, threads = gpu_size(self.gpu)
        return count * (threads // _BLOCK) * _BLOCK

    def increment(self, distribution: str, dtype: str, n: int, parameters: tuple[Any, ...]) -> int:
        """Return the 32-bit words by which torch moves the offset for a draw of `n` > 0 elements.

        Raises
        ------
        NotSupportedError
            If this layout has no such draw.
        """
        refuse_arrays(self.name, distribution, parameters)
        if distribution not in _OFFERED or dtype not in _ITEMSIZE:
            raise NotSupportedError(
                f"expected one of the draws that torch makes ({', '.join(_OFFERED)}), got "
                f"{distribution} of {dtype}; use layout='element'"
            )
        if distribution == "shuffle_runs":
            return whole_blocks(n)
        if distribution == "dropout":
            return self._turns(n, 4) * _WORDS_PER_BLOCK
        if distribution == "bernoulli" and hasattr(parameters[0], "dtype"):
            return whole_blocks(_RESERVED_BY_BERNOULLI)
        return self._reserved(dtype, n, self._lanes(distribution, dtype, parameters))

    def constants(self, distribution: str, dtype: str, n: int) -> tuple[int, ...]:
        """Return the threads of the largest grid, and the span from which integers take 64 bits."""
        return self.grid, TORCH_VERSIONS[self.version].wide_integers

    def _lanes(self, distribution: str, dtype: str, parameters: tuple[Any, ...]) -> int:
        """Return how many elements a Philox block makes."""
        if distribution == "integers":
            low, high = parameters
            return 2 if high - low >= TORCH_VERSIONS[self.version].wide_integers else 4
        if distribution == "random":
            return 2 if dtype in ("int64", "float64") else 4
        return 2 if dtype == "float64" else 4

    def _reserved(self, dtype: str, n: int, lanes: int) -> int:
        """Return the words of a draw and, if torch halves it for 32-bit offsets, of its parts."""
        itemsize = _ITEMSIZE[dtype]
        turns = self._turns(n, lanes)
        if not _fits(n, itemsize):
            waiting = [n]
            while waiting:
                size = waiting.pop()
                if _fits(size, itemsize):
                    turns += self._turns(size, lanes)
                else:
                    waiting += [size // 2, size - size // 2]
        return turns * _WORDS_PER_BLOCK

    def _turns(self, n: int, lanes: int) -> int:
        threads = min(-(-n // _BLOCK) * _BLOCK, self.grid)
        return -(-n // (threads * lanes))


def gpu_size(gpu: str | tuple[int, int]) -> tuple[int, int]:
    """Return the number of multiprocessors of a GPU, and the threads of each.

    Parameters
    ----------
    gpu : str or (int, int)
        A name of `nbrt._internal.gpus`, in any case and punctuation; or the two numbers.

    Raises
    ------
    ArgumentError
        If the name is unknown, or the number of multiprocessors of that GPU.
    ArgumentTypeError
        If it is neither a name nor two numbers.

    Examples
    --------
    >>> gpu_size("NVIDIA H100 80GB HBM3"), gpu_size("h100-pcie"), gpu_size((40, 1024))
    ((132, 2048), (114, 2048), (40, 1024))
    """
    if isinstance(gpu, str):
        return _size_of(gpu)
    if not (
        isinstance(gpu, tuple)
        and len(gpu) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in gpu)
    ):
        raise ArgumentTypeError(
            f"expected a GPU's name or (multiprocessors, threads per multiprocessor), got {gpu!r}"
        )
    count, threads = gpu
    if count < 1 or threads < 256:
        raise ArgumentError(
            f"expected at least 1 multiprocessor of at least 256 threads, got {gpu!r}"
        )
    return count, threads


def _size_of(name: str) -> tuple[int, int]:
    try:
        known = gpu_named(name)
    except ArgumentError as error:
        raise _as_size_error(name, error) from None
    if known.multiprocessors is None:
        raise ArgumentError(
            f"expected a GPU whose number of multiprocessors is known, got {name!r}; {_OTHERWISE}"
        )
    return known.multiprocessors, known.limits.threads


def _as_size_error(name: str, error: ArgumentError) -> ArgumentError:
    """Return the error for an unknown name: a compute capability has GPUs of many sizes."""
    try:
        capability = capability_of(name)
    except ArgumentError:
        return ArgumentError(f"{error}; {_OTHERWISE}")
    of_it = ", ".join(gpu.name for gpu in GPUS.values() if gpu.capability == capability)
    return ArgumentError(
        f"expected a GPU, got the compute capability {name!r}, of which there are {of_it}; "
        f"{_OTHERWISE}"
    )


def permutation_keys(n: int) -> tuple[str, int, int, int | None]:
    """Return the parameters of the sort keys of ``torch.randperm(n)``.

    The permutation is a stable sort of ``arange(n)`` by the masked keys. Then a draw "shuffle_runs"
    of the result, with the sorted keys as its parameter, shuffles elements with equal keys. The
    number of bits makes equal keys improbable (0.1).

    Parameters
    ----------
    n : int
        Elements, at least 1.

    Returns
    -------
    dtype : str
        "int32" or "int64".
    low, high : int
        The keys are a draw of "integers" in [low, high).
    mask : int or None
        The bits of a key that are compared; None: all, as signed numbers.

    Examples
    --------
    >>> permutation_keys(5)
    ('int32', -2147483648, 2147483647, 127)
    """
    bits = min(64, math.ceil(math.log2(n - (6.0 * n * n + 1.0) / (12.0 * math.log(0.9)))))
    width = 32 if bits <= 32 else 64
    top = 1 << width - 1
    return f"int{width}", -top, top - 1, None if bits == width else (1 << bits) - 1


def _fits(n: int, itemsize: int) -> bool:
    return n <= _INT32_MAX and 1 + (n - 1) * itemsize <= _INT32_MAX
