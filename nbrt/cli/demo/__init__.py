"""The main job: denoise a photograph on two streams and prove every step against NumPy.

`run_demo` is the Python interface; ``nbrt demo`` prints and draws what it returns.

The package acts as a user of nbrt would: public names, and kernels of `nbrt_kernels`.
"""

from __future__ import annotations

from nbrt.cli.demo.pipeline import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
