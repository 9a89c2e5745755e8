"""Keep compiled modules on disk.

The path of a file has a hash of the sources of this package, of the version of llvmlite and of the
processor, and a hash of the PTX text. A file that cannot be read, or whose checksum is wrong,
counts as missing. Files are written under another name first, so a reader never sees half a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["fetch", "folder", "key_of", "store"]

_MAGIC = b"NBRT-PTX-1\n"
_DIGEST = 32
_KEPT_VERSIONS = 4


def folder() -> Path:
    """Return the folder of the cache: beside the built libraries of the driver."""
    root = os.environ.get("NBRT_CACHE_DIR")
    if root is None:
        root = str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nbrt")
    return Path(root) / "simulated_cuda" / "ptx"


@cache
def _fingerprint(version: str, processor: tuple[str, str]) -> str:
    digest = hashlib.sha256(_MAGIC)
    for part in (version, *processor):
        digest.update(part.encode() + b"\0")
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def key_of(text: bytes, version: str, processor: tuple[str, str]) -> str:
    """Return the path of the cache file of a PTX text, within the folder."""
    return f"{_fingerprint(version, processor)}/{hashlib.sha256(text).hexdigest()[:40]}"


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
    target = folder() / key
    with suppress(OSError):
        if not target.parent.exists():
            _remove_old(target.parent.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(name, target)
        except OSError:
            os.unlink(name)


def _remove_old(root: Path) -> None:
    """Remove the files of all but the latest versions of the translator."""
    found = sorted(root.glob("*/"), key=lambda path: path.stat().st_mtime)
    for path in found[: -_KEPT_VERSIONS + 1 or None]:
        shutil.rmtree(path, ignore_errors=True)
