"""The world of a process that is alone: one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.distributed.communicators.base import DEFAULT_TIMEOUT
from nbrt.distributed.communicators.threads import ThreadCommunicator, thread_world

if TYPE_CHECKING:
    from nbrt._internal.device import Device

__all__ = ["single_world"]


def single_world(
    device: Device | None = None, timeout: float = DEFAULT_TIMEOUT
) -> ThreadCommunicator:
    """Return the communicator of a world of one rank; without a device, on the current one."""
    return thread_world([device], timeout)[1][0]
