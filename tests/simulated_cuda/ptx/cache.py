"""Keep compiled modules on disk.

The key of a file is a hash of the PTX text, of the sources of this package, of the version of
llvmlite and of the processor. A file that cannot be read, or whose checksum is wrong, counts as
missing. Files are written under another name first, so a reader never sees half a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["fetch", "folder", "key_of", "store"]

_MAGIC = b"NBRT-PTX-1\n"
_DIGEST = 32


def folder() -> Path:
    """Return the folder of the cache: NBRT_SIM_CACHE_DIR, or a folder in the user's cache."""
    chosen = os.environ.get("NBRT_SIM_CACHE_DIR")
    if chosen:
        return Path(chosen) / "ptx"
    base = os.environ.get("NBRT_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "nbrt-simulated-cuda" / "ptx"


@cache
def _fingerprint(version: str, processor: tuple[str, str]) -> bytes:
    digest = hashlib.sha256(_MAGIC)
    for part in (version, *processor):
        digest.update(part.encode() + b"\0")
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def key_of(text: bytes, version: str, processor: tuple[str, str]) -> str:
    """Return the name of the cache file of a PTX text."""
    digest = hashlib.sha256(_fingerprint(version, processor))
    digest.update(text)
    return digest.hexdigest()[:40]


def fetch(key: str) -> tuple[dict[str, object], bytes] | None:
    """Return the facts and the object file under a key, or None."""
    try:
        data = (folder() / key).read_bytes()
    except OSError:
        return None
    start = len(_MAGIC)
    payload = data[start + _DIGEST :]
    if data[:start] != _MAGIC or hashlib.sha256(payload).digest() != data[start : start + _DIGEST]:
        return None
    size = int.from_bytes(payload[:8], "little")
    return json.loads(payload[8 : 8 + size]), payload[8 + size :]


def store(key: str, facts: dict[str, object], code: bytes) -> None:
    """Keep facts and an object file; a disk that cannot be written to is no error."""
    text = json.dumps(facts).encode()
    payload = len(text).to_bytes(8, "little") + text + code
    target = folder()
    with suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(name, target / key)
        except OSError:
            os.unlink(name)
