"""Write the hashes of every draw to tests/data/frozen_bits.json, which the tests compare.

Run it for a new distribution, or after the stream version of a changed one went up; it refuses to
change the hash of a draw whose version did not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nbrt.random.versions import stream_version
from nbrt.testing.draws import draw_cases

__all__ = ["main"]

_PATH = Path(__file__).parents[1] / "tests" / "data" / "frozen_bits.json"
_SEEDS = (0, 42, 2**64 - 1)
_OFFSET = 28
_N = 1000


def main() -> int:
    """Write the file; return 1 if a draw changed without a new version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=_PATH)
    path: Path = parser.parse_args().out
    before = json.loads(path.read_text(encoding="utf-8"))["draws"] if path.exists() else {}
    frozen: dict[str, Any] = {}
    changed = []
    for case in draw_cases():
        name = str(case)
        entry = {
            "version": stream_version(case.distribution, case.layout),
            "sha256": [case.digest(seed, _N, "cpu:0", _OFFSET) for seed in _SEEDS],
        }
        frozen[name] = entry
        old = before.get(name, entry)
        if old != entry and old["version"] >= entry["version"]:
            changed.append(name)
    if changed:
        print("changed without a new stream version (nbrt/random/versions.py):", *changed, sep="\n")
        return 1
    document = {"seeds": list(_SEEDS), "offset": _OFFSET, "n": _N, "draws": frozen}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(frozen)} draws in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
