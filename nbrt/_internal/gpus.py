"""NVIDIA's GPUs by name, and the limits of their compute capabilities: the one table of nbrt.

Names are matched without regard to case, spaces and punctuation, as CUDA, data sheets and people
write them: ``"H100"``, ``"h100-pcie"``, ``"NVIDIA H100 80GB HBM3"``. A name that several products
share stands for one of them: ``"H100"`` is the H100 SXM. A product with several sizes of memory has
the commonest one without a size in its name, such as the A100 with 80 GB, the V100 with 16 GB and
the Jetson AGX Orin with 64 GB; other sizes are separate products: ``"A100 40GB"``.

Sources: for capabilities, NVIDIA's list "CUDA GPUs"; for multiprocessors, the architecture
whitepapers (Pascal to Blackwell) and data sheets, by what a product has enabled; for limits, the
CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (12 for 6.0 to 7.2,
else 13); for allocation units, ``cuda_occupancy.h`` of the CUDA runtime. For memory, its bandwidth,
PCIe and NVLink, NVIDIA's data sheets and product pages; of B200, GB200, B300 and GB300 the total of
the HGX or NVL72 system by its number of GPUs, which is less than "up to 192" and "up to 288 GB".
Sizes in them are powers of two, whatever they call them: nvidia-smi shows 81559 MiB for 80 GB.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GPUS", "LIMITS", "Gpu", "Limits", "capability_of", "gpu_named", "limits_of", "names_of"]

Capability = tuple[int, int]

_WARP = 32
_KIB = 1024
_GIB = 1024**3

USABLE_SHARE = 0.987
"""The share of a GPU's memory that the driver reports as its total; an assumption.

