"""``python -m benchmarks``: every benchmark."""

from __future__ import annotations

import sys

from benchmarks.run_all import main

sys.exit(main())
