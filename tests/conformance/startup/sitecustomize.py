"""Puts the engine under ``numba.cuda`` in the processes that tests start, as in their own."""

from __future__ import annotations

import os
import sys

if os.environ.get("NBRT_CONFORMANCE_ENGINE"):
    sys.path.append(os.environ["NBRT_CONFORMANCE_ROOT"])
    from tests.conformance.worker import prepare

    prepare(os.environ["NBRT_CONFORMANCE_ENGINE"])
