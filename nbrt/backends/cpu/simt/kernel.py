"""What the CPU backend holds: a kernel, and the plan of launching it with one configuration."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.blocks import run_launch
from nbrt.backends.cpu.simt.arguments import check_count
from nbrt.backends.cpu.simt.entry import LaunchRecord
from nbrt.backends.cpu.simt.launch import EntryDispatcher
from nbrt.backends.cpu.simt.pipeline import kernel_dispatcher
from nbrt.backends.cpu.simt.source import kernel_function

if TYPE_CHECKING:
    from collections.abc import Callable
