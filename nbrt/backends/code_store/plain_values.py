"""Plain Python values as JSON and back, with their exact types; a reader runs no code."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["NotPlainError", "decode", "encode"]


class NotPlainError(ValueError):
    """A value, or the text of one, is of no plain type."""


def encode(value: object) -> Any:
    """Return the JSON form of a plain value.

    Parameters
    ----------
    value : None, bool, int, float, complex, str, bytes or tuple
        Members of a tuple must be plain as well. Subclasses of these types are not plain.

    Raises
    ------
    NotPlainError
        If it is of another type.
    """
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is str:
        return _checked_text(value)
    if isinstance(value, float) and kind is float:
        return {"float": value.hex() if math.isfinite(value) else str(value)}
    if isinstance(value, complex) and kind is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, bytes) and kind is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, tuple) and kind is tuple:
        return {"tuple": [encode(member) for member in value]}
    raise NotPlainError(f"expected a plain value, got {value!r} of type {kind.__name__}")


def decode(form: Any) -> Any:
    """Return the value of a JSON form that `encode` returned.

    Raises
    ------
    NotPlainError
        If it is no such form.
    """
    if form is None or type(form) in (bool, int, str):
        return form
    if not isinstance(form, dict) or len(form) != 1:
        raise NotPlainError(f"expected the form of a plain value, got {form!r}")
    ((kind, content),) = form.items()
    try:
        if kind == "float":
            return float.fromhex(content)
        if kind == "complex":
            real, imag = map(decode, content)
            return complex(real, imag)
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind == "tuple" and isinstance(content, list):
            return tuple(map(decode, content))
    except (TypeError, ValueError) as error:
        raise NotPlainError(f"expected the form of a plain value, got {form!r}") from error
    raise NotPlainError(f"expected the form of a plain value, got {form!r}")


def _checked_text(value: Any) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError as error:  # a lone surrogate
        raise NotPlainError(f"expected a plain value, got {value!r}") from error
    return value
