"""A notebook's kernel as a process, and its cells."""

from __future__ import annotations

import os
import sys
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from helpers.processes import ROOT, TESTS, environment_of_users

__all__ = ["Notebook"]

_TIMEOUT = 120


class Notebook:
    """A real ipykernel.

    Parameters
    ----------
    environment : dict, optional
        Its environment; by default that of users.
    """

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager = KernelManager()
        self.manager._kernel_spec = KernelSpec(argv=command, language="python")
        if environment is None:
            paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels", TESTS)))
            environment = environment_of_users() | {"PYTHONPATH": paths}
        self.manager.start_kernel(env=environment)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_TIMEOUT)

    def run(self, code: str) -> str:
        """Run a cell; return what it printed, or its traceback."""
        return self.result(self.client.execute(code))

    def result(self, cell: str) -> str:
        """Wait for a cell that was sent."""
        text = ""
        while True:
            message: Any = self.client.get_iopub_msg(timeout=_TIMEOUT)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            elif message["msg_type"] == "error":
                text += "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                return text

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
