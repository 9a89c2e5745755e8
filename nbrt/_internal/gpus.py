"""NVIDIA's GPUs by name, and the limits of their compute capabilities: the one table of nbrt.

Names are matched without regard to case, spaces and punctuation, as CUDA, data sheets and people
write them: ``"H100"``, ``"h100-pcie"``, ``"NVIDIA H100 80GB HBM3"``. A name that several products
share stands for one of them: ``"H100"`` is the H100 SXM.

Sources: for capabilities, NVIDIA's list "CUDA GPUs"; for multiprocessors, the architecture
whitepapers (Pascal to Blackwell) and data sheets, by what a product has enabled; for limits, the
CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (12 for 6.0 to 7.2,
else 13); for allocation units, ``cuda_occupancy.h`` of the CUDA runtime.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["GPUS", "LIMITS", "Gpu", "Limits", "capability_of", "gpu_named", "limits_of"]

Capability = tuple[int, int]

_WARP = 32
_KIB = 1024


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
    """

    name: str
    capability: Capability
    multiprocessors: int | None

    @property
    def limits(self) -> Limits:
        """The limits of each multiprocessor."""
        return LIMITS[self.capability]


_MULTIPROCESSORS: dict[Capability, dict[str, int | None]] = {
    (6, 0): {"P100": 56},
    (7, 0): {"V100": 80, "TITAN V": 80},
    (7, 2): {"Jetson AGX Xavier": 8},
    (7, 5): {
        "T4": 40, "TITAN RTX": 72, "Quadro RTX 6000": 72, "Quadro RTX 8000": 72, "RTX 2060": 30,
        "RTX 2070": 36, "RTX 2080": 46, "RTX 2080 Ti": 68,
    },
    (8, 0): {"A100": 108, "A30": 56},
    (8, 6): {
        "A2": 10, "A10": 72, "A10G": 80, "A16": 10, "A40": 84, "RTX A2000": 26, "RTX A4000": 48,
        "RTX A4500": 56, "RTX A5000": 64, "RTX A6000": 84, "RTX 3060": 28, "RTX 3060 Ti": 38,
        "RTX 3070": 46, "RTX 3070 Ti": 48, "RTX 3080": 68, "RTX 3080 12GB": 70, "RTX 3080 Ti": 80,
        "RTX 3090": 82, "RTX 3090 Ti": 84,
    },
    (8, 7): {"Jetson AGX Orin": 16, "Jetson Orin Nano": 8},
    (8, 9): {
        "L4": 58, "L40": 142, "L40S": 142, "RTX 4000 Ada": 48, "RTX 5000 Ada": 100,
        "RTX 6000 Ada": 142, "RTX 4060": 24, "RTX 4060 Ti": 34, "RTX 4070": 46,
        "RTX 4070 SUPER": 56, "RTX 4070 Ti": 60, "RTX 4070 Ti SUPER": 66, "RTX 4080": 76,
        "RTX 4080 SUPER": 80, "RTX 4090": 128,
    },
    (9, 0): {"H100 SXM": 132, "H100 NVL": 132, "H100 PCIe": 114, "H200": 132, "GH200": 132},
    (10, 0): {"B200": 148, "GB200": None},
    (10, 3): {"B300": None, "GB300": None},
    (11, 0): {"Jetson T5000": 20},
    (12, 0): {
        "RTX 5060": 30, "RTX 5070": 48, "RTX 5070 Ti": 70, "RTX 5080": 84, "RTX 5090": 170,
        "RTX PRO 6000 Blackwell": 188,
    },
    (12, 1): {"GB10": 48},
}  # fmt: skip

GPUS: dict[str, Gpu] = {
    name: Gpu(name, capability, count)
    for capability, products in _MULTIPROCESSORS.items()
    for name, count in products.items()
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
    "GH200 HBM3": "GH200", "GH200 480GB": "GH200",
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


def limits_of(name: str) -> Limits:
    """Return the limits of a GPU, or of a compute capability; see `capability_of`."""
    return LIMITS[capability_of(name)]


def _find(name: str) -> Gpu | None:
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"expected the name of a GPU, such as 'H100' or 'sm_90', got {name!r}"
        )
    # Memory sizes are part of CUDA's names; few GPUs of one name differ by them.
    without_size = re.sub(r"\b\d+ ?GB\b", "", name, flags=re.IGNORECASE)
    return _BY_NAME.get(_plain(name)) or _BY_NAME.get(_plain(without_size))


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
