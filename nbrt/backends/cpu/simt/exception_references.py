"""Exception classes of the program in compiled code: by a reference that each process resolves.

Numba pickles the class of a raised exception into the code. In another process that gives another
class if it is of ``__main__``, of a function or of ``exec``, and ``except`` does not catch it. So
code refers to a class by a token. A process that loads the code from disk gives the token the class
that its kernel captures.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from numba.core.pythonapi import PythonAPI

from nbrt.backends.stable_modules import is_stable_class

__all__ = ["ReferringAPI", "class_of", "resolve", "tokens_in"]

_TOKEN = re.compile(rb"nbrt\.exception\.[0-9a-f]{32}")

_classes: dict[str, type[BaseException]] = {}
"""By token. Compiled code lives as long as the process, and so do its classes."""

_tokens: WeakKeyDictionary[type[BaseException], str] = WeakKeyDictionary()


class ReferringAPI(PythonAPI):
    """Numba's interface to Python for compiled code, with references to exception classes."""

    def serialize_object(self, obj: Any) -> Any:
        """Put an object into the code: an exception is a tuple that begins with its class."""
        if isinstance(obj, tuple) and obj and _is_of_program(obj[0]):
            obj = (_Reference(_token_of(obj[0])), *obj[1:])
        return super().serialize_object(obj)


@dataclass(frozen=True, slots=True)
class _Reference:
    token: str

    def __reduce__(self) -> tuple[Any, ...]:
        return class_of, (self.token,)


def class_of(token: str) -> type[BaseException]:
    """Return the class that a token stands for in this process."""
    return _classes[token]


def resolve(token: str, exception: type[BaseException]) -> bool:
    """Let a token of code from disk stand for a class; return False if it has another one."""
    return _classes.setdefault(token, exception) is exception


def tokens_in(code: bytes) -> list[str]:
    """Return the tokens in object code, each once."""
    return sorted({found.decode() for found in _TOKEN.findall(code)})


def _is_of_program(value: object) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, BaseException)
        and not is_stable_class(value)
        and value.__module__.partition(".")[0] != "nbrt"
    )


def _token_of(exception: type[BaseException]) -> str:
    token = _tokens.get(exception)
    if token is None:
        token = _tokens.setdefault(exception, f"nbrt.exception.{uuid.uuid4().hex}")
        _classes[token] = exception
    return token
