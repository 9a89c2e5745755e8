"""The error of a program that the translator does not accept."""

from __future__ import annotations

__all__ = ["PtxError"]


class PtxError(Exception):
    """Invalid or unsupported PTX; becomes CUDA_ERROR_INVALID_PTX and a line of the JIT error log.

    Parameters
    ----------
    message : str
        The fault.
    line : int
        Line of the PTX text, from 1; 0 where it is unknown.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"ptx, line {line}: {message}" if line else f"ptx: {message}")
        self.message = message
        self.line = line
