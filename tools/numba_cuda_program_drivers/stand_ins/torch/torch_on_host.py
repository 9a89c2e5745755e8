"""A pytest plugin for programs on torch: tensors "on the GPU" are those in host memory.

``tensor.cuda()`` and ``tensor.cpu()`` return copies, and a tensor has
``__cuda_array_interface__``, through which numba-cuda and nbrt take it. ``gym`` is gymnasium, its
successor. Random numbers that the clock would seed have the same seed in each run.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

__all__ = ["pytest_collection_finish", "pytest_configure"]

_SEEDED_BY_TIME = "warp_drive.managers.numba_managers.numba_function_manager"


def pytest_configure() -> None:
    """Change torch before modules of tests are imported."""
    torch = importlib.import_module("torch")
    torch.Tensor.cuda = torch.Tensor.cpu = _copy
    torch.Tensor.__cuda_array_interface__ = property(_interface)
    sys.modules["gym"] = gymnasium = importlib.import_module("gymnasium")
    sys.modules["gym.spaces"] = gymnasium.spaces


def pytest_collection_finish() -> None:
    """Stop the clock of the module that seeds by it."""
    module: Any = sys.modules.get(_SEEDED_BY_TIME)
    if module is not None:
        module.time = SimpleNamespace(time=lambda: 1.0)


def _copy(tensor: Any, *arguments: Any, **options: Any) -> Any:
    del arguments, options
    return tensor.clone()


def _interface(tensor: Any) -> dict[str, Any]:
    interface = dict(tensor.detach().numpy().__array_interface__)
    return interface | {"version": 3, "stream": None}
