"""Generate the tables of the simulated driver: GPUs, names of errors, versions of functions."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from simulated_cuda.versions import variants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["tables"]


def tables(gpus: Path) -> str:
    """Return the C file of the tables that tables.h declares.

    Parameters
    ----------
    gpus : Path
        nbrt's table of GPUs, a module of Python.
    """
    parts = ['#include "tables.h"', *_gpus(gpus), *_errors(), *_versions()]
    return "\n".join(parts) + "\n"


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("simulated_cuda_gpus", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _gpus(path: Path) -> Iterator[str]:
    """Yield the table of GPUs whose number of multiprocessors is published."""
    known = [gpu for gpu in _load(path).GPUS.values() if gpu.multiprocessors is not None]
    yield "const SimGpu sim_gpus[] = {"
    for gpu in known:
        limits = gpu.limits
        row = (
            json.dumps(gpu.name), *gpu.capability, gpu.multiprocessors, limits.warps, limits.blocks,
            limits.shared, limits.shared_per_block, limits.shared_reserved,
        )  # fmt: skip
        yield f"    {{{', '.join(str(value) for value in row)}}},"
    yield "};"
    yield f"const int sim_gpu_count = {len(known)};"


def _errors() -> Iterator[str]:
    yield "const SimError sim_errors[] = {"
    for name, member in sorted(driver.CUresult.__members__.items(), key=lambda item: int(item[1])):
        text = " ".join((member.__doc__ or name).split())
        yield f"    {{{int(member)}, {json.dumps(name)}, {json.dumps(text)}}},"
    yield "};"
    yield f"const int sim_error_count = {len(driver.CUresult.__members__)};"


def _versions() -> Iterator[str]:
    """Yield the interfaces of functions by version, and the variants of the per-thread stream."""
    rows = [
        f'    {{"{name}", {version}, {f"(void *){target}" if target else "NULL"}}},'
        for name, entries in sorted(variants().items())
        for version, target in entries
    ]
    yield "const SimVersion sim_versions[] = {"
    yield from rows
    yield "};"
    yield f"const int sim_version_count = {len(rows)};"
