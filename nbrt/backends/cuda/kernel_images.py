"""`KernelImage`: a kernel compiled for one compute capability, and its place in the code store.

The key is a hash of all that the compiler reads: the kernel, the functions that it calls, captured
values, compiler options, argument types, the compute capability and the versions of the compilers.
A kernel of which a part cannot be hashed for certain is not stored.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.cuda.target_options import hash_options
from nbrt.backends.fingerprint import UnhashableError, fingerprint
from nbrt.backends.foreign_overloads import hash_overloads

if TYPE_CHECKING:
    from nbrt.backends.captures import Captures

__all__ = [
    "STORE",
    "KernelImage",
    "Target",
    "apply_settings",
    "code_key",
    "load_image",
    "save_image",
    "settings",
    "target_of",
    "versions",
]

STORE = CodeStore("cuda")

Target = tuple[int, int, str]
"""A compute capability with the suffix of its architecture: ``(9, 0, "a")`` is ``sm_90a``."""

_ARCHITECTURE_SPECIFIC = (9, 0)
"""From this capability on, numba-cuda compiles launches for the features of one architecture."""

_MODULES = ("cuda.bindings", "cuda.core", "llvmlite", "numba", "numpy")
_TOOLKIT = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")
"""Packages with NVVM and libdevice."""

_LINKERS = (
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12",
)
_SETTINGS = ("CUDA_ENABLE_NRT", "CUDA_NRT_STATS", "DEBUG_ARRAY_OPT", "FORCE_CUDA_CC", "OPT")
"""Settings of numba-cuda on which code depends."""

_SOURCES = (
    "cross_compiler.py",
    "device_functions.py",
    "kernel_images.py",
    "numba_compiler.py",
    "numpy_loops.py",
    "../numpy_functions.py",
    "target_options.py",
)
"""Files of nbrt on which code depends."""


@dataclass(frozen=True, slots=True)
class KernelImage:
    """A kernel compiled for one compute capability.

    Attributes
    ----------
    entry_name : str
        Its symbol.
    target : Target
        The compute capability.
    ptx : str or None
        The PTX.
    cubin : bytes or None
        The machine code, linked.
    is_cooperative : bool
        Whether a launch must be cooperative.
    is_whole : bool
        Whether the PTX is the whole kernel: it links no further files.
    carveout : int or None
        The preferred part of shared memory, in percent.
    max_registers : int or None
        The limit of registers of a thread, for the linker.
    """

    entry_name: str
    target: Target
    ptx: str | None = None
    cubin: bytes | None = None
    is_cooperative: bool = False
    is_whole: bool = True
    carveout: int | None = None
    max_registers: int | None = None


def target_of(capability: tuple[int, int]) -> Target:
    """Return the target for which numba-cuda compiles the launches on a device."""
    return (*capability, "a" if capability >= _ARCHITECTURE_SPECIFIC else "")


def code_key(
    captures: Captures, dispatcher: Any, types: tuple[Any, ...], target: Target
) -> str | None:
    """Return the key of a kernel's code, or None if it must not be stored.

    Parameters
    ----------
    captures : Captures
        The kernel. numba-cuda compiles device functions with their present values.
    dispatcher : CUDADispatcher
        Its dispatcher.
    types : tuple of numba types
        The types of its arguments.
    target : Target
        The compute capability.
    """
    try:
        parts = (
            repr(sorted(versions().items())).encode(),
            repr(sorted(settings().items())).encode(),
            hash_overloads(hash_options),
            hash_options(dispatcher),
            fingerprint(captures.frozen, options=hash_options),
            repr(([str(kind) for kind in types], target)).encode(),
        )
    except (UnhashableError, OSError):
        return None
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def load_image(key: str) -> KernelImage | None:
    """Return the image that is stored under a key, or None."""
    entry = STORE.get(key)
    if entry is None:
        return None
    ptx = entry.sections.get("ptx")
    try:
        major, minor, suffix = entry.data["target"]
        return KernelImage(
            ptx=None if ptx is None else ptx.decode(),
            cubin=entry.sections.get("cubin"),
            **{**entry.data, "target": (major, minor, suffix)},
        )
    except (KeyError, TypeError, ValueError):  # of another version
        return None


def save_image(key: str, name: str, types: tuple[Any, ...], image: KernelImage) -> None:
    """Store an image, beside the other form of the same kernel that is stored already."""
    known = load_image(key)
    if known is not None:
        image = replace(image, ptx=image.ptx or known.ptx, cubin=image.cubin or known.cubin)
    sections = {}
    if image.ptx is not None:
        sections["ptx"] = image.ptx.encode()
    if image.cubin is not None:
        sections["cubin"] = image.cubin
    entry = Entry(
        kind=STORE.kind,
        name=name,
        signature=", ".join(map(str, types)),
        target="sm_{}{}{}".format(*image.target),
        versions=versions(),
        data={
            "entry_name": image.entry_name,
            "target": image.target,
            "is_cooperative": image.is_cooperative,
            "is_whole": image.is_whole,
            "carveout": image.carveout,
            "max_registers": image.max_registers,
        },
        sections=sections,
    )
    STORE.put(key, entry)


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, the compilers and CUDA's libraries."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _MODULES:  # faster than metadata
        found[name] = str(importlib.import_module(name).__version__)
    for name in ("numba-cuda", *_TOOLKIT, *_LINKERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if not any(name in found for name in _TOOLKIT):
        found["libdevice"] = _libdevice_digest()
    found["nbrt sources"] = _source_digest()
    return found


def _libdevice_digest() -> str:
    """Hash libdevice, which tells the versions of an installed CUDA toolkit apart."""
    from numba.cuda.cudadrv.libs import open_libdevice

    try:
        return hashlib.sha256(open_libdevice()).hexdigest()
    except Exception:  # noqa: BLE001  # there is no toolkit: compiling says so
        return "missing"


def _source_digest() -> str:
    digest = hashlib.sha256()
    here = os.path.dirname(__file__)
    for name in _SOURCES:
        with open(os.path.join(here, name), "rb", buffering=0) as file:
            digest.update(file.read())
    return digest.hexdigest()


def settings() -> dict[str, Any]:
    """Return the settings of numba-cuda on which code depends."""
    from numba.cuda.core import config

    return {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}


def apply_settings(values: dict[str, Any]) -> None:
    """Set the settings that another process had."""
    from numba.cuda.core import config

    for name in _SETTINGS:
        if name in values:
            setattr(config, name, values[name])
        elif hasattr(config, name):
            delattr(config, name)
