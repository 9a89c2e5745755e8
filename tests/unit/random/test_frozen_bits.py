"""The bits of every draw are those of the day they were frozen; docs/rng_policy.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbrt.random.versions import stream_version
from nbrt.testing.draws import DrawCase, draw_cases

FROZEN = json.loads(
    (Path(__file__).parents[2] / "data" / "frozen_bits.json").read_text(encoding="utf-8")
)
CASES = {str(case): case for case in draw_cases()}


def test_every_draw_is_frozen() -> None:
    assert set(FROZEN["draws"]) == set(CASES), "run tools/freeze_bits.py for new draws"


@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_bits_are_those_of_their_version(case: DrawCase) -> None:
    frozen = FROZEN["draws"][str(case)]
    assert stream_version(case.distribution, case.layout) == frozen["version"]
    digests = [
        case.digest(seed, FROZEN["n"], "cpu:0", FROZEN["offset"]) for seed in FROZEN["seeds"]
    ]
    assert digests == frozen["sha256"]
