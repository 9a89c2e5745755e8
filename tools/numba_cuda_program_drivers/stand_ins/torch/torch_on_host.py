"""A pytest plugin for programs on torch: tensors "on the GPU" are those in host memory.

``tensor.cuda()`` and ``tensor.cpu()`` return copies, and a tensor has
``__cuda_array_interface__``, through which numba-cuda and nbrt take it. ``gym`` is gymnasium, its
successor.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["pytest_configure"]


def pytest_configure() -> None:
    """Change torch before modules of tests are imported."""
    torch = importlib.import_module("torch")
    torch.Tensor.cuda = torch.Tensor.cpu = _copy
    torch.Tensor.__cuda_array_interface__ = property(_interface)
    sys.modules["gym"] = gymnasium = importlib.import_module("gymnasium")
    sys.modules["gym.spaces"] = gymnasium.spaces


def _copy(tensor: Any, *arguments: Any, **options: Any) -> Any:
    del arguments, options
    return tensor.clone()


def _interface(tensor: Any) -> dict[str, Any]:
    interface = dict(tensor.detach().numpy().__array_interface__)
    return interface | {"version": 3, "stream": None}