PyTorch's messages say 79.11 GiB for H100, 93.00 of 94 for H100 NVL, 39.4 to 39.6 of 40 for A100,
15.75 of 16 for V100, 23.65 of 24 for RTX 4090, and with `ECC_SHARE` 14.76 of 16 for T4.
"""

ECC_SHARE = 15 / 16
"""The share of GDDR memory that error correction leaves, where it is on as delivered."""

INTEGRATED_SHARE = 0.935
"""The same as `USABLE_SHARE` where the host shares the memory; an assumption."""

_PCIE_LANE = {3: 985_000_000, 4: 1_969_000_000, 5: 3_938_000_000, 6: 7_563_000_000}
"""Generation -> bytes per second of a lane, in one direction."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The room of one multiprocessor of a compute capability.

    Attributes
    ----------
    warps, blocks : int
        Resident warps and blocks.
    shared, shared_per_block : int
        Bytes of shared memory, and the most that one block can have after opting in.
    shared_unit, shared_reserved : int
        Bytes by which shared memory is allocated; bytes that the system takes for every block.
    """

    warps: int
    blocks: int
    shared: int
    shared_per_block: int
    shared_unit: int = 128
    shared_reserved: int = _KIB

    @property
    def threads(self) -> int:
        """Resident threads."""
        return self.warps * _WARP


def _early(warps: int, blocks: int, shared: int, per_block: int) -> Limits:
    return Limits(warps, blocks, shared * _KIB, per_block * _KIB, 256, 0)


def _limits(warps: int, blocks: int, shared_kib: int) -> Limits:
    return Limits(warps, blocks, shared_kib * _KIB, (shared_kib - 1) * _KIB)


LIMITS: dict[Capability, Limits] = {
    (6, 0): _early(64, 32, 64, 48),
    (7, 0): _early(64, 32, 96, 96),
    (7, 2): _early(64, 32, 96, 96),
    (7, 5): _early(32, 16, 64, 64),
    (8, 0): _limits(64, 32, 164),
    (8, 6): _limits(48, 16, 100),
    (8, 7): _limits(48, 16, 164),
    (8, 9): _limits(48, 24, 100),
    (9, 0): _limits(64, 32, 228),
    (10, 0): _limits(64, 32, 228),
    (10, 3): _limits(64, 32, 228),
    (11, 0): _limits(48, 24, 228),
    (12, 0): _limits(48, 24, 100),
    (12, 1): _limits(48, 24, 100),
}
"""Compute capability -> limits."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A product.

    Attributes
    ----------
    name : str
        As in `GPUS`.
    capability : tuple of int
        Compute capability, a key of `LIMITS`.
    multiprocessors : int or None
        Those enabled; None: NVIDIA publishes no number.
    memory : int
        Bytes, as published.
    memory_bandwidth : int
        Bytes per second.
    pcie : int or None
        Generation of PCIe; None: the GPU shares its memory with the host.
    nvlink : int
        Bytes per second to other GPUs by NVLink, both directions together, as published; 0: none.
    """

    name: str
    capability: Capability
    multiprocessors: int | None
    memory: int
    memory_bandwidth: int
    pcie: int | None
    nvlink: int

    @property
    def limits(self) -> Limits:
        """The limits of each multiprocessor."""
        return LIMITS[self.capability]

    @property
    def usable_memory(self) -> int:
        """Bytes that the driver reports as the total: an assumption, see `USABLE_SHARE`."""
        if self.pcie is None:
            return int(self.memory * INTEGRATED_SHARE)
        return int(self.memory * USABLE_SHARE * (ECC_SHARE if self.name in _CORRECTED else 1))

    @property
    def pcie_bandwidth(self) -> int | None:
        """Bytes per second between host and GPU in one direction; None: they share the memory."""
        if self.pcie is None:
            return None
        return _PCIE_LANE[self.pcie] * (8 if self.name in _EIGHT_LANES else 16)


# Multiprocessors, GiB, GB/s of the memory, generation of PCIe, GB/s of NVLink.
_Row = tuple[int | None, int, float, int | None, float]

_PRODUCTS: dict[Capability, dict[str, _Row]] = {
    (6, 0): {"P100": (56, 16, 732, 3, 160), "P100 12GB": (56, 12, 549, 3, 0)},
    (7, 0): {
        "V100": (80, 16, 900, 3, 300), "V100 32GB": (80, 32, 900, 3, 300),
        "TITAN V": (80, 12, 653, 3, 0),
    },
    (7, 2): {"Jetson AGX Xavier": (8, 32, 136.5, None, 0)},
    (7, 5): {
        "T4": (40, 16, 320, 3, 0), "TITAN RTX": (72, 24, 672, 3, 100),
        "Quadro RTX 6000": (72, 24, 672, 3, 100), "Quadro RTX 8000": (72, 48, 672, 3, 100),
        "RTX 2060": (30, 6, 336, 3, 0), "RTX 2070": (36, 8, 448, 3, 0),
        "RTX 2080": (46, 8, 448, 3, 50), "RTX 2080 Ti": (68, 11, 616, 3, 100),
    },
    (8, 0): {
        "A100": (108, 80, 2039, 4, 600), "A100 40GB": (108, 40, 1555, 4, 600),
        "A30": (56, 24, 933, 4, 200),
    },
    (8, 6): {
        "A2": (10, 16, 200, 4, 0), "A10": (72, 24, 600, 4, 0), "A10G": (80, 24, 600, 4, 0),
        "A16": (10, 16, 200, 4, 0), "A40": (84, 48, 696, 4, 112.5),
        "RTX A2000": (26, 6, 288, 4, 0), "RTX A2000 12GB": (26, 12, 288, 4, 0),
        "RTX A4000": (48, 16, 448, 4, 0), "RTX A4500": (56, 20, 640, 4, 112.5),
        "RTX A5000": (64, 24, 768, 4, 112.5), "RTX A6000": (84, 48, 768, 4, 112.5),
        "RTX 3060": (28, 12, 360, 4, 0), "RTX 3060 Ti": (38, 8, 448, 4, 0),
        "RTX 3070": (46, 8, 448, 4, 0), "RTX 3070 Ti": (48, 8, 608, 4, 0),
        "RTX 3080": (68, 10, 760, 4, 0), "RTX 3080 12GB": (70, 12, 912, 4, 0),
        "RTX 3080 Ti": (80, 12, 912, 4, 0), "RTX 3090": (82, 24, 936, 4, 112.5),
        "RTX 3090 Ti": (84, 24, 1008, 4, 112.5),
    },
    (8, 7): {
        "Jetson AGX Orin": (16, 64, 204.8, None, 0),
        "Jetson AGX Orin 32GB": (14, 32, 204.8, None, 0), "Jetson Orin Nano": (8, 8, 102, None, 0),
    },
    (8, 9): {
        "L4": (58, 24, 300, 4, 0), "L40": (142, 48, 864, 4, 0), "L40S": (142, 48, 864, 4, 0),
        "RTX 4000 Ada": (48, 20, 360, 4, 0), "RTX 5000 Ada": (100, 32, 576, 4, 0),
        "RTX 6000 Ada": (142, 48, 960, 4, 0), "RTX 4060": (24, 8, 272, 4, 0),
        "RTX 4060 Ti": (34, 8, 288, 4, 0), "RTX 4060 Ti 16GB": (34, 16, 288, 4, 0),
        "RTX 4070": (46, 12, 504, 4, 0), "RTX 4070 SUPER": (56, 12, 504, 4, 0),
        "RTX 4070 Ti": (60, 12, 504, 4, 0), "RTX 4070 Ti SUPER": (66, 16, 672, 4, 0),
        "RTX 4080": (76, 16, 717, 4, 0), "RTX 4080 SUPER": (80, 16, 736, 4, 0),
        "RTX 4090": (128, 24, 1008, 4, 0),
    },
    (9, 0): {
        "H100 SXM": (132, 80, 3350, 5, 900), "H100 NVL": (132, 94, 3900, 5, 600),
        "H100 PCIe": (114, 80, 2000, 5, 600), "H200": (132, 141, 4800, 5, 900),
        "GH200": (132, 96, 4000, 5, 900), "GH200 144GB": (132, 144, 4900, 5, 900),
    },
    (10, 0): {"B200": (148, 180, 8000, 5, 1800), "GB200": (None, 186, 8000, 5, 1800)},
    (10, 3): {"B300": (None, 268, 8000, 6, 1800), "GB300": (None, 278, 8000, 6, 1800)},
    (11, 0): {"Jetson T5000": (20, 128, 273, None, 0)},
    (12, 0): {
        "RTX 5060": (30, 8, 448, 5, 0), "RTX 5070": (48, 12, 672, 5, 0),
        "RTX 5070 Ti": (70, 16, 896, 5, 0), "RTX 5080": (84, 16, 960, 5, 0),
        "RTX 5090": (170, 32, 1792, 5, 0), "RTX PRO 6000 Blackwell": (188, 96, 1792, 5, 0),
    },
    (12, 1): {"GB10": (48, 128, 273, None, 0)},
}  # fmt: skip

_CORRECTED = {"T4", "A2", "A10", "A10G", "A16", "A40", "L4", "L40", "L40S"}
"""GPUs with GDDR memory whose error correction is on as delivered."""

_EIGHT_LANES = {"A2", "RTX 4060", "RTX 4060 Ti", "RTX 4060 Ti 16GB", "RTX 5060"}


def _gpu(name: str, capability: Capability, row: _Row) -> Gpu:
    count, gib, bandwidth, pcie, nvlink = row
    billion = 10**9
    rates = int(bandwidth * billion), pcie, int(nvlink * billion)
    return Gpu(name, capability, count, gib * _GIB, *rates)


GPUS: dict[str, Gpu] = {
    name: _gpu(name, capability, row)
    for capability, products in _PRODUCTS.items()
    for name, row in products.items()
}
"""Name -> GPU."""

_ALIASES = {
    # A name that several products share, for the most common of them.
    "H100": "H100 SXM", "RTX PRO 6000": "RTX PRO 6000 Blackwell",
    # The machine around the GPU.
    "DGX Spark": "GB10", "Jetson Thor": "Jetson T5000", "Jetson AGX Thor": "Jetson T5000",
    # Names that the driver gives.
    "H100 HBM3": "H100 SXM", "H100 SXM5": "H100 SXM", "H200 NVL": "H200", "H200 SXM": "H200",
    "H200 HBM3e": "H200", "A100 SXM": "A100", "A100 SXM4": "A100", "A100 PCIe": "A100",
    "A100 PG509-200": "A100", "V100 SXM2": "V100", "V100 SXM3": "V100", "V100 PCIe": "V100",
    "V100S PCIe": "V100", "V100 FHHL": "V100", "P100 PCIe": "P100", "P100 SXM2": "P100",
    "GH200 HBM3": "GH200", "GH200 480GB": "GH200", "GH200 144G HBM3e": "GH200 144GB",
    "Jetson AGX Orin 64GB": "Jetson AGX Orin",
    # Sizes of the chips' memory, of which the systems use a part.
    "B200 192GB": "B200", "GB200 192GB": "GB200", "B300 288GB": "B300", "GB300 288GB": "GB300",
    "B300 SXM6 AC": "B300",
    "RTX 6000 Ada Generation": "RTX 6000 Ada", "RTX 5000 Ada Generation": "RTX 5000 Ada",
    "RTX 4000 Ada Generation": "RTX 4000 Ada",
    "RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell",
    "RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
}  # fmt: skip


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


_BY_NAME = {
    **{_plain(name): gpu for name, gpu in GPUS.items()},
    **{_plain(alias): GPUS[name] for alias, name in _ALIASES.items()},
}

_SIZE = re.compile(r"\b(\d+) ?GB\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?:sm|compute|cc)[ _]?)?(\d+)\.?(\d)[af]?")


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its name.

    Raises
    ------
    ArgumentError
        If the name is unknown, with the names that are known and the nearest of them.
    ArgumentTypeError
        If it is no name.

    Examples
    --------
    >>> gpu_named("NVIDIA H100 80GB HBM3").name, gpu_named("rtx4090").multiprocessors
    ('H100 SXM', 128)
    """
    found = _find(name)
    if found is None:
        raise _unknown(name)
    return found


