"""`synchronize`: wait for all streams of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.runtime import commands
from nbrt.runtime.device import interface_of, lookup
from nbrt.runtime.stream import streams_of

if TYPE_CHECKING:
    from nbrt.typing import DeviceLike

__all__ = ["synchronize"]


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on all streams of a device.

    Raises
    ------
    StreamError
        If work failed on a stream; the failures of other streams are added as notes.
    """
    chosen = lookup(device)[0]
    interface = interface_of(chosen)
    failures: list[Exception] = []
    streams = [each for each in streams_of(chosen) if each.interface is interface]
    for stream in streams:
        if stream.capture is not None:
            stream.capture.refuse(f"a wait for all streams of {chosen}", "wait after a replay")
    if commands.hooks:
        commands.emit("device_sync", chosen)
    for stream in streams:
        try:
            stream.finish()
        except Exception as error:  # noqa: BLE001  # re-raised below, after the other streams
            failures.append(error)
    interface.synchronize(chosen.index)
    if failures:
        for further in failures[1:]:
            failures[0].add_note(f"another stream of {chosen} failed too: {further}")
        raise failures[0]
