"""torch's CUDA generators replayed: the order of its kernels, and its formulas."""

from __future__ import annotations

from nbrt_kernels.random.torch.fills import make_located
from nbrt_kernels.random.torch.requests import stateless_launches, torch_launches

__all__ = ["make_located", "stateless_launches", "torch_launches"]
