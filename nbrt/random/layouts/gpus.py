"""GPUs by name: what the torch layout must know of the one that it follows."""

from __future__ import annotations

import difflib
import re

from nbrt.errors import ArgumentError, ArgumentTypeError

__all__ = ["GPUS", "gpu_size"]

_2048, _1536, _1024 = 2048, 1536, 1024

GPUS: dict[str, tuple[int, int]] = {
    "P100": (56, _2048), "V100": (80, _2048), "TITAN V": (80, _2048),
    "T4": (40, _1024), "TITAN RTX": (72, _1024), "Quadro RTX 6000": (72, _1024),
    "Quadro RTX 8000": (72, _1024), "RTX 2060": (30, _1024), "RTX 2070": (36, _1024),
    "RTX 2080": (46, _1024), "RTX 2080 Ti": (68, _1024),
    "A100": (108, _2048), "A30": (56, _2048),
    "A2": (10, _1536), "A10": (72, _1536), "A10G": (80, _1536), "A16": (10, _1536),
    "A40": (84, _1536), "RTX A2000": (26, _1536), "RTX A4000": (48, _1536),
    "RTX A4500": (56, _1536), "RTX A5000": (64, _1536), "RTX A6000": (84, _1536),
    "RTX 3060": (28, _1536), "RTX 3060 Ti": (38, _1536), "RTX 3070": (46, _1536),
    "RTX 3070 Ti": (48, _1536), "RTX 3080": (68, _1536), "RTX 3080 12GB": (70, _1536),
    "RTX 3080 Ti": (80, _1536), "RTX 3090": (82, _1536), "RTX 3090 Ti": (84, _1536),
    "L4": (58, _1536), "L40": (142, _1536), "L40S": (142, _1536),
    "RTX 4000 Ada": (48, _1536), "RTX 5000 Ada": (100, _1536), "RTX 6000 Ada": (142, _1536),
    "RTX 4060": (24, _1536), "RTX 4060 Ti": (34, _1536), "RTX 4070": (46, _1536),
    "RTX 4070 SUPER": (56, _1536), "RTX 4070 Ti": (60, _1536), "RTX 4070 Ti SUPER": (66, _1536),
    "RTX 4080": (76, _1536), "RTX 4080 SUPER": (80, _1536), "RTX 4090": (128, _1536),
    "H100 SXM": (132, _2048), "H100 NVL": (132, _2048), "H100 PCIe": (114, _2048),
    "H200": (132, _2048), "GH200": (132, _2048), "B200": (148, _2048),
    "RTX 5070": (48, _1536), "RTX 5070 Ti": (70, _1536), "RTX 5080": (84, _1536),
    "RTX 5090": (170, _1536), "RTX PRO 6000 Blackwell": (188, _1536),
}  # fmt: skip
"""Multiprocessors, and threads of each, by name.

Sources: NVIDIA's architecture whitepapers (Pascal to Blackwell) and data sheets for the number of
multiprocessors that a product has enabled; for the threads, the CUDA C++ Programming Guide, table
"Technical Specifications per Compute Capability".
"""

# The names under which drivers know what the table has under another one.
_ALIASES = {
    "h100hbm3": "H100 SXM", "h100sxm5": "H100 SXM", "h200nvl": "H200", "h200hbm3e": "H200",
    "a100sxm4": "A100", "a100pcie": "A100", "a100pg509200": "A100",
    "v100sxm2": "V100", "v100sxm3": "V100", "v100pcie": "V100", "v100spcie": "V100",
    "v100fhhl": "V100", "p100pcie": "P100", "p100sxm2": "P100", "gh200hbm3": "GH200",
    "gh200480gb": "GH200", "rtx6000adageneration": "RTX 6000 Ada",
    "rtx5000adageneration": "RTX 5000 Ada", "rtx4000adageneration": "RTX 4000 Ada",
    "rtxpro6000blackwellserveredition": "RTX PRO 6000 Blackwell",
    "rtxpro6000blackwellworkstationedition": "RTX PRO 6000 Blackwell",
}  # fmt: skip


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


_BY_NAME = {_plain(name): name for name in GPUS} | _ALIASES


def gpu_size(gpu: str | tuple[int, int]) -> tuple[int, int]:
    """Return the multiprocessors of a GPU and the threads that each holds.

    Parameters
    ----------
    gpu : str or (int, int)
        A name, such as CUDA gives it; case and punctuation do not count. Or the two numbers.

    Raises
    ------
    ArgumentError
        If the name is unknown; with the nearest that are known.
    ArgumentTypeError
        If it is neither a name nor two numbers.

    Examples
    --------
    >>> gpu_size("NVIDIA H100 80GB HBM3"), gpu_size("h100-pcie"), gpu_size((40, 1024))
    ((132, 2048), (114, 2048), (40, 1024))
    """
    if isinstance(gpu, str):
        return GPUS[_known(gpu)]
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


def _known(name: str) -> str:
    plain = _plain(name)
    # Memory sizes are part of CUDA's names; few GPUs of one name differ by them.
    for candidate in (plain, _plain(re.sub(r"\b\d+ ?GB\b", "", name, flags=re.IGNORECASE))):
        found = _BY_NAME.get(candidate)
        if found is not None:
            return found
    near = [known for key, known in _BY_NAME.items() if plain and key.startswith(plain)]
    near += [_BY_NAME[match] for match in difflib.get_close_matches(plain, _BY_NAME, n=3)]
    hint = f"; the nearest are {', '.join(dict.fromkeys(near))}" if near else ""
    raise ArgumentError(
        f"expected a GPU of the table, got {name!r}{hint}; any other is "
        f"gpu=(multiprocessors, threads per multiprocessor)"
    )
