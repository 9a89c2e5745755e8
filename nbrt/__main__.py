"""``python -m nbrt`` is the command ``nbrt``."""

from __future__ import annotations

import sys

from nbrt.cli.main import main

sys.exit(main())
