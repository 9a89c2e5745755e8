"""Signatures of calls, which must be equal on all ranks, and texts of errors."""

from __future__ import annotations

from typing import Any, NamedTuple

from nbrt.errors import RankMismatchError

__all__ = ["CallSignature", "describe_error", "mismatch_error"]


class CallSignature(NamedTuple):
    """The operation of a call and its arguments that must be equal on all ranks."""

    operation: str
    shape: Any = None
    dtype: str | None = None
    op: str | None = None
    root: int | None = None

    def __str__(self) -> str:
        said = [
            f"{name}={value}"
            for name, value in zip(self._fields[1:], self[1:], strict=True)
            if value is not None
        ]
        return f"{self.operation}({', '.join(said)})"


def describe_error(error: BaseException) -> str:
    """Return the type and text of an exception, also if ``str`` raises."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the other ranks need a message in any case
        return f"{name} (its text cannot be shown)"
    return f"{name}: {text}" if text else name


def mismatch_error(headers: dict[int, CallSignature]) -> RankMismatchError:
    """Return the error of world ranks that are in different operations."""
    said: dict[CallSignature, list[int]] = {}
    for rank, header in sorted(headers.items()):
        said.setdefault(header, []).append(rank)
    usual = max(said, key=lambda header: len(said[header]))
    others = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} came to {header}"
        for header, ranks in said.items()
        if header is not usual
    )
    return RankMismatchError(
        f"expected every rank in {usual}, as ranks {said[usual]} are; {others}"
    )
