"""Run one benchmark's worker on a few cores: ``python -m benchmarks.pinned CORES MODULE ...``.

The worker is the module's ``worker(cores, quick)``, which also gets the words that follow; its
measurements are printed as JSON. Nothing that starts threads is imported before the process is
pinned.
"""

from __future__ import annotations

import importlib
import json
import sys

from benchmarks.environment import pin


def main() -> None:
    cores, module, *rest = sys.argv[1:]
    pin(int(cores))
    words = [word for word in rest if not word.startswith("--")]
    groups = importlib.import_module(module).worker(int(cores), "--quick" in rest, *words)
    print()
    print(json.dumps({key: [row.as_json() for row in rows] for key, rows in groups.items()}))


if __name__ == "__main__":
    main()
