"""`Entry`: one compiled kernel, and its form as bytes.

The bytes are a magic number, a SHA-256 digest of the rest, the length of a JSON header, the header,
and the binary sections. Reading them parses JSON and slices; it never runs code or pickles.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Entry", "EntryError", "check_key", "check_kind"]

_MAGIC = b"nbrtcode\x00\x01"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<Q")
_HEADER_START = len(_MAGIC) + _DIGEST_BYTES + _LENGTH.size
_MAX_HEADER_BYTES = 2**26

_KEY = re.compile(r"[0-9a-f]{64}")
_MAX_KIND = 64
_MAX_SECONDS = 2**40
"""Later times, in seconds since 1970, have no text."""


class EntryError(ValueError):
    """Bytes are no entry, or not the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled kernel.

    Attributes
    ----------
    kind : str
        The kind of device, such as ``"cpu"``.
    name : str
        The name of the kernel.
    signature : str
        Its argument types, as text for tables.
    target : str
        The processor, such as ``"x86_64-znver4"`` or ``"sm_90"``.
    features : str
        Features of the processor that the code may use, if the target does not say.
    versions : Mapping[str, str]
        Versions and options of the compilers, on which the code depends.
    data : Mapping[str, Any]
        What else the backend needs to load the code. Values of JSON.
    sections : Mapping[str, bytes]
        The code.
    created : int
        When it was compiled, in seconds since 1970.
    """

    kind: str
    name: str
    signature: str
    target: str
    features: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, bytes] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))

    def to_bytes(self, key: str) -> bytes:
        """Return the form on disk.

        Parameters
        ----------
        key : str
            The key, which is a part of the form: a renamed file is no other entry.
        """
        header = {
            "key": key,
            "kind": self.kind,
            "name": self.name,
            "signature": self.signature,
            "target": self.target,
            "features": self.features,
            "versions": dict(self.versions),
            "created": self.created,
            "data": self.data,
            "sections": [[name, len(content)] for name, content in self.sections.items()],
        }
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
        rest = b"".join((_LENGTH.pack(len(text)), text, *self.sections.values()))
        return _MAGIC + hashlib.sha256(rest).digest() + rest

    @classmethod
    def from_bytes(cls, content: bytes, kind: str, key: str) -> Entry:
        """Return the entry of its form on disk.

        Raises
        ------
        EntryError
            If the bytes are damaged, incomplete, or those of another kind or key.
        """
        digest = content[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]
        rest = memoryview(content)[len(_MAGIC) + _DIGEST_BYTES :]
        if not content.startswith(_MAGIC) or hashlib.sha256(rest).digest() != digest:
            raise EntryError("the digest does not fit the content")
        entry, sizes, end = cls._of_header(content, kind, key)
        sections = {}
        for name, size in sizes:
            sections[name] = content[end : end + size]
            end += size
        if end != len(content):
            raise EntryError("the sections do not fit the content")
        return replace(entry, sections=sections)

    @classmethod
    def without_sections(cls, start: bytes, size: int, kind: str, key: str) -> Entry:
        """Return the entry without its code; read from the first bytes, no digest is verified.

        Parameters
        ----------
        start : bytes
            At least `header_bytes` bytes.
        size : int
            Bytes of the whole form.
        kind, key : str
            What the entry must be.

        Raises
        ------
        EntryError
            If the bytes are no header of this entry, or its sections have another size.
        """
        entry, sizes, end = cls._of_header(start, kind, key)
        if end + sum(length for _, length in sizes) != size:
            raise EntryError("the entry is incomplete")
        return entry

    @staticmethod
    def header_bytes(start: bytes) -> int:
        """Return the number of bytes up to the end of the header, of the first bytes of an entry.

        Raises
        ------
        EntryError
            If these are not the first bytes of an entry.
        """
        if not start.startswith(_MAGIC) or len(start) < _HEADER_START:
            raise EntryError("expected the first bytes of an entry")
        (length,) = _LENGTH.unpack_from(start, _HEADER_START - _LENGTH.size)
        if length > _MAX_HEADER_BYTES:
            raise EntryError("the header is too long")
        return int(_HEADER_START + length)

    @classmethod
    def _of_header(
        cls, content: bytes, kind: str, key: str
    ) -> tuple[Entry, list[tuple[str, int]], int]:
        end = cls.header_bytes(content)
        try:
            header = json.loads(content[_HEADER_START:end])
            sizes = [(name, size) for name, size in header.pop("sections")]
            is_right = (header["kind"], header.pop("key")) == (kind, key)
            entry = cls(**header)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise EntryError("the header is damaged") from error
        if not is_right:
            raise EntryError("the header is that of another entry")
        if not entry._is_sound() or not all(
            isinstance(name, str) and type(size) is int and size >= 0 for name, size in sizes
        ):
            raise EntryError("the header is damaged")
        return entry, sizes, end

    def _is_sound(self) -> bool:
        """Return whether the fields are of their types, which JSON does not say."""
        texts: list[object] = [self.name, self.signature, self.target, self.features]
        if isinstance(self.versions, dict):
            texts += self.versions.values()
        return (
            all(isinstance(text, str) for text in texts)
            and isinstance(self.versions, dict)
            and isinstance(self.data, dict)
            and type(self.created) is int
            and 0 <= self.created < _MAX_SECONDS
        )


def check_key(key: str) -> str:
    """Return a key, which must be 64 hexadecimal digits.

    Raises
    ------
    EntryError
        If it is something else, such as the path of a file.
    """
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise EntryError(f"expected a key of 64 hexadecimal digits, got {key!r}")
    return key


def check_kind(kind: str) -> str:
    """Return a kind of device, which must be an identifier, as the registry demands.

    Raises
    ------
    EntryError
        If it is something else.
    """
    if not isinstance(kind, str) or not kind.isidentifier() or len(kind) > _MAX_KIND:
        raise EntryError(f"expected a kind of device, got {kind!r}")
    return kind
