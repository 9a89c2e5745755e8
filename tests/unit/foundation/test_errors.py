"""The exception tree."""

from __future__ import annotations

import builtins
import inspect

import pytest

from nbrt import errors


def test_the_tree() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert kind.__doc__
        assert issubclass(kind, (errors.NbrtError, Warning))
    assert errors.__all__ == sorted(errors.__all__)
    public = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert public == set(errors.__all__)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ArgumentError", "ValueError"),
        ("ArgumentOverflowError", "OverflowError"),
        ("ArgumentOverflowError", "ValueError"),
        ("ArgumentTypeError", "TypeError"),
        ("OutOfMemoryError", "MemoryError"),
        ("NotSupportedError", "NotImplementedError"),
        ("StreamError", "RuntimeError"),
        ("UnknownDeviceError", "ValueError"),
        ("CompileError", "TypeError"),
        ("LaunchError", "ValueError"),
    ],
)
def test_built_in_names_keep_working(name: str, builtin: str) -> None:
    assert issubclass(getattr(errors, name), getattr(builtins, builtin))
