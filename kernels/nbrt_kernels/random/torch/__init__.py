"""torch's CUDA draws: the element order and the formulas of its kernels."""

from __future__ import annotations

from nbrt_kernels.random.torch.fills import make_located
from nbrt_kernels.random.torch.requests import stateless_launches, torch_launches

__all__ = ["make_located", "stateless_launches", "torch_launches"]