def capability_of(name: str) -> Capability:
    """Return the compute capability of a GPU by its name, or of ``sm_90``, ``9.0``.

    Raises
    ------
    ArgumentError
        If it is unknown, with the names that are known and the nearest of them.
    ArgumentTypeError
        If it is no name.

    Examples
    --------
    >>> capability_of("RTX 4090"), capability_of("sm_120"), capability_of("9.0")
    ((8, 9), (12, 0), (9, 0))
    """
    found = _find(name)
    if found is not None:
        return found.capability
    number = _NUMBER.fullmatch(name.strip().lower())
    if number is None or (int(number[1]), int(number[2])) not in LIMITS:
        raise _unknown(name)
    return int(number[1]), int(number[2])


def names_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of GPUs of an argument: one name, or several.

    Raises
    ------
    ArgumentTypeError
        If it is neither.
    """
    if isinstance(given, str):
        return (given,)
    try:
        return tuple(given)
    except TypeError as error:
        raise ArgumentTypeError(
            f"expected names of GPUs, such as ['H100', 'sm_80'], got {given!r}"
        ) from error


def limits_of(name: str) -> Limits:
    """Return the limits of a GPU, or of a compute capability; see `capability_of`."""
    return LIMITS[capability_of(name)]


def _find(name: str) -> Gpu | None:
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"expected the name of a GPU, such as 'H100' or 'sm_90', got {name!r}"
        )
    found = _BY_NAME.get(_plain(name))
    size = _SIZE.search(name)
    if found is not None or size is None:
        return found
    # CUDA's names have sizes; only a few products of one name differ by them.
    base = _BY_NAME.get(_plain(_SIZE.sub("", name)))
    if base is None or base.memory == int(size[1]) * _GIB:
        return base
    return _BY_NAME.get(_plain(f"{base.name} {size[1]}GB"))


def _unknown(name: str) -> ArgumentError:
    plain = _plain(name)
    near = [gpu.name for key, gpu in _BY_NAME.items() if plain and key.startswith(plain)]
    near += [_BY_NAME[key].name for key in difflib.get_close_matches(plain, _BY_NAME, n=3)]
    hint = f"; the nearest are {', '.join(list(dict.fromkeys(near))[:3])}" if near else ""
    numbers = ", ".join(f"sm_{major}{minor}" for major, minor in LIMITS)
    return ArgumentError(
        f"expected a GPU ({', '.join(GPUS)}) or a compute capability ({numbers}), got {name!r}"
        f"{hint}"
    )
